"""A session that is lost, because the node that has it cannot be reached: CONNACK says so once, to each loss."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_slow_takeovers import CONFIG, connecting
from tests.cluster.test_takeover import LASTING, lasting, publish, published, subscribe
from tests.few import few
from tests.harness import FakeClient

from starlingmq.core.context.ready import SESSION_PUT
from starlingmq.wire.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    encode,
)
from starlingmq.wire.packets import Pingreq
from starlingmq.wire.reasons import Reason


def lost(subscribed: bool = True, nodes: int = 4, version: int = 5) -> tuple[Fleet, FakeClient]:
    """A client whose session is at the first node, which no other node can reach; it has been told so at the second."""
    fleet = Fleet(nodes)
    client = lasting(fleet, 0, version=version)
    if subscribed:
        subscribe(client, b"t", 1)
    client.drop()
    cut_off(fleet, 0)
    client = lasting(fleet, 1, version=version)
    assert not client.connack.session_present
    return fleet, client


def cut_off(fleet: Fleet, place: int) -> None:
    home = fleet[place].cluster.number
    for node in fleet.nodes:
        if node is not fleet[place]:
            fleet.cut(home, node.cluster.number)
    fleet.advance(4.0, 0.05)


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("qos", few([0, 1, 2], 1))
@pytest.mark.parametrize("subscribed", [False, True])
@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_only_publishes_is_told_once(back: int, qos: int, subscribed: bool, version: int) -> None:
    fleet, client = lost(subscribed, version=version)
    publish(client, b"other", b"x", qos)
    client.drop()
    for _ in range(2):
        client = lasting(fleet, back, version=version)
        assert client.connack.session_present
        client.drop()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_shows_at_once_that_the_client_knows(qos: int) -> None:
    """It is stored before the message is acknowledged: a crash of the node does not make it tell the client again."""
    fleet, client = lost()
    node = fleet[1]
    session = node.state.ctx.sessions["c"]
    assert session.needs_reset and not session.reset_confirmed
    node.state.ctx.record(True)
    session.kept = True
    publish(client, b"other", b"x", qos)
    assert session.reset_confirmed or not session.needs_reset
    assert any(write.kind == SESSION_PUT and write.session is session for write in node.writes)


@pytest.mark.parametrize("back", [1, 2])
def test_a_client_whose_connection_is_taken_over_after_a_publish_is_told_once(back: int) -> None:
    """Its earlier connection is still open when it comes back."""
    fleet, client = lost()
    publish(client, b"other", b"x", 1)
    assert lasting(fleet, back).connack.session_present


@pytest.mark.parametrize("back", [1, 2])
def test_a_client_that_leaves_before_its_suback_is_told_once_and_subscribes_to_a_new_session(back: int) -> None:
    """The SUBACK waits for the marks of all nodes, and one of them is slow."""
    fleet, client = lost()
    publisher = fleet.connect(3, "p")
    slow = fleet[3].cluster.number
    fleet.mute = {(slow, node.cluster.number) for node in fleet.nodes}
    client.send(Subscribe(1, [SubscribeRequest(b"other", 1)]))
    fleet.advance(0.5, 0.05)
    assert client.receive() == [], "its SUBACK waits"
    client.drop()
    client = lasting(fleet, back)
    assert client.connack.session_present
    fleet.speak()
    fleet.advance(1.0, 0.05)
    subscribe(client, b"other", 1)
    publish(publisher, b"t", b"of the lost session")
    publish(publisher, b"other", b"of this one")
    assert published(client.receive()) == [b"of this one"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_subscribe_that_waits_too_long_for_a_slow_node_is_to_come_again(version: int) -> None:
    """No message of the lost session comes as one of the new subscription, however slow the node is."""
    fleet, client = lost(version=version)
    publisher = fleet.connect(3, "p")
    slow = fleet[3].cluster.number
    fleet.mute = {(slow, node.cluster.number) for node in fleet.nodes}
    publish(publisher, b"t", b"of the lost session", 0)
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(CONFIG.takeover_limit + 1.0, 0.5)
    if version == 5:
        assert client.expect(Disconnect).reason == Reason.SERVER_BUSY
    assert client.closed
    client = lasting(fleet, 1, version=version)
    assert client.connack.session_present
    client.send(Subscribe(2, [SubscribeRequest(b"t", 1)]))
    fleet.advance(1.0, 0.05)
    assert client.receive() == [], "the marker of the slow node is still missing"
    fleet.speak()
    fleet.advance(1.0, 0.05)
    assert client.expect(Suback).reasons == [1]
    publish(publisher, b"t", b"of this one", 1)
    assert published(client.receive()) == [b"of this one"]


def test_a_message_in_flight_keeps_its_packet_id_in_a_session_that_its_client_knows_of() -> None:
    """It went on elsewhere and is back at its first node. The marks are slow, so its old subscriptions still hold."""
    fleet = Fleet(4)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 2)
    client.drop()
    home, other, _, slow = [node.cluster.number for node in fleet.nodes]
    fleet.parted = {(home, other), (other, home)}
    fleet.advance(4.0, 0.05)
    lasting(fleet, 1).drop()
    client = lasting(fleet, 0)
    assert not client.connack.session_present
    fleet.mute = {(slow, home)}
    publish(fleet.connect(2, "p"), b"t", b"one", 2)
    first = client.expect(Publish)
    publish(client, b"other", b"x", 1)
    client.drop()
    client = lasting(fleet, 0)
    assert client.connack.session_present
    again = client.expect(Publish)
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"one", True)


@pytest.mark.parametrize("back", [1, 2])
def test_a_client_that_has_sent_nothing_since_is_told_again(back: int) -> None:
    """It may not have read the CONNACK."""
    fleet, client = lost()
    client.drop()
    client = lasting(fleet, back)
    assert not client.connack.session_present
    assert fleet[back].cluster.takeovers.lost["told_again"] == 1
    publish(client, b"other", b"x", 1)
    client.drop()
    assert lasting(fleet, back).connack.session_present


@pytest.mark.parametrize("back", [1, 2])
def test_a_client_that_has_published_is_not_told_again_though_its_last_acknowledgement_waits_for_the_disk(
    back: int,
) -> None:
    """Its earlier PUBACK shows that it has CONNACK; a slow disk holds back the next one when its connection ends."""
    fleet, client = lost()
    publish(client, b"other", b"x", 1)
    connection = fleet[1].state.ctx.sessions["c"].client
    assert connection is not None
    connection.waiting += 1
    client.drop()
    assert lasting(fleet, back).connack.session_present


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("sent", [Publish(b"other", b"x"), Pingreq(), Disconnect()])
@pytest.mark.parametrize("version", [4, 5])
def test_a_packet_sent_together_with_connect_does_not_show_that_the_client_knows(
    version: int, sent: Packet, back: int
) -> None:
    """It sends without waiting for CONNACK, and its connection breaks before it has read that."""
    fleet = Fleet(4)
    client = lasting(fleet, 0, version=version)
    subscribe(client, b"t", 1)
    client.drop()
    cut_off(fleet, 0)
    client = fleet[1].open(version, "c")
    client.send_all([Connect(version, "c", False, properties=LASTING if version == 5 else {}), sent])
    fleet.advance(1.0, 0.05)
    assert not client.expect(Connack).session_present
    client.drop()
    client = lasting(fleet, back, version=version)
    assert not client.connack.session_present
    publish(client, b"other", b"x", 1)
    client.drop()
    assert lasting(fleet, back, version=version).connack.session_present


def test_a_client_that_subscribes_together_with_connect_gets_its_suback_and_is_told_once() -> None:
    fleet = Fleet(4)
    subscribe(lasting(fleet, 0), b"t", 1)
    cut_off(fleet, 0)
    client = fleet[1].open(5, "c")
    client.send_all([Connect(5, "c", False, properties=LASTING), Subscribe(1, [SubscribeRequest(b"other", 1)])])
    fleet.advance(1.0, 0.05)
    assert not client.expect(Connack).session_present
    assert client.expect(Suback).reasons == [1]
    publisher = fleet.connect(2, "p")
    publish(publisher, b"t", b"of the lost session")
    publish(publisher, b"other", b"of this one")
    assert published(client.receive()) == [b"of this one"]
    client.drop()
    assert lasting(fleet, 2).connack.session_present


def test_each_loss_is_told() -> None:
    """The node where the client went on is lost as well, and its earlier words do not count for that."""
    fleet, client = lost(nodes=5)
    publish(client, b"other", b"x", 1)
    client.drop()
    cut_off(fleet, 1)
    client = lasting(fleet, 2)
    assert not client.connack.session_present
    publish(client, b"other", b"x", 1)
    client.drop()
    assert lasting(fleet, 3).connack.session_present


def test_a_connection_from_before_the_loss_says_nothing_about_it() -> None:
    """A client goes on elsewhere while its first connection stays open at a node that hears nothing of that, and
    publishes there. Back at that node it has lost what it had elsewhere."""
    fleet = Fleet(4)
    first = lasting(fleet, 0)
    home, other = fleet[0].cluster.number, fleet[1].cluster.number
    fleet.mute = {(other, home)}
    client = fleet[1].open(5, "c")
    client.send(Connect(5, "c", False, properties=LASTING))
    fleet.advance(0.2)
    publish(first, b"other", b"x", 1)
    cut_off(fleet, 1)
    assert not lasting(fleet, 0).connack.session_present


def test_an_owner_that_other_nodes_hear_is_waited_for() -> None:
    """The direct connection to it is cut, and messages are not relayed by others yet: that takes a moment."""
    fleet = Fleet(3)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    home, there, _ = [node.cluster.number for node in fleet.nodes]
    fleet.mute = {(home, there)}
    client = connecting(fleet, 1)
    fleet.cut(home, there)
    broken = False
    for _ in range(100):
        fleet.advance(0.05)
        broken = broken or not fleet[1].cluster.view.is_connected(home)
    assert broken
    assert client.expect(Connack).session_present


def test_an_owner_that_no_other_node_hears_any_more_is_not_waited_for() -> None:
    fleet = Fleet(3)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    home, there, _ = [node.cluster.number for node in fleet.nodes]
    fleet.parted = {(home, there)}
    heard = {home: None}
    fleet[1].cluster.takeovers.migrations.ports.heard_elsewhere = heard.__contains__
    client = connecting(fleet, 1)
    fleet.advance(4.0, 0.05)
    assert client.receive() == [] and not fleet[1].cluster.view.is_connected(home)
    heard.clear()
    fleet.advance(0.6, 0.05)
    assert not client.expect(Connack).session_present


@pytest.mark.parametrize("clean_start", [False, True])
def test_a_claim_whose_client_is_gone_takes_no_later_session_from_its_owner(clean_start: bool) -> None:
    """The first node has the older session, and a claim that is answered when its client is at the second node."""
    fleet = Fleet(3)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"old", 1)
    client.drop()
    fleet.hold_owners(0)
    gone = fleet[0].open(5, "c")
    gone.send(Connect(5, "c", clean_start, properties=LASTING))
    fleet.advance(0.5)
    gone.drop()
    cut_off(fleet, 0)
    client = lasting(fleet, 1)
    assert not client.connack.session_present
    subscribe(client, b"new", 1)
    assert fleet[0].cluster.ownership.claiming("c")
    fleet.heal()
    fleet.give_owners()
    fleet.advance(3.0)
    assert not fleet[0].cluster.ownership.claiming("c")
    publish(publisher, b"new", b"x")
    assert published(client.receive()) == [b"x"], "it was disconnected, or has lost its subscription"
    client.drop()
    publish(publisher, b"new", b"y")
    client = lasting(fleet, 2)
    assert client.connack.session_present
    assert b"y" in published(client.receive())
    client.drop()
    fleet.advance(1.0)
    assert [place for place in range(3) if fleet[place].cluster.takeovers.has("c")] == [2]
    owners = fleet.owners("c")
    assert len(owners) == 1, "the key of the claim that was given up is left"


def test_a_loss_is_counted_and_logged_with_the_node_to_look_after() -> None:
    fleet, _ = lost()
    assert fleet[1].cluster.takeovers.lost == {"unreachable": 1}
    (notice,) = [notice for notice in fleet[1].notices if notice.reason == "session_lost"]
    assert (notice.client_id, notice.closing) == ("c", False)
    assert notice.detail == "node n1 may have its session and is not connected; bring it back"


def test_a_client_without_an_earlier_session_has_lost_none() -> None:
    fleet = Fleet(3)
    lasting(fleet, 0)
    assert not any(node.cluster.takeovers.lost for node in fleet.nodes)


def test_a_message_acknowledged_before_a_later_connect_is_delivered_although_that_connect_reports_a_loss() -> None:
    """The cut markers were requested for an earlier claim, whose client had gone. The message follows them on its way
    from the publisher's node, and arrives after the client has noticed the loss."""
    fleet = Fleet(4)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    home, other, sender, _ = [node.cluster.number for node in fleet.nodes]
    fleet.mute = {(other, home)}
    for place in (1, 0):
        gone = fleet[place].open(5, "c")
        gone.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.03)
        gone.drop()
        fleet.advance(0.5)
    cut_off(fleet, 1)
    publisher = fleet.connect(2, "p")
    fleet.mute = {(sender, home)}
    publish(publisher, b"t", b"acknowledged")
    client = lasting(fleet, 0)
    assert not client.connack.session_present
    client.send(Pingreq())
    fleet.advance(0.5)
    assert published(client.receive()) == [], "the message is still on its way"
    fleet.speak()
    fleet.advance(0.5)
    assert published(client.receive()) == [b"acknowledged"]
    publish(publisher, b"t", b"of the lost session")
    assert client.receive() == []


