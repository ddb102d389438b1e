"""Owner keys are deleted once their nodes have nothing of the client id, and no earlier."""

from __future__ import annotations

from tests.cluster.fleet import Fleet

from starlingmq.wire.mqtt import Subscribe, SubscribeRequest
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties


def test_the_key_stays_while_a_session_may_still_come() -> None:
    """The client ends its session at a node to which an earlier one is still on its way."""
    fleet = Fleet(3)
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 600}
    fleet.connect(0, "c", clean_start=False, properties=properties).drop()
    fleet.parted = {(1, 2), (2, 1), (1, 3), (3, 1)}
    fleet.advance(3.0)
    client = fleet.connect(1, "c", clean_start=False, properties=properties)
    assert not client.connack.session_present
    client.disconnect(0, {SESSION_EXPIRY_INTERVAL: 0})
    fleet.advance(1.0)
    assert fleet.owners("c") == [1, 2]
    fleet.speak()
    fleet.advance(5.0)
    assert fleet.owners("c") == [node.cluster.number for node in fleet.nodes if "c" in node.state.ctx.sessions]


def test_a_key_that_a_lost_target_was_to_delete_is_released_by_its_node() -> None:
    """A session is on its way from its first node to a second one, when the client goes on to a third one. The first
    node passes the session on and keeps its key, which the second one would delete. It is lost before it has heard that
    the first node is done."""
    fleet = Fleet(4)
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 600}
    subscriber = fleet.connect(0, "c", clean_start=False, properties=properties)
    subscriber.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(0.2)
    subscriber.drop()
    fleet.mute = {(4, 1)}  # the mark that the first node waits for
    fleet.connect(1, "c", clean_start=False, properties=properties).drop()
    client = fleet.connect(2, "c", clean_start=False, properties=properties)
    assert client.connack.session_present
    fleet.end(1)
    fleet.speak()
    fleet.advance(20.0, 0.1)
    assert not fleet[0].cluster.takeovers.has("c")
    assert fleet.owners("c") == [1, 2, 3]
    assert fleet[0].cluster.forget("n2", True, fleet.now) == ""
    fleet.advance(2.0)
    assert fleet.owners("c") == [3]
    assert not client.closed
