"""Heartbeats that tell only what has changed. Under loss, doubling and delay: ``world``, and the lives in it."""

from __future__ import annotations

from tests.cluster.fleet import Fleet
from tests.cluster.mistakes import numbers

from starlingmq.cluster.links.control_frames import Heartbeat, MemberInfo, Membership
from starlingmq.cluster.links.heartbeat_changes import FORGOTTEN_MAX, HeartbeatReader, HeartbeatWriter
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.net.peers.peer_codec import encode

MEMBERS = Membership(5, tuple([MemberInfo(f"n{number}", number, 1, f"n{number}:1") for number in (1, 2, 3)]))


def beat(number: int, **values: object) -> Heartbeat:
    """A heartbeat of node 1 with these values."""
    said = {"vector": {2: (1, 7), 3: (1, 9)}, "heard": {2: 1, 3: 1}, "connected": frozenset([2, 3]), **values}
    return Heartbeat(1, 4, serving=True, membership=MEMBERS, relayed={}, number=number, taken={2: 8, 3: 9}, **said)  # type: ignore[arg-type]


def test_a_node_that_has_confirmed_nothing_is_told_all() -> None:
    writer = HeartbeatWriter(1)
    writer.write(beat(1))
    told = writer.to(2, 0)
    assert told.since == 0 and told.vector == {2: (1, 7), 3: (1, 9)} and told.membership == MEMBERS
    assert told.taken == {2: 8}, "a node needs its own confirmation only"


def test_only_what_has_changed_is_told_until_it_is_confirmed() -> None:
    writer, reader = HeartbeatWriter(1), HeartbeatReader()
    writer.write(beat(1))
    reader.read(1, 1, writer.to(2, 0))
    writer.write(beat(2, heard={2: 1}, connected=frozenset([2])))
    assert writer.to(2, 1).changed == (3,)
    writer.write(beat(3, heard={2: 1}, connected=frozenset([2]), listeners=("mqtt://a:1",)))
    told = writer.to(2, 1)  # the second one was lost
    assert set(told.changed) == {0, 3} and told.membership == Membership(5, ())
    read = reader.read(1, 1, told)
    assert read.heard == {2: 1} and read.connected == {2} and read.vector[3] == (1, 9)
    assert read.membership == MEMBERS and read.listeners == ("mqtt://a:1",) and read.since == 0
    writer.write(beat(4, heard={2: 1}, connected=frozenset([2]), listeners=("mqtt://a:1",)))
    assert writer.to(2, 3).changed == ()


def test_what_cannot_be_read_says_nothing() -> None:
    writer, reader = HeartbeatWriter(1), HeartbeatReader()
    writer.write(beat(1))
    first = writer.to(2, 0)
    writer.write(beat(2))
    second = writer.to(2, 1)
    assert reader.read(1, 1, second).since == 1, "its first one is missing"
    assert reader.read(1, 1, first).since == 0
    assert reader.read(1, 1, second).since == 0
    for late in (first, second):
        assert reader.read(1, 1, late).since != 0, "it comes twice"
    assert reader.read(1, 2, second).since == 1, "it is a change of what another incarnation has said"
    assert reader.read(1, 2, first).since == 0
    assert reader.read(1, 1, first).since != 0, "it is of an earlier incarnation"
    reader.keep({2: None})
    assert reader.read(1, 2, second).since == 1, "the sender was forgotten"


def test_of_nodes_that_are_gone_not_all_is_kept() -> None:
    """A node that has missed that much is told all."""
    writer = HeartbeatWriter(1)
    last = FORGOTTEN_MAX + 3
    for number in range(1, last):
        writer.write(beat(number, vector={100 + number: (1, 1)}))
    assert writer.to(2, 1).since == 0
    assert writer.to(2, last - 2).since == last - 2


def idle_bytes(fleet: Fleet) -> float:
    """Bytes of a heartbeat while nothing happens, on average."""
    fleet.advance(3.0)
    fleet.carried.clear()
    fleet.advance(2.0)
    beats = [envelope for envelope in fleet.carried if isinstance(envelope.body, Heartbeat)]
    return sum(len(encode(envelope)) for envelope in beats) / len(beats)


def test_an_idle_heartbeat_does_not_grow_with_the_cluster() -> None:
    assert idle_bytes(Fleet(8)) <= idle_bytes(Fleet(2)) + 1.0


def test_a_node_that_is_cut_off_is_told_of_by_changes() -> None:
    fleet = Fleet(4)
    fleet.advance(3.0)
    first, *_, last = numbers(fleet)
    fleet.carried.clear()
    for number in numbers(fleet)[:-1]:
        fleet.cut(number, last)
    fleet.advance(5.0)
    told = [
        envelope.body
        for envelope in fleet.carried
        if isinstance(envelope.body, Heartbeat) and envelope.source == first and envelope.target != last
    ]
    assert all(each.since for each in told), "a whole one was not needed"
    assert not any(node.cluster.view.is_connected(last) for node in fleet.nodes[:-1])
    fleet.heal()
    fleet.advance(5.0)
    assert all(node.cluster.serving for node in fleet.nodes)


def test_a_relay_does_not_read_what_is_for_another_node() -> None:
    fleet = Fleet(3)
    fleet.advance(3.0)
    first, second, _ = numbers(fleet)
    quorum = fleet[2].cluster.view.quorum
    assert quorum is not None
    before = quorum.taken()[first]
    body = beat(before + 100)
    fleet[2].cluster.received(Envelope(first, 1, second, 1, body), fleet.now)
    assert quorum.taken()[first] == before
