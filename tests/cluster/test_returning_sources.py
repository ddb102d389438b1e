"""A session that its client finds although claims of other nodes have come in between: nodes that could not be reached
are back, or another node has got the session meanwhile."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_lost_sessions import cut_off
from tests.cluster.test_slow_takeovers import connecting
from tests.cluster.test_takeover import lasting, publish, published, subscribe
from tests.harness import FakeClient

from starlingmq.wire.mqtt import Connack, Publish


def asked_in_vain() -> tuple[Fleet, FakeClient]:
    """The session is at the first node. The second one has asked for it while the first could not be reached, and its
    client is gone. The first node is back, and its answer to the second is slow."""
    fleet = Fleet(4)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    home, between = fleet[0].cluster.number, fleet[1].cluster.number
    for node in fleet.nodes[1:]:
        fleet.cut(home, node.cluster.number)
    gone = connecting(fleet, 1)
    fleet.advance(0.2, 0.05)
    assert gone.receive() == []
    gone.drop()
    cut_off(fleet, 0)
    assert not fleet[1].cluster.view.is_connected(home)
    fleet.mute = {(home, between)}
    fleet.heal()
    fleet.advance(1.0, 0.05)
    assert fleet[1].cluster.view.is_connected(home)
    return fleet, fleet.connect(3, "p")


@pytest.mark.parametrize("back", [1, 2])
def test_a_node_that_is_back_is_waited_for_again(back: int) -> None:
    """The client comes to the node that has asked in vain, or to another one that asks that node."""
    fleet, publisher = asked_in_vain()
    publish(publisher, b"t", b"before")
    client = connecting(fleet, back)
    fleet.advance(1.0, 0.05)
    assert client.receive() == [], "it does not wait"
    fleet.speak()
    fleet.advance(1.0, 0.05)
    assert client.expect(Connack).session_present
    assert published(client.receive()) == [b"before"]
    publish(publisher, b"t", b"after")
    assert published(client.receive()) == [b"after"]
    assert not any(node.cluster.takeovers.lost for node in fleet.nodes)


@pytest.mark.parametrize("back", [1, 2])
def test_a_node_that_is_back_and_goes_again_is_waited_for_no_longer(back: int) -> None:
    fleet, _ = asked_in_vain()
    client = connecting(fleet, back)
    fleet.advance(1.0, 0.05)
    assert client.receive() == []
    cut_off(fleet, 0)
    assert not client.expect(Connack).session_present
    publish(client, b"other", b"x")
    fleet.heal()
    fleet.speak()
    fleet.advance(3.0, 0.05)
    client.drop()
    assert lasting(fleet, 3 - back).connack.session_present


def test_a_source_that_is_back_before_the_others_have_answered_is_waited_for_again() -> None:
    fleet = Fleet(4)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    home, slow = fleet[0].cluster.number, fleet[1].cluster.number
    other = fleet[2].cluster.number
    fleet.mute = {(slow, home)}
    gone = connecting(fleet, 1)
    fleet.advance(0.2, 0.05)
    gone.drop()
    fleet.mute |= {(slow, other), (home, other)}
    client = connecting(fleet, 2)
    fleet.advance(0.2, 0.05)
    cut_off(fleet, 0)
    fleet.heal()
    fleet.advance(1.0, 0.05)
    fleet.mute = {(home, other), (home, slow)}
    fleet[1].cluster.connected(other, fleet.now)
    fleet.advance(0.5, 0.05)
    assert client.receive() == [], "the first node is connected, and has not answered"
    fleet.speak()
    fleet.advance(1.0, 0.05)
    assert client.expect(Connack).session_present


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_that_a_later_claim_has_got_is_asked_for_there(version: int) -> None:
    """Two nodes claim at once. The later claim, of a connection that its client has left, gets the session. The node
    that had the session knows nothing of it any more when the earlier one asks."""
    fleet = Fleet(3)
    lasting(fleet, 0, version=version).drop()
    home, here, there = [node.cluster.number for node in fleet.nodes]
    fleet.mute = {(here, home), (there, here)}
    client = connecting(fleet, 1, version)
    fleet.advance(0.2, 0.05)
    left = connecting(fleet, 2, version)
    fleet.advance(0.2, 0.05)
    assert not fleet[0].cluster.takeovers.has("c") and "c" in fleet[2].state.ctx.sessions
    fleet.mute = {(there, here)}
    fleet[1].cluster.connected(home, fleet.now)
    fleet.advance(0.5, 0.05)
    assert client.receive() == [] and left.closed
    fleet.speak()
    fleet.advance(1.0, 0.05)
    assert client.expect(Connack).session_present
    fleet.advance(2.0, 0.05)
    assert [place for place in range(3) if fleet[place].cluster.takeovers.has("c")] == [1]
    owners = fleet.owners("c")
    assert len(owners) == 1


def test_a_client_whose_session_has_ended_claims_once_more_and_gets_a_new_one() -> None:
    fleet = Fleet(3)
    client = lasting(fleet, 0)
    home, here, _ = [node.cluster.number for node in fleet.nodes]
    fleet.mute = {(here, home)}
    again = connecting(fleet, 1)
    fleet.advance(0.2, 0.05)
    fleet[0].state.connecting.taken_over(fleet[0].state.ctx.sessions["c"], True)
    fleet.advance(0.2, 0.05)
    claims = fleet[1].cluster.ownership.claims
    fleet.speak()
    fleet.advance(0.5, 0.05)
    assert not again.expect(Connack).session_present
    assert fleet[1].cluster.ownership.claims == claims + 1
    assert client.closed
    publish(again, b"other", b"x")
    assert not any(isinstance(packet, Publish) for packet in again.receive())
    assert not any(node.cluster.takeovers.lost for node in fleet.nodes)
