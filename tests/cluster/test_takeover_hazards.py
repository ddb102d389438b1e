"""Takeovers at moments that random worlds rarely reach: each scene, and the planted mistakes that it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster import test_slow_takeovers, test_takeover
from tests.cluster.fleet import Fleet
from tests.cluster.mistakes import Mistake, each_mistake, each_scene, numbers
from tests.cluster.test_takeover import LASTING, PUBACK, PUBREC, lasting, publish, published, subscribe
from tests.cluster.test_takeover_crashes import clients_of, made
from tests.sim.world import LIVENESS_MAX

from starlingmq.cluster.takeover import takeover_target, waiting_connects
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_claims import InboundClaims
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.peers.peer_receivers import PeerReceivers
from starlingmq.core.peers.session_transfer import SessionTransfer
from starlingmq.core.session.session import MOVED_PREFIX, Session
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.reasons import Reason


def a_control_message_is_processed_once_despite_a_crash() -> None:
    """A session's queue has arrived and is stored. The former owner is not told, and sends the queue again to the new
    owner's next incarnation. The takeover is not complete, because a third node has not sent its cut marker."""
    world = made()
    former, new, third = world.nodes
    roamer, publisher = clients_of(world, former, former, 3)
    roamer.homes = [new]
    roamer.cut()
    for _ in range(3):
        publisher.publish(b"a/1", 2)
    apart = [(new.host, third.host), (third.host, new.host)]
    world.network.cut(apart)
    assert former.process is not None
    sessions = former.process.state.ctx.sessions
    while not any(name.startswith(MOVED_PREFIX) for name in sessions):
        world._pass(0.001)
    deaf = [(new.host, former.host)]
    world.network.cut(deaf)
    world.pass_time(0.2)
    assert new.process is not None and new.process.state.ctx.sessions["roamer"].moving is not None
    new.crash(False)
    world.network.heal(deaf)
    world.start_if_wanted(new)
    world.pass_time(1.0)
    world.network.heal(apart)
    roamer.homes = []
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")
    counts = [count for (name, _), got in world.books.got.items() if name == "roamer" for count in got.values()]
    assert counts == [1, 1, 1], "a message came twice"


def a_session_is_absent_while_a_later_one_may_be_unreachable() -> None:
    """A client has a session at another node while its own node is cut off. It returns to its own node when the other
    node is cut off."""
    fleet = Fleet(3)
    one, other, third = numbers(fleet)
    fleet.mute = {(third, one)}  # so it does not hear of the new session from there either
    subscribe(lasting(fleet, 0), b"t", 1)
    fleet.cut(one, other)
    fleet.cut(one, third)
    fleet.advance(6.0)
    assert not lasting(fleet, 1).connack.session_present
    fleet.heal()
    fleet.cut(other, one)
    fleet.cut(other, third)
    fleet.advance(6.0)
    assert not lasting(fleet, 0).connack.session_present


def a_node_that_owes_messages_is_told_repeatedly() -> None:
    """No frame of the home node arrives. Its client has received a message there, tries two other nodes that get no
    answer, and gets a new session at the last one. The two nodes in between tell the home node the filters of its
    session for the new owner, and can do so only once they are told themselves, one by the other."""
    fleet = Fleet(4)
    home, *others = numbers(fleet)
    publisher, other, client = fleet.connect(0, "p"), fleet.connect(-1, "other"), lasting(fleet, 0)
    for each in (other, client):
        subscribe(each, b"t", 1)
    fleet.advance(0.5)
    fleet.parted = {(home, number) for number in others}
    publish(publisher, b"t", b"one")
    taken = client.expect(Publish)
    client.send(Ack(PUBACK, taken.packet_id))
    client.drop()
    for place in (1, 2):
        fake = fleet[place].open(5, "c")
        fake.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.2)
        fake.drop()
    client = lasting(fleet, -1)
    assert not client.connack.session_present
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(4.0)
    client.expect(Suback)
    fleet.speak()
    fleet.advance(4.0)
    assert published(other.receive()) == [b"one"]
    assert published(client.receive()) == [], "it comes twice"
    publish(publisher, b"t", b"two")
    fleet.advance(0.2)
    assert published(client.receive()) == [b"two"]


