"""What goes wrong at one moment only, made by hand; and for each the mistake made on purpose that it shows. Worlds
drawn from seeds come by these moments too rarely for a test.

One mistake of draining can do no harm any more, and is not made here: an offer that counts as taken. What is left to be
handed over is counted by the sessions that are here, again and again (``Drain._look``), not by the offers; so such an
offer is made once more, and whoever gets it twice finds by its epoch that it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.cluster import test_slow_takeovers, test_takeover, test_takeover_crashes
from tests.cluster.fleet import Fleet
from tests.cluster.test_drain import fleet_of, until
from tests.cluster.test_takeover import LASTING, PUBACK, PUBREC, lasting, publish, published, subscribe
from tests.cluster.test_takeover_crashes import clients_of, made
from tests.sim.world import LIVENESS_MAX

import starlingmq
from starlingmq.cluster.balance.drain import Drain
from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.membership import members
from starlingmq.cluster.takeover import takeover_target, waiting_connects
from starlingmq.cluster.takeover.cut_markers import CutMarkers
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_claims import InboundClaims
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.takeover import Takeovers
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.core.routing.delivery import Delivery
from starlingmq.core.routing.peer_receivers import PeerReceivers
from starlingmq.core.session.migration_state import OPEN
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.session import MOVED_PREFIX, Session
from starlingmq.core.session.session_transfer import SessionTransfer
from starlingmq.wire.mqtt import Ack, Connack, Connect, Packet, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.reasons import Reason


def numbers(fleet: Fleet) -> list[int]:
    return [node.cluster.number for node in fleet.nodes]


def what_came_before_a_mark_is_waited_for() -> None:
    """A third node has sent something before its mark, which the former owner can not give on for a while, and
    something after it, which comes straight."""
    fleet = Fleet(3)
    new, former, third = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.mute = {(new, third)}  # which is not asked for its mark
    client = lasting(fleet, 0)
    assert client.connack.session_present
    fleet.advance(0.2)
    fleet.mute.add((former, new))
    publish(publisher, b"t", b"before")
    fleet.mute.discard((new, third))
    fleet[0].cluster.connected(third, fleet.now)
    fleet.advance(0.2)
    publish(publisher, b"t", b"after", packet_id=2)
    fleet.advance(0.2)
    assert published(client.receive()) == []
    fleet.speak()
    fleet.advance(0.2)
    assert published(client.receive()) == [b"before", b"after"]


def what_a_node_says_is_heard_once_though_it_crashes() -> None:
    """A session's queue has come, and is stored; who gave it does not learn of that, and gives it again to the next
    life of the new owner. The move is not over, for a third node has not put its mark."""
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
    world.pass_time(0.5)
    assert new.process is not None and new.process.state.ctx.sessions["roamer"].moving is not None
    new.crash(False)
    world.network.heal(deaf)
    world.pass_time(0.3)
    world.start_if_wanted(new)
    world.pass_time(1.0)
    world.network.heal(apart)
    roamer.homes = []
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")
    counts = [count for (name, _), got in world.books.got.items() if name == "roamer" for count in got.values()]
    assert counts == [1, 1, 1], "something came twice"


def a_later_session_that_can_not_be_reached_is_thought_of() -> None:
    """A client was elsewhere while its node was cut off, and comes back to it when the other one is."""
    fleet = Fleet(3)
    one, other, third = numbers(fleet)
    fleet.mute = {(third, one)}  # which does not hear of it from there either
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


def acknowledged(packets: list[Packet]) -> bool:
    """Whether a SUBACK is among them, and grants what was asked for."""
    return any(isinstance(packet, Suback) and max(packet.reasons) < 0x80 for packet in packets)


def a_mark_that_overtakes_what_it_is_about_divides_all_the_same() -> None:
    """The former owner has not been asked yet when it hears a third node's mark for the new one, whose client begins
    anew. What comes after that mark is not the former owner's to give."""
    fleet = Fleet(3)
    new, former, _ = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.parted = {(new, former)}
    client = lasting(fleet, 0)
    assert not client.connack.session_present
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))  # its SUBACK waits for the marks
    fleet.advance(4.0)
    publish(publisher, b"t", b"one")
    fleet.advance(0.2)
    fleet.speak()
    fleet.advance(5.0)
    packets = client.receive()
    assert published(packets) == [b"one"] and acknowledged(packets)


