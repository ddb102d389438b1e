"""Packets in one read have the same outcome as one by one, although acknowledgements are handled in runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness import FakeClient, World

from starlingmq.wire.mqtt import Ack, Packet, Pingreq, Publish, Subscribe, SubscribeRequest, ack_frame, ack_run, encode
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import MAXIMUM_PACKET_SIZE

ids = st.integers(1, 5)
acks = st.builds(Ack, st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP]), ids)
runs = st.builds(
    lambda kind, first, count: [Ack(kind, first + n) for n in range(count)],
    st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP]),
    ids,
    st.integers(1, 4),
)
publishes = st.builds(
    lambda qos, id: Publish(b"t", b"", qos, False, False, id if qos else 0), st.sampled_from([0, 1, 1, 2, 2]), ids
)
packets = st.lists(
    st.one_of(runs, publishes.map(lambda one: [one]), acks.map(lambda one: [one]), st.just([Pingreq()])), max_size=14
).map(lambda parts: [packet for part in parts for packet in part])


def handshakes(world: World) -> object:
    """Return the broker's state of the session."""
    session = world.state.ctx.sessions["c"]
    window, inbound = session.window, session.inbound
    return (
        None if window is None else ([(id, one.stage, one.qos) for id, one in window.entries.items()], window.bytes),
        None if inbound is None else ([(id, one.message is None) for id, one in inbound.entries.items()], inbound.held),
        0 if session.queue is None else len(session.queue),
    )


def the_long_way(packet: Packet) -> Packet | bytes:
    """Return an acknowledgement with a reason code, which is not handled in a run."""
    if isinstance(packet, Ack):
        short = encode(packet, 5)
        return bytes((short[0], 3)) + short[2:] + b"\0"
    return packet


def lived(version: int, reads: Sequence[Sequence[Packet | bytes]], limit: int, **settings: Any) -> tuple[object, ...]:
    """Send these as a client that is its own subscriber. Returns its received packets by kind, and the remaining
    state.
    """
    world = World(**settings)
    fake = world.connect("c", version, clean_start=True, properties={MAXIMUM_PACKET_SIZE: limit} if limit else None)
    fake.send(Subscribe(1, [SubscribeRequest(b"t", 2)]))
    fake.receive()
    for read in reads:
        if not fake.closed:
            fake.send_all(read)
    got = fake.receive()
    kinds = {packet.type for packet in got}
    each = {kind: [packet for packet in got if packet.type == kind] for kind in kinds}
    left = handshakes(world) if not fake.closed else None
    return each, fake.closed, left, world.state.ctx.counters.errors, world.dropped


@given(packets, st.sampled_from([4, 5]), st.sampled_from([0, 2]))
@example([Publish(b"t", b"", 2, False, False, 1), Ack(PUBREL, 1), Ack(PUBREL, 1), Ack(PUBREL, 2)], 5, 0)
@example([Publish(b"t", b"", 1, False, False, 1), Ack(PUBACK, 1), Ack(PUBACK, 1), Ack(PUBACK, 2)], 4, 2)
def test_packets_in_one_read_have_the_outcome_of_packets_one_by_one(
    sent: list[Packet], version: int, inflight: int
) -> None:
    one_by_one = lived(version, [[packet] for packet in sent], 0, max_inflight=inflight)
    assert lived(version, [sent], 0, max_inflight=inflight) == one_by_one
    if version == 5:  # a client with a maximum packet size never gets runs
        assert lived(5, [[the_long_way(packet)] for packet in sent], 1000, max_inflight=inflight) == one_by_one


def connected(world: World, count: int, qos: int, version: int = 4) -> tuple[FakeClient, list[int]]:
    """Return a receiver of ``count`` messages, and their packet ids."""
    fake = world.connect("r", version)
    fake.send(Subscribe(1, [SubscribeRequest(b"t", qos)]))
    fake.receive()
    publisher = world.connect("p", 4)
    for n in range(count):
        publisher.send(Publish(b"t", b"%d" % n, qos, False, False, n + 1))
        if qos == 2:
            publisher.send(Ack(PUBREL, n + 1))
    return fake, [packet.packet_id for packet in fake.receive() if isinstance(packet, Publish)]


@pytest.mark.parametrize("kind", [PUBACK, PUBCOMP])
def test_a_run_of_acknowledgements_empties_the_window_and_lets_the_queue_move_up(kind: int) -> None:
    world = World(max_inflight=3)
    qos = 1 if kind == PUBACK else 2
    fake, sent = connected(world, 8, qos)
    assert sent == [1, 2, 3]
    if qos == 2:
        fake.send_all([Ack(PUBREC, id) for id in sent])
        assert fake.receive() == [Ack(PUBREL, id) for id in sent]
    fake.send_all([Ack(kind, id) for id in sent])
    window = world.state.ctx.sessions["r"].window
    assert window is not None
    assert list(window.entries) == [4, 5, 6]
    assert [packet.packet_id for packet in fake.receive() if isinstance(packet, Publish)] == [4, 5, 6]


def test_a_run_stops_at_the_end_of_the_turns_work_and_goes_on_in_the_next() -> None:
    world = World()
    fake, sent = connected(world, 8, 1)
    world.state.ctx.work = 3
    world.state.receive(fake.client, b"".join(ack_frame(0x40, id) for id in sent), world.now)
    window = world.state.ctx.sessions["r"].window
    assert window is not None
    assert list(window.entries) == sent[3:]
    world.run()
    assert not window.entries and window.bytes == 0


def test_a_client_with_a_maximum_packet_size_gets_each_answer_in_a_frame_of_its_own() -> None:
    world = World()
    publisher = world.connect("p", 5, properties={MAXIMUM_PACKET_SIZE: 20})
    publisher.send_all([Publish(b"t", b"", 1, False, False, n) for n in range(1, 9)])
    assert [answer.packet_id for answer in publisher.receive() if isinstance(answer, Ack)] == list(range(1, 9))
    assert not publisher.closed


@given(st.lists(st.integers(1, 65535), min_size=1, max_size=20), st.sampled_from([0x62, 0x70]))
def test_a_run_of_answers_is_that_of_each_one(packet_ids: Sequence[int], first: int) -> None:
    data = b"..." + b"".join(ack_frame(0x50, id) for id in packet_ids) + b".."
    assert ack_run(first, data, 3, len(data) - 2) == b"".join(ack_frame(first, id) for id in packet_ids)
