"""A session is its user's at every node: another user's connection elsewhere gets nothing of it."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_drain import drain, fleet_of
from tests.cluster.test_handshakes import got, hold, release, watch
from tests.cluster.test_takeover import LASTING, publish, published, subscribe
from tests.harness import FakeClient

from starlingmq.cluster.links.control_frames import HandshakeCall
from starlingmq.cluster.links.peer_frames import Data, Envelope
from starlingmq.cluster.qos2 import qos2_store
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.cluster.takeover.transfer_frames import Barrier, Head, Mark, Takeover, encode, pack, unpack
from starlingmq.core.limits.access import SUBSCRIBE, Grant, Rights
from starlingmq.core.session.session import Client
from starlingmq.core.session.session_user import RULES
from starlingmq.net.peers import peer_codec
from starlingmq.wire.mqtt import PUBACK, Ack, Connack, Connect, Disconnect, Publish, Will
from starlingmq.wire.properties import RECEIVE_MAXIMUM, WILL_DELAY_INTERVAL
from starlingmq.wire.reasons import Reason

NOT_FOUND = Reason.PACKET_IDENTIFIER_NOT_FOUND
LARGE = bytes(20_000)
MESSAGES = 20


def join(fleet: Fleet, place: int, user: str, clean: bool = False, will: Will | None = None) -> FakeClient:
    return fleet.connect(place, "c", clean_start=clean, username=user, will=will, properties=LASTING)


def names(fleet: Fleet, place: int) -> list[str]:
    return [name for name in fleet[place].state.ctx.sessions if not name.startswith("$node/")]


@pytest.mark.parametrize("connected", [True, False])
def test_another_user_elsewhere_begins_a_new_session(connected: bool) -> None:
    fleet = Fleet(3)
    publisher, ann = fleet.connect(2, "p"), join(fleet, 0, "ann")
    subscribe(ann, b"t", 1)
    publish(publisher, b"t", b"in flight")
    if not connected:
        ann.drop()
        publish(publisher, b"t", b"queued")
    fleet.carried.clear()
    bob = join(fleet, 1, "bob")
    assert not bob.connack.session_present
    fleet.advance(1.0)
    publish(publisher, b"t", b"later")
    fleet.advance(1.0)
    assert published(bob.receive()) == []
    sent = [e.body.blob for e in fleet.carried if isinstance(e.body, Data) and e.target == 2]
    assert not any(b"in flight" in blob or b"queued" in blob for blob in sent), "it has not left its node"
    assert names(fleet, 0) == [] and fleet[0].state.ctx.counters.dropped["another_user"] == 1 + (not connected)
    if connected:
        assert Reason.SESSION_TAKEN_OVER in [p.reason for p in ann.receive() if isinstance(p, Disconnect)]


def test_the_owner_goes_with_the_session_and_finds_it_anywhere() -> None:
    fleet = Fleet(3)
    join(fleet, 0, "ann").drop()
    for place in (1, 2, 0):
        again = join(fleet, place, "ann")
        assert again.connack.session_present and fleet[place].state.ctx.sessions["c"].owner == "ann"
        again.drop()
        fleet.advance(0.5)
    assert not join(fleet, 1, "bob").connack.session_present


def test_users_that_share_client_ids_share_sessions_across_nodes() -> None:
    fleet = Fleet(2, session_owner=RULES["client_id"])
    hold(join(fleet, 0, "ann"))
    bob = join(fleet, 1, "bob")
    assert bob.connack.session_present and release(fleet, bob) == 0


def test_messages_at_an_unreachable_node_never_come_to_another_user() -> None:
    fleet = Fleet(3)
    publisher, ann = fleet.connect(2, "p"), join(fleet, 0, "ann")
    subscribe(ann, b"t", 1)
    ann.drop()
    publish(publisher, b"t", b"before")
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(6.0)
    bob = join(fleet, 1, "bob")
    assert not bob.connack.session_present
    subscribe(bob, b"u", 1)
    fleet.heal()
    fleet.advance(6.0)
    assert published(bob.receive()) == [] and names(fleet, 0) == []
    assert fleet[0].state.ctx.counters.dropped["another_user"] == 1


def test_messages_on_their_way_to_the_first_user_do_not_go_on_to_the_second() -> None:
    """n1 has the session and cannot be reached; its user goes to n2, another user to n3, and then n1 is back."""
    fleet = Fleet(3)
    publisher, ann = fleet.connect(2, "p"), join(fleet, 0, "ann")
    subscribe(ann, b"t", 1)
    ann.drop()
    publish(publisher, b"t", b"before")
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(6.0)
    subscribe(join(fleet, 1, "ann"), b"t", 1)
    publish(publisher, b"t", b"meanwhile")
    bob = join(fleet, 2, "bob")
    fleet.advance(1.0)
    fleet.heal()
    fleet.advance(6.0)
    assert published(bob.receive()) == []
    assert names(fleet, 0) == names(fleet, 1) == []


def test_a_mark_that_is_there_before_the_question_hands_nothing_to_another_user() -> None:
    """A node that has a session also learns of its new owner from any node's cut marker."""
    fleet = Fleet(3)
    publisher, ann = fleet.connect(2, "p"), join(fleet, 0, "ann")
    subscribe(ann, b"t", 1)
    ann.drop()
    publish(publisher, b"t", b"queued")
    session = fleet[0].state.ctx.sessions["c"]
    mark = Mark(2, [("c", session.epoch + 1000)], [], {"c": "bob"})
    fleet[0].cluster.takeovers.take(3, pack([encode(mark)]))
    assert session.ended and fleet[0].state.ctx.counters.dropped["another_user"] == 1