def who_owes_learns_late_what_it_owes() -> None:
    """Nothing that a node sends arrives. Its client has taken a message there, tries two other nodes that are not
    answered, and begins anew at a last one. That one is told by those between what its client was subscribed to; and
    only when they hear so themselves, one from the other."""
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


def an_owner_in_between_has_put_marks() -> None:
    """A client began anew at another node, took a message there, and is back where its session was; which hears of all
    that only when it has given that session to itself, as to the latest owner."""
    fleet = Fleet(5)
    former, between, third, *others = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.parted = {(between, former), (third, former)}
    fleet.mute = {(other, former) for other in others}
    client = lasting(fleet, 1)
    assert not client.connack.session_present
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))  # its SUBACK waits for the marks
    fleet.advance(4.0)
    publish(publisher, b"t", b"one")
    taken = client.expect(Publish)  # before its SUBACK, which waits for marks that do not come
    client.send(Ack(PUBACK, taken.packet_id))
    client.drop()
    fleet.parted, fleet.mute = set(), fleet.mute | fleet.parted  # it is heard, and slow
    fleet.advance(1.0)
    client = fleet[0].open(5, "c")
    client.send(Connect(5, "c", False, properties=LASTING))
    fleet.advance(0.2)
    fleet.speak()
    fleet.advance(4.0)
    assert client.expect(Connack).session_present
    publish(publisher, b"t", b"two")
    fleet.advance(0.2)
    assert published(client.receive()) == [b"two"]


def what_comes_too_late_for_its_owner_goes_on_to_the_next() -> None:
    """A client went from home to another node, which did not get its session in time, and on to a last one, which is
    told so: the other one is only owed it. That one waits for etcd, so its own client has not been answered yet."""
    fleet = Fleet(3)
    home, other, last = numbers(fleet)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    publish(publisher, b"t", b"one")
    fleet.parted = {(home, other), (last, other)}
    for place in (1, 2):
        client = fleet[place].open(5, "c")
        client.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.2)
    fleet.etcd.lose_leader(fleet.now, 4.0)
    fleet.advance(3.0)
    for way in ((last, other), (home, other)):
        fleet.parted.discard(way)
        fleet[way[0] - 1].cluster.connected(other, fleet.now)
        fleet.advance(0.1)
    fleet.advance(2.0)
    assert not client.expect(Connack).session_present
    fleet.advance(1.0)
    assert published(client.receive()) == [b"one"]
    assert "c" not in fleet[1].state.ctx.sessions


def what_comes_back_without_its_window_begins_anew() -> None:
    """A session was on its way to a node that dies and is forgotten, and its window was ahead. Its client must not take
    what now comes under an old packet id for what it has already."""
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


def a_mark_that_overtakes_the_session_itself_divides_all_the_same() -> None:
    """A session is still on its way to a node that its client has left. A third one's mark for the next owner, whom
    nothing of that can reach, is there before it is."""
    fleet = Fleet(4)
    home, between, new, _ = numbers(fleet)
    publisher, client = fleet.connect(3, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 2)
    client.drop()
    fleet.parted = {(home, between), (new, between)}
    for place in (1, 2):
        client.drop()
        client = fleet[place].open(5, "c")
        client.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.2)
    fleet.advance(4.0)
    assert not client.expect(Connack).session_present
    client.send(Subscribe(1, [SubscribeRequest(b"t", 2)]))  # its SUBACK waits for the marks
    fleet.advance(4.0)
    fleet.parted.discard((home, between))
    fleet[0].cluster.connected(between, fleet.now)
    fleet.advance(0.5)
    publish(publisher, b"t", b"one", 2)
    early = client.receive()
    assert published(early) == [b"one"]
    fleet.speak()
    fleet.advance(5.0)
    late = client.receive()
    assert published(late) == [], "it comes twice"
    assert acknowledged([*early, *late])
    assert not any(node.cluster.takeovers.outbound_count() for node in fleet.nodes), "somebody waits for a mark"