def test_a_session_whose_client_knows_of_the_loss_arrives_without_another_packet_of_the_client() -> None:
    """The client sends nothing after it has connected to a third node before the cut markers of its reset arrived."""
    fleet, client = lost()
    slow = fleet[3].cluster.number
    fleet.mute = {(slow, node.cluster.number) for node in fleet.nodes}
    client.send(Pingreq())
    client.drop()
    client = lasting(fleet, 2)
    assert client.connack.session_present
    fleet.speak()
    fleet.heal()
    fleet.advance(5.0, 0.05)
    assert [place for place in range(4) if fleet[place].cluster.takeovers.has("c")] == [2]
    assert fleet[2].state.ctx.sessions["c"].moving is None


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_session_is_not_lost_by_a_claim_whose_client_has_gone(back: int, earlier: bool) -> None:
    """The client asked another node for it, and left before that node had it. Then its owner could not be reached for a
    while: no client was told of a loss. ``earlier``: the other node had a session of it before."""
    fleet = Fleet(3)
    if earlier:
        subscribe(lasting(fleet, 1), b"old", 1)
        cut_off(fleet, 1)
    client = lasting(fleet, 0)
    assert not client.connack.session_present
    subscribe(client, b"t", 1)
    home, other, third = [node.cluster.number for node in fleet.nodes]
    fleet.mute = {(home, other), (third, other)}
    fleet.cuts.clear()
    fleet.advance(4.0, 0.05)
    gone = connecting(fleet, 1)
    fleet.advance(0.5, 0.05)
    assert gone.receive() == [] and not gone.closed, "it waits for its session"
    gone.drop()
    cut_off(fleet, 0)
    fleet.cuts.clear()
    fleet.speak()
    fleet.advance(4.0, 0.05)
    client = lasting(fleet, back)
    assert client.connack.session_present
    publish(fleet.connect(2, "p"), b"t", b"one", 1)
    assert published(client.receive()) == [b"one"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_survives_a_reset_that_could_not_be_stored(version: int) -> None:
    """Another node, which cannot be reached, has claimed the client id and has nothing of the session: the session here
    is the only one, though CONNACK says session present 0. That CONNACK is replaced, because the disk fails."""
    fleet = Fleet(3)
    client = lasting(fleet, 0, version=version)
    subscribe(client, b"t", 1)
    client.drop()
    publish(fleet.connect(2, "p"), b"t", b"queued")
    home, other, _ = [node.cluster.number for node in fleet.nodes]
    fleet.mute = {(other, home)}
    gone = connecting(fleet, 1, version)
    fleet.advance(0.5, 0.05)
    gone.drop()
    cut_off(fleet, 1)
    fleet.mute = set()
    client = lasting(fleet, 0, version=version)
    assert not client.connack.session_present
    refused = fleet[0].state.refusal.answer(client.client, encode(client.connack, version))
    assert refused and refused != encode(client.connack, version)
    client.drop()
    fleet.heal()
    fleet.speak()
    fleet.advance(4.0, 0.05)
    assert b"queued" in published(lasting(fleet, 2, version=version).receive())


def test_a_node_that_loses_its_majority_decides_about_no_session() -> None:
    """It cannot know which nodes the others hear, nor whether one of them has a copy. Its client finds the session once
    there is a majority again."""
    fleet = Fleet(3)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    home, there, third = [node.cluster.number for node in fleet.nodes]
    fleet.mute = {(third, home), (third, there)}
    gone = connecting(fleet, 2)  # a later owner, of which the first one does not know
    fleet.advance(0.5)
    client = connecting(fleet, 1)
    fleet.advance(0.5)
    assert "c" in fleet[1].state.ctx.sessions, "the first node has handed it over"
    assert client.receive() == [], "the third one may have a later session"
    for other in (home, third):
        fleet.cut(there, other)
    fleet.advance(4.0, 0.05)
    assert not fleet[1].cluster.serving
    assert client.expect(Connack).reason == Reason.SERVER_UNAVAILABLE
    gone.drop()
    fleet.speak()
    fleet.heal()
    fleet.advance(2.0, 0.05)
    assert lasting(fleet, 1).connack.session_present