@pytest.mark.parametrize("reachable", [True, False])
def test_another_user_completes_no_handshake_of_the_first_one(reachable: bool) -> None:
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    hold(join(fleet, 0, "ann"), b"held")
    join(fleet, 1, "ann").drop()  # the handshake stays at the first node
    if not reachable:
        fleet.cut(2, 1)
        fleet.cut(2, 3)
        fleet.advance(6.0)
    bob = join(fleet, 2, "bob")
    if reachable:
        assert release(fleet, bob) == NOT_FOUND
    else:
        bob.send_all([])
        fleet.heal()
        fleet.advance(2.0)
        assert release(fleet, bob) == NOT_FOUND
    assert got(watcher) == []


def test_the_user_of_a_stored_handshake_completes_it_after_a_restart() -> None:
    kept: dict[bytes, bytes] = {}
    routed: list[object] = []

    def store(key: bytes, value: bytes | None) -> None:
        if value is not None:
            kept[key] = value

    fleet = Fleet(2)
    hold(join(fleet, 0, "ann"))
    inbound = fleet[0].state.ctx.sessions["c"].inbound
    assert inbound is not None
    qos2_store.Qos2Store(routed.append, store, lambda *_: None, 3600.0).leave("c", 7, inbound, fleet.now, "ann")
    again = qos2_store.Qos2Store(routed.append, store, lambda *_: None, 3600.0)
    again.restore(kept)
    again.cancel("c", 5, 9, "bob")
    assert again.look("c", 5, 9, 0, "bob")[0] == qos2_store.UNKNOWN and again.newest("c", 9, 0, "bob") == 0
    assert again.release("c", 5, 9, 0, 1, fleet.now, "bob")[0] == qos2_store.UNKNOWN and routed == []
    assert again.release("c", 5, 9, 0, 1, fleet.now, "ann")[0] == qos2_store.COMPLETED and len(routed) == 1


def test_the_will_of_the_first_user_is_published_when_another_one_has_its_client_id_elsewhere() -> None:
    fleet = Fleet(2)
    watcher = fleet.connect(0, "w")
    subscribe(watcher, b"gone", 0)
    join(fleet, 0, "ann", will=Will(b"gone", b"ann's", properties={WILL_DELAY_INTERVAL: 60}))
    join(fleet, 1, "bob")
    fleet.advance(1.0)
    assert published(watcher.receive()) == [b"ann's"]