def who_joins_twice_is_heard_again() -> None:
    """A node that joins puts a mark, and a third one is away, so it is not counted. Its lease runs out: the others
    forget it, and it joins once more."""
    fleet = Fleet(3)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    away = fleet[2].cluster.number
    for node in fleet.nodes[:2]:
        fleet.cut(node.cluster.number, away)
    fleet.advance(4.0)
    joiner = fleet.begin()
    fleet.cut(away + 1, away)
    fleet.advance(0.5)
    assert joiner.cluster.number == away + 1
    lasting(fleet, 1)
    fleet.advance(0.5)
    fleet.etcd.expire_lease(joiner.name, fleet.now)
    fleet.advance(0.5)
    assert joiner.cluster.members.state == "joining"
    fleet.heal()
    fleet.advance(10.0)
    assert joiner.cluster.serving
    for number, place in enumerate((0, 3, 1)):
        client = lasting(fleet, place)
        assert client.connack.session_present
        fleet.advance(0.5)
        publish(fleet.connect(3, "q"), b"t", b"%d" % number)
        publish(publisher, b"t", b"again", packet_id=2)
        fleet.advance(0.1)
        assert published(client.receive())[-2:] == [b"%d" % number, b"again"]
    assert not any(node.cluster.takeovers.migrations.all_inbound() for node in fleet.nodes), "somebody waits for a mark"


def who_asks_too_late_is_refused() -> None:
    """What an owner asked for comes late, when a later one has been given it; and nobody has told the former so."""
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


def what_nobody_has_taken_yet_is_waited_for() -> None:
    """Offers of a node that drains do not arrive for a while."""
    fleet = fleet_of(3)
    first, second, third = numbers(fleet)
    lasting(fleet, 0).drop()
    fleet.mute = {(first, second), (first, third)}
    drain = fleet[0].cluster.drain
    fleet[0].cluster.begin_drain(fleet.now, 30.0)
    fleet.advance(1.0)
    assert not drain.done
    fleet.speak()
    until(fleet, lambda: drain.done)
    assert drain.handed == 1


def drained(fleet: Fleet, place: int) -> Callable[[], bool]:
    """Whether that node ends, as ``net.peers.cluster_shell`` has it."""
    cluster = fleet[place].cluster
    return lambda: cluster.drain.done and cluster.flushed()


def what_still_comes_to_who_drains_goes_on() -> None:
    """A session has been handed over, but a third node does not know that yet, and publishes to where it was."""
    fleet = fleet_of(3)
    _, second, third = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.advance(0.6)  # the third one has a client, as all know: the second one is offered the session
    fleet.mute = {(second, third)}  # which is not asked for its mark
    fleet[0].cluster.begin_drain(fleet.now, 30.0)
    ends = drained(fleet, 0)
    until(fleet, lambda: fleet[0].cluster.drain.handed == 1)
    fleet.advance(3.0)
    early = ends()
    if early:
        fleet.end(0)
    publish(publisher, b"t", b"one")
    fleet.speak()
    if not early:
        until(fleet, ends)
        fleet.end(0)
    client = lasting(fleet, 0)
    assert client.connack.session_present
    fleet.advance(0.5)
    assert published(client.receive()) == [b"one"], "what came meanwhile is gone"


def what_is_owed_is_delivered_before_the_end() -> None:
    """What clients published at the node that drains is still on its line to another one."""
    fleet = fleet_of(3)
    first, second, _ = numbers(fleet)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    fleet.mute = {(first, second)}
    publish(publisher, b"t", b"one")
    fleet[0].cluster.begin_drain(fleet.now, 30.0)
    ends = drained(fleet, 0)
    fleet.advance(4.0)
    early = ends()
    if early:
        fleet.end(0)
    fleet.speak()
    if not early:
        until(fleet, ends)
        fleet.end(0)
    assert published(client.receive()) == [b"one"], "what was acknowledged is gone"


Mistake = tuple[Any, str, Callable[..., object], Callable[[], None]]


def unnoted(self: PeerReceivers, peer: Any, message: Any) -> None:
    """That it was heard is not stored."""
    if self.control is not None:
        self.control(peer.number, message.payload)


take_window = SessionTransfer.take_window