def a_session_that_comes_too_late_goes_on_to_the_next_owner() -> None:
    """A client goes from home to another node, which does not get its session in time, and on to a last node, which is
    told that the node in between only owes it messages. No node is told more about owners and wills meanwhile."""
    fleet = Fleet(5)
    home, other, last, *_ = numbers(fleet)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    publish(publisher, b"t", b"one")
    fleet.parted = {(home, other), (last, other)}
    for place in (1, 2):
        client = fleet[place].open(5, "c")
        client.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.2)
    fleet.hold_owners()
    fleet.advance(3.0)
    for way in ((last, other), (home, other)):
        fleet.parted.discard(way)
        fleet[way[0] - 1].cluster.connected(other, fleet.now)
        fleet.advance(1.5)
    fleet.give_owners()
    fleet.advance(2.0)
    assert not client.expect(Connack).session_present
    fleet.advance(1.0)
    assert published(client.receive()) == [b"one"]
    assert "c" not in fleet[1].state.ctx.sessions


def a_session_whose_window_is_lost_is_absent() -> None:
    """A session is on its way to a node that dies and is forgotten, and its window was sent ahead. The client must not
    mistake a new message with an old packet id for one that it already has."""
    fleet = Fleet(3)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 2)
    publish(publisher, b"t", b"one", 2)
    taken = client.expect(Publish)
    client.send(Ack(PUBREC, taken.packet_id))
    client.drop()
    home, other, _ = numbers(fleet)
    fleet.mute = {(home, other)}
    again = fleet[1].open(5, "c")
    again.send(Connect(5, "c", False, properties=LASTING))
    fleet.advance(0.5)
    fleet.end(1)
    fleet.etcd.expire_lease("n2", fleet.now)
    fleet.advance(4.0)
    assert not fleet[0].cluster.forget("n2", False, fleet.now)
    fleet.advance(2.0)
    client = lasting(fleet, 1)
    assert not client.connack.session_present
    subscribe(client, b"t", 2)
    publish(publisher, b"t", b"two", 2)
    assert published(client.receive()) == [b"two"]


def a_claim_that_arrives_after_a_later_one_is_refused() -> None:
    """An owner's request for a session arrives after a later owner was given that session. No node has told the earlier
    owner so.
    """
    fleet = Fleet(3)
    home, late, last = numbers(fleet)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.mute = {(late, home), (last, late)}
    clients = [fleet[place].open(5, "c") for place in (1, 2)]
    for client in clients:
        client.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.2)
    fleet.mute.discard((late, home))
    fleet[1].cluster.connected(home, fleet.now)
    fleet.advance(0.3)
    assert clients[0].expect(Connack).reason == Reason.SERVER_BUSY


def unnoted(self: PeerReceivers, peer: Any, message: Any) -> None:
    """Processes a control message without recording that it was processed."""
    if self.control is not None:
        self.control(peer.number, message.payload)


take_window = SessionTransfer.take_window


def never_parted(self: SessionTransfer, session: Session) -> list[Outgoing]:
    """Does not record that part of a window was sent."""
    taken = take_window(self, session)
    assert session.moving is not None
    session.moving.parted = False
    return taken


moved = test_takeover.test_a_client_that_reconnects_elsewhere_finds_its_session_and_its_queue
claimed_in_turns = test_slow_takeovers.test_two_nodes_that_claim_in_turns_do_not_wait_for_each_other

MISTAKES: dict[str, Mistake] = {
    "two nodes wait for each other": Mistake(InboundClaims, "_turn_down", lambda *_: None, claimed_in_turns),
    "the window is not waited for": Mistake(InboundSession, "awaited", lambda _: False, moved),
    "the queue stays behind": Mistake(SessionTransfer, "take_queue", lambda *_: [], moved),
    "a late session stays although a later owner was told that there is none": Mistake(
        takeover_target, "_goes_on", lambda _: False, a_session_that_comes_too_late_goes_on_to_the_next_owner
    ),
    "a session without its window is present": Mistake(
        SessionTransfer, "take_window", never_parted, a_session_whose_window_is_lost_is_absent
    ),
    "an overtaken owner is given the session": Mistake(
        TakeoverSource, "_is_newer", lambda *_: False, a_claim_that_arrives_after_a_later_one_is_refused
    ),
    "a session is present though a later one may be": Mistake(
        waiting_connects, "unheard_of", lambda *_: [], a_session_is_absent_while_a_later_one_may_be_unreachable
    ),
    "a node that owes messages is told only once": Mistake(
        TakeoverTarget, "send_former_filters", lambda *_: None, a_node_that_owes_messages_is_told_repeatedly
    ),
    "control messages are processed again after a crash": Mistake(
        PeerReceivers, "_take_control", unnoted, a_control_message_is_processed_once_despite_a_crash
    ),
}


@each_scene(MISTAKES)
def test_the_scene_ends_well(scene: Callable[[], None]) -> None:
    scene()


@each_mistake(
    MISTAKES,
    "two nodes wait for each other",
    "the queue stays behind",
    "control messages are processed again after a crash",
)
def test_each_mistake_is_found(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.must_show(monkeypatch)