def test_another_user_does_not_cancel_a_will_at_a_node_that_is_gone() -> None:
    fleet = Fleet(3)
    watcher = fleet.connect(1, "w")
    subscribe(watcher, b"gone", 0)
    join(fleet, 0, "ann", will=Will(b"gone", b"ann's", properties={WILL_DELAY_INTERVAL: 60}))
    fleet.advance(1.0)
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.end(0)
    fleet.advance(6.0)
    join(fleet, 1, "bob")
    fleet.advance(120.0, 0.1)
    assert published(watcher.receive()) == [b"ann's"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("connected", [True, False])
def test_another_user_elsewhere_is_refused_if_the_settings_say_so(clean: bool, connected: bool) -> None:
    fleet = Fleet(3, session_owner=RULES["refuse"])
    publisher, ann = fleet.connect(2, "p"), join(fleet, 0, "ann")
    subscribe(ann, b"t", 1)
    if not connected:
        ann.drop()
    bob = fleet[1].open(5, "c")
    bob.send(Connect(5, "c", clean, username="bob", properties=LASTING))
    fleet.advance(1.0)
    assert bob.expect(Connack).reason == Reason.CLIENT_IDENTIFIER_NOT_VALID and bob.closed
    publish(publisher, b"t", b"x")
    fleet.advance(1.0)
    if connected:
        assert not ann.closed and published(ann.receive()) == [b"x"]
    else:
        assert published(join(fleet, 2, "ann").receive()) == [b"x"]
    assert names(fleet, 1) == []


@pytest.mark.parametrize("kept", ["connected", "away", "elsewhere"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("connected", [True, False])
def test_a_user_refused_elsewhere_does_not_lock_out_the_first_user(connected: bool, clean: bool, kept: str) -> None:
    """The node that keeps the session cannot be asked for a while, and another user starts one."""
    fleet = Fleet(3, session_owner=RULES["refuse"])
    publisher, ann = fleet.connect(2, "p"), join(fleet, 0, "ann")
    subscribe(ann, b"t", 1)
    if kept != "connected":
        ann.drop()
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(6.0)
    bob = join(fleet, 1, "bob", clean=clean)
    assert bob.connack.reason == 0 and not bob.connack.session_present
    subscribe(bob, b"t", 1)
    if not connected:
        bob.drop()
    if kept == "elsewhere":
        fleet.cuts -= {(1, 3), (3, 1)}
        fleet.mute |= {(1, 2), (2, 1)}
        fleet.advance(1.0)
        first = fleet[2].open(5, "c")
        first.send(Connect(5, "c", False, username="ann", properties=LASTING))
        fleet.advance(6.0)
    fleet.heal()
    fleet.speak()
    fleet.advance(8.0)
    if connected:
        assert Reason.SESSION_TAKEN_OVER in [p.reason for p in bob.receive() if isinstance(p, Disconnect)]
    assert ann.closed == (kept != "connected")
    publish(publisher, b"t", b"hers")
    for place in (1, 2, 0):
        again = join(fleet, place, "ann")
        assert again.connack.reason == 0 and again.connack.session_present
        if place == 1 and kept != "connected":
            assert published(again.receive()) == [b"hers"]
        again.drop()
        fleet.advance(1.0)
    for place in (0, 1, 2):
        bob = fleet[place].open(5, "c")
        bob.send(Connect(5, "c", clean, username="bob", properties=LASTING))
        fleet.advance(1.0)
        assert bob.expect(Connack).reason == Reason.CLIENT_IDENTIFIER_NOT_VALID


def test_frames_of_nodes_that_know_no_owners_are_read() -> None:
    for said, since in ((Takeover("c", 7, False, False, "ann"), 1), (Head("c", 7, 5, owner="ann"), 4)):
        whole = msgspec.msgpack.decode(encode(said))
        (old,) = unpack(msgspec.msgpack.encode([whole[:-since]]))
        assert isinstance(old, Takeover | Head) and (old.client_id, old.epoch) == ("c", 7)
        assert (old.user if isinstance(old, Takeover) else old.owner) is None
    for marked, since in (
        (Barrier(1, 2, [("c", 7)], [], {"c": "ann"}), 2),
        (Mark(1, [("c", 7)], [], {"c": "ann"}), 1),
    ):
        (older,) = unpack(msgspec.msgpack.encode([msgspec.msgpack.decode(encode(marked))[:-since]]))
        assert isinstance(older, Barrier | Mark) and older.users == {}
    call = Envelope(1, 2, 3, 4, HandshakeCall(9, (("c", 5, 7, 0, 0),), ("ann",)))
    frame = peer_codec.encode(call)
    assert peer_codec.split(peer_codec.join([frame])) == [call]
    head, values = frame[:5], msgspec.msgpack.decode(frame[5:])
    del values[3:]  # users
    (older_call,) = peer_codec.split(peer_codec.join([head + msgspec.msgpack.encode(values)]))
    assert older_call.body == HandshakeCall(9, (("c", 5, 7, 0, 0),))


def test_late_messages_for_the_first_user_do_not_come_to_the_second_at_the_same_node() -> None:
    fleet = Fleet(3)
    publisher, ann = fleet.connect(2, "p"), join(fleet, 0, "ann")
    subscribe(ann, b"t", 1)
    ann.drop()
    publish(publisher, b"t", b"before")
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(6.0)
    join(fleet, 1, "ann").drop()
    bob = join(fleet, 1, "bob")
    fleet.heal()
    fleet.advance(6.0)
    assert not bob.connack.session_present and published(bob.receive()) == []


@pytest.mark.parametrize("reachable", [True, False])
def test_messages_handed_over_without_a_user_are_dropped(reachable: bool) -> None:
    """As one of an earlier version does, which does not read that field."""
    fleet = Fleet(3)
    publisher, ann = fleet.connect(2, "p"), join(fleet, 0, "ann")
    subscribe(ann, b"t", 1)
    ann.drop()
    publish(publisher, b"t", b"before")
    asked = TakeoverSource.asked

    def ignorant(self: TakeoverSource, node: int, said: Takeover) -> None:
        asked(self, node, Takeover(said.client_id, said.epoch, said.clean, said.offered))

    if not reachable:
        fleet.cut(1, 2)
        fleet.cut(1, 3)
        fleet.advance(6.0)
    with patch.object(TakeoverSource, "asked", ignorant):
        bob = join(fleet, 1, "bob")
        fleet.heal()
        fleet.advance(6.0)
    assert not bob.connack.session_present and published(bob.receive()) == []
    publish(publisher, b"t", b"later")
    fleet.advance(1.0)
    assert published(bob.receive()) == [] and names(fleet, 0) == []


def test_a_session_that_a_node_gives_away_without_its_client_keeps_its_owner() -> None:
    fleet = fleet_of(2)
    join(fleet, 0, "ann").drop()
    drain(fleet, 0)
    session = fleet[1].state.ctx.sessions["c"]
    assert session.owner == "ann" and not join(fleet, 1, "bob").connack.session_present


@pytest.mark.parametrize("window", [1, 1000])
@pytest.mark.parametrize("in_flight", [True, False])
def test_messages_that_waited_elsewhere_are_checked_against_the_current_rules(in_flight: bool, window: int) -> None:
    """More than goes in one message between nodes: some of it comes when its client is there already."""
    fleet = Fleet(3)
    publisher = fleet.connect(2, "p")
    ann = fleet.connect(0, "c", clean_start=False, username="ann", properties=LASTING)
    subscribe(ann, b"secret", 1)
    subscribe(ann, b"open", 1)
    if in_flight:
        publish(publisher, b"secret", b"in flight")
    ann.drop()
    for number in range(MESSAGES):
        publish(publisher, b"secret", b"secret" + LARGE)
        publish(publisher, b"open", b"open %d" % number + LARGE)
    fleet.advance(1.0)
    again = fleet[1].open(5, "c")
    again.client.rights = Rights([Grant(False, SUBSCRIBE, 0, [b"secret"], False, b"")], True)
    again.send(Connect(5, "c", False, username="ann", properties={**LASTING, RECEIVE_MAXIMUM: window}))
    fleet.advance(1.0)
    assert again.expect(Connack).session_present
    got: list[bytes] = []
    while packets := [packet for packet in again.receive() if isinstance(packet, Publish)]:
        got += [packet.payload for packet in packets]
        for packet in packets:
            again.send(Ack(PUBACK, packet.packet_id))
        fleet.advance(1.0)
    assert got == [b"open %d" % number + LARGE for number in range(MESSAGES)]
    assert fleet[1].state.ctx.counters.dropped["revoked"] == MESSAGES + in_flight


@pytest.mark.parametrize("allowed", [True, False])
def test_a_will_of_a_node_that_is_gone_is_checked_against_the_rules_of_the_node_that_publishes_it(
    allowed: bool,
) -> None:
    fleet = Fleet(3)
    watcher = fleet.connect(1, "w")
    subscribe(watcher, b"gone", 0)
    join(fleet, 0, "ann", will=Will(b"gone", b"ann's"))
    fleet.advance(1.0)
    names_asked: list[str] = []

    def rights_of(client: Client) -> Rights | None:
        names_asked.append(client.username)
        return Rights([], allowed)

    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.end(0)
    for node in fleet.nodes:
        node.state.ctx.rights_of = rights_of
    fleet.advance(60.0, 0.1)
    assert names_asked == ["ann"]
    assert published(watcher.receive()) == ([b"ann's"] if allowed else [])
    assert sum(node.state.ctx.counters.dropped.get("revoked", 0) for node in fleet.nodes) == (not allowed)