def never_parted(self: SessionTransfer, session: Session) -> list[Outgoing]:
    """That some of a window has gone is not noted."""
    taken = take_window(self, session)
    assert session.moving is not None
    session.moving.parted = False
    return taken


moved = test_takeover.test_a_client_that_comes_back_elsewhere_finds_its_session_and_what_was_queued
marks_hold = test_takeover_crashes.test_marks_of_a_session_that_leaves_hold_after_a_crash
claimed_in_turns = test_slow_takeovers.test_two_nodes_that_claim_in_turns_do_not_wait_for_each_other

MISTAKES: dict[str, Mistake] = {
    "order is not waited for": (InboundSession, "ordered", lambda *_: True, what_came_before_a_mark_is_waited_for),
    "what comes here is taken at once": (
        InboundSession,
        "stage",
        lambda *_: OPEN,
        what_came_before_a_mark_is_waited_for,
    ),
    "what came before the marks is taken from both": (
        Delivery,
        "_takes",
        lambda *_: True,
        what_came_before_a_mark_is_waited_for,
    ),
    "the former owner goes on after the marks": (OutboundSession, "mark", lambda *_: None, moved),
    "marks are forgotten in a crash": (OutboundSession, "restore", lambda *_: None, marks_hold),
    "two wait for each other": (InboundClaims, "_turn_down", lambda *_: None, claimed_in_turns),
    "nobody waits for the window": (InboundSession, "awaited", lambda _: False, moved),
    "the queue stays behind": (SessionTransfer, "take_queue", lambda *_: [], moved),
    "what comes late is a session, though a later owner was told that there is none": (
        takeover_target,
        "_goes_on",
        lambda _: False,
        what_comes_too_late_for_its_owner_goes_on_to_the_next,
    ),
    "a session without its window is present": (
        SessionTransfer,
        "take_window",
        never_parted,
        what_comes_back_without_its_window_begins_anew,
    ),
    "marks that come before the session they are about are not looked at": (
        InboundDelivery,
        "overtaken",
        lambda *_: None,
        a_mark_that_overtakes_the_session_itself_divides_all_the_same,
    ),
    "who joins once more is who it was before": (
        members,
        "replace",
        lambda me, incarnation=0, **changes: replace(me, **changes),
        who_joins_twice_is_heard_again,
    ),
    "who was overtaken is given it": (TakeoverSource, "_is_newer", lambda *_: False, who_asks_too_late_is_refused),
    "a session is present though a later one may be": (
        waiting_connects,
        "unheard_of",
        lambda *_: [],
        a_later_session_that_can_not_be_reached_is_thought_of,
    ),
    "marks that come before the takeover they belong to are not looked at": (
        CutMarkers,
        "_came_for",
        lambda *_: None,
        a_mark_that_overtakes_what_it_is_about_divides_all_the_same,
    ),
    "who owes says only once what it owes": (
        TakeoverTarget,
        "tell_owner",
        lambda *_: None,
        who_owes_learns_late_what_it_owes,
    ),
    "marks count for what goes to their own owner": (
        OutboundSession,
        "is_earlier",
        lambda self, epoch: self.epoch <= epoch,
        an_owner_in_between_has_put_marks,
    ),
    "control is heard again after a crash": (
        PeerReceivers,
        "_take_control",
        unnoted,
        what_a_node_says_is_heard_once_though_it_crashes,
    ),
    "it ends before sessions are gone": (Drain, "_hopeful", lambda *_: False, what_nobody_has_taken_yet_is_waited_for),
    "it ends while something is on its way": (
        Takeovers,
        "handing_over",
        lambda _: 0,
        what_still_comes_to_who_drains_goes_on,
    ),
    "it ends while others are owed something": (
        ClusterState,
        "flushed",
        lambda _: True,
        what_is_owed_is_delivered_before_the_end,
    ),
}


SCENES = list(dict.fromkeys(scene for *_, scene in MISTAKES.values() if not scene.__name__.startswith("test_")))


@pytest.mark.parametrize("scene", SCENES)
def test_hazards(scene: Callable[[], None]) -> None:
    scene()


@pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, method, wrong, scene = MISTAKES[name]
    monkeypatch.setattr(kind, method, wrong)
    with pytest.raises(AssertionError):
        scene()
