"""No packet makes a call of the core do more than its share: counted in messages and filters."""

from __future__ import annotations

import gc
from time import process_time
from typing import Any

import pytest
from tests.conformance.kit import deliver, persistent, subscribe
from tests.harness import FakeClient, World

from starlingmq.core.broker import BrokerState
from starlingmq.core.context.context import TURN_WORK
from starlingmq.core.delivery.delivery import PUMP_BATCH
from starlingmq.core.delivery.group_engine import GROUPS_PER_UNIT
from starlingmq.core.subscribe.subscribing import FILTERS_PER_TURN
from starlingmq.wire.mqtt import (
    Connect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    ack_frame,
    encode,
)
from starlingmq.wire.properties import RECEIVE_MAXIMUM

FILTERS = 16_000
RETAINED = 16_000


class Meter:
    """A BrokerState that records the work of each call."""

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self.most = 0  # filters added or removed, messages sent or queued, in one call
        self.bytes_most = 0  # in ``frames`` of one connection after one call
        self.calls = 0  # calls that did any work
        self.turns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)

    def _units(self) -> tuple[int, int]:
        ctx = self.state.ctx
        filters = len(self.state.router.tree)
        return filters, ctx.counters.publish_sent + ctx.counters.messages_queued + ctx.counters.publish_received

    def _measured(self, name: str, *args: Any) -> None:
        before = self._units()
        getattr(self.state, name)(*args)
        done = sum(abs(now - then) for now, then in zip(self._units(), before, strict=True))
        self.most = max(self.most, done)
        self.calls += done != 0
        dirty = self.state.ctx.ready.dirty
        self.bytes_most = max([self.bytes_most, *(sum(map(len, client.frames)) for client in dirty)])

    def turn(self, now: float) -> None:
        self.turns += 1
        self._measured("turn", now)

    def receive(self, client: Any, data: bytes, now: float) -> None:
        self._measured("receive", client, data, now)

    def sent(self, client: Any) -> None:
        self._measured("sent", client)

    def drained(self, client: Any, now: float) -> None:
        self._measured("drained", client, now)


def metered(w: World) -> Meter:
    meter = Meter(w.state)
    w.state = meter  # type: ignore[assignment]
    return meter


def every_filter(count: int) -> Subscribe:
    return Subscribe(1, [SubscribeRequest(b"r/%d" % n, 1) for n in range(count)])


def many_filters(c: FakeClient) -> None:
    c.send(every_filter(FILTERS))
    assert len(c.expect(Suback).reasons) == FILTERS


def keep(w: World, count: int = RETAINED, qos: int = 0) -> None:
    pub = w.connect("keeper")
    packets: list[Packet] = [Publish(b"r/%d" % n, b"x", qos, True, packet_id=n + 1 if qos else 0) for n in range(count)]
    pub.send_all(packets)


def test_a_subscribe_with_many_filters() -> None:
    w = World()
    meter = metered(w)
    c = w.connect("c")
    many_filters(c)
    assert meter.most <= FILTERS_PER_TURN
    assert meter.calls >= FILTERS // FILTERS_PER_TURN


def test_an_unsubscribe_with_many_filters() -> None:
    w = World()
    c = w.connect("c")
    many_filters(c)
    meter = metered(w)
    c.send(Unsubscribe(2, [b"r/%d" % n for n in range(FILTERS)]))
    assert c.expect(Unsuback).reasons == [0] * FILTERS
    assert meter.most <= FILTERS_PER_TURN
    assert len(w.state.router.tree) == 0


def test_the_end_of_a_session_with_many_filters() -> None:
    w = World()
    c = w.connect("c")
    many_filters(c)
    meter = metered(w)
    c.drop()
    assert meter.most <= FILTERS_PER_TURN
    assert len(w.state.router.tree) == 0


def seconds_to_leave(groups: int) -> float:
    """Processor time of the end of a session that is a member of that many groups, without the garbage collector, which
    looks at all that earlier tests have left."""
    w = World()
    c = w.connect("c")
    c.send(Subscribe(1, [SubscribeRequest(b"$share/g/r/%d" % n, 1) for n in range(groups)]))
    assert len(c.expect(Suback).reasons) == groups
    session = w.state.ctx.sessions["c"]
    gc.collect()
    gc.disable()
    try:
        began = process_time()
        c.drop()
        seconds = process_time() - began
    finally:
        gc.enable()
    assert session.shares is None
    return seconds


def test_the_end_of_a_member_of_many_groups_takes_time_in_proportion() -> None:
    """If each group cost a look at all others, it would be 16 times as many."""
    few, many = (min(seconds_to_leave(groups) for _ in range(3)) for groups in (1000, FILTERS))
    assert many < 4 * few * FILTERS / 1000


def test_a_member_of_many_groups_pays_for_looking_at_them() -> None:
    w = World()
    c = w.connect("c")
    c.send(Subscribe(1, [SubscribeRequest(b"$share/g/r/%d" % n, 1) for n in range(FILTERS)]))
    c.send(Subscribe(2, [SubscribeRequest(b"own", 1)]))
    w.connect("pub").send(Publish(b"own", b"x", 1, packet_id=1))
    (message,) = [packet for packet in c.receive() if isinstance(packet, Publish)]
    before = w.state.ctx.work
    w.state.receive(c.client, ack_frame(0x40, message.packet_id), w.now)
    assert before - w.state.ctx.work >= FILTERS // GROUPS_PER_UNIT


def test_a_member_of_many_groups_pays_for_them_when_it_is_back() -> None:
    w = World()
    c = persistent(w, "c", 5)
    c.send(Subscribe(1, [SubscribeRequest(b"$share/g/r/%d" % n, 1) for n in range(FILTERS)]))
    c.drop()
    back = w.open()
    before = w.state.ctx.work
    w.state.receive(back.client, encode(Connect(5, "c", False), 5), w.now)
    assert w.state.ctx.sessions["c"].client is back.client
    assert before - w.state.ctx.work >= FILTERS // GROUPS_PER_UNIT


def test_others_are_served_while_many_filters_are_taken_in() -> None:
    """Between two pieces all other clients get a turn; the client itself is not read before its SUBACK."""
    w = World()
    c, other = w.connect("c"), w.connect("other")
    subscribe(other, "t")
    state = w.state
    state.receive(c.client, encode(every_filter(FILTERS), 5), w.now)
    assert c.client.halted != 0
    turns = 0
    while c.client.halted != 0:
        state.receive(other.client, b"\x30\x04\x00\x01t\x00", w.now)
        state.turn(w.now)
        turns += 1
        assert len(other.client.frames) == turns
    assert turns >= FILTERS // FILTERS_PER_TURN - 1


@pytest.mark.parametrize("filter", [b"#", b"r/+"])
def test_many_retained_messages_to_one_filter(filter: bytes) -> None:
    w = World(retained_batch=500)
    keep(w)
    meter = metered(w)
    c = w.connect("c")
    c.send(Subscribe(1, [SubscribeRequest(filter, 1)]))
    found = [packet.topic for packet in c.receive() if isinstance(packet, Publish)]
    assert len(set(found)) == len(found) == RETAINED
    assert meter.most <= 500
    assert w.dropped == {}


def take_everything(w: World, c: FakeClient, bound: int) -> list[bytes]:
    """Acknowledge all messages as they arrive; return their topics."""
    session = w.state.ctx.sessions[c.client_id]
    found = [packet for packet in c.receive() if isinstance(packet, Publish)]
    topics = [packet.topic for packet in found]
    while found:
        assert session.queue is None or len(session.queue) <= bound
        c.send(b"".join(ack_frame(0x40, packet.packet_id) for packet in found))
        found = [packet for packet in c.receive() if isinstance(packet, Publish)]
        topics += [packet.topic for packet in found]
    return topics


def test_many_retained_messages_to_a_client_that_takes_few_at_a_time() -> None:
    """The messages wait in the tree, not in the client's queue, where they would displace each other."""
    w = World(max_mqueue_len=100)
    keep(w, qos=1)
    meter = metered(w)
    c = w.connect("c", properties={RECEIVE_MAXIMUM: 20})
    c.send(Subscribe(1, [SubscribeRequest(b"#", 1)]))
    topics = take_everything(w, c, 100)
    assert len(set(topics)) == len(topics) == RETAINED
    assert meter.most <= 500
    assert w.dropped == {}


@pytest.mark.parametrize("receive_maximum", [20, 65535])
def test_many_filters_with_a_retained_message_each(receive_maximum: int) -> None:
    """The replays are queued: one that continues must not make all others check whether they can."""
    w = World()
    keep(w, qos=1)
    c = w.connect("c", properties={RECEIVE_MAXIMUM: receive_maximum})
    meter = metered(w)
    c.send(every_filter(FILTERS))
    topics = take_everything(w, c, 1000)
    assert len(set(topics)) == len(topics) == RETAINED
    assert meter.most <= 2 * FILTERS_PER_TURN
    assert meter.turns <= 4 * RETAINED // 20
    assert w.dropped == {}


def test_a_read_full_of_messages() -> None:
    w = World()
    sub = w.connect("sub")
    subscribe(sub, "t")
    pub = w.connect("pub")
    meter = metered(w)
    pub.send(b"\x30\x04\x00\x01t\x00" * 50_000)
    assert meter.most <= TURN_WORK + 2
    assert len(sub.receive()) == 50_000


def test_a_read_full_of_acknowledgements() -> None:
    w = World(max_mqueue_len=0, publisher_hold=0.0, max_inflight=65_535)
    sub = w.connect("sub")
    subscribe(sub, "t", qos=1)
    pub = w.connect("pub")
    for _ in range(10):
        pub.send(b"\x32\x06\x00\x01t\x00\x01\x00" * 10_000)
    ids = [packet.packet_id for packet in sub.receive() if isinstance(packet, Publish)]
    meter = metered(w)
    sub.send(b"".join(ack_frame(0x40, packet_id) for packet_id in ids))
    assert len(ids) > 2 * TURN_WORK
    assert len(sub.receive()) == min(len(ids), 100_000 - len(ids))
    assert meter.most <= TURN_WORK + PUMP_BATCH


@pytest.mark.parametrize("version", [4, 5])
def test_a_large_window_is_sent_again_as_the_client_reads(version: int) -> None:
    w = World(max_mqueue_len=0, publisher_hold=0.0, write_buffer=100_000, max_inflight=65_535)
    sub = persistent(w, "sub", version)
    subscribe(sub, "t", qos=1)
    pub = w.connect("pub", version=4)
    payload = b"x" * 997
    for _ in range(20):
        pub.send((b"\x32\xea\x07\x00\x01t\x00\x01" + payload) * 100)
    assert len(sub.receive()) == 2000
    sub.drop()
    meter = metered(w)
    sub = persistent(w, "sub", version)
    again = sub.receive()
    assert len(again) == 2000 and all(isinstance(packet, Publish) and packet.dup for packet in again)
    assert meter.bytes_most <= 100_000 + 1100
    if version == 4:
        w.advance(70.0)
        assert len(sub.receive()) >= 2000
        assert meter.bytes_most <= 100_000 + 1100


def test_a_new_message_does_not_overtake_what_is_still_to_be_sent_again() -> None:
    w = World(write_buffer=1000)
    sub = persistent(w, "sub", 5)
    subscribe(sub, "t", qos=1)
    pub = w.connect("pub")
    for number in range(10):
        deliver(pub, "t", b"%d" % number * 400, qos=1)
    sub.receive()
    sub.drop()
    sub = w.open(5, "sub")
    sub.block()
    sub.send(Connect(5, "sub", False))
    deliver(pub, "t", b"new", qos=1)
    sub.unblock()
    found = [packet.payload[:3] for packet in sub.receive() if isinstance(packet, Publish)]
    assert found == [*(b"%d" % number * 3 for number in range(10)), b"new"]


def test_a_new_message_does_not_overtake_a_long_queue() -> None:
    """The queue is sent in pieces, between which there is room in the window and in the write buffer."""
    w = World(max_mqueue_len=0, max_inflight=65_535)
    sub = persistent(w, "sub", 5)
    subscribe(sub, "t", qos=1)
    sub.drop()
    pub = w.connect("pub")
    count = 3 * PUMP_BATCH
    queue: list[Packet] = [Publish(b"t", b"%d" % number, 1, packet_id=1) for number in range(count)]
    pub.send_all(queue)
    sub = w.open(5, "sub")
    w.state.receive(sub.client, encode(Connect(5, "sub", False), 5), w.now)
    deliver(pub, "t", b"%d" % count, qos=1)
    found = [int(packet.payload) for packet in sub.receive() if isinstance(packet, Publish)]
    assert found == list(range(count + 1))


def test_a_queue_whose_first_thousands_have_expired() -> None:
    w = World(max_mqueue_len=0)
    sub = persistent(w, "sub", 5)
    subscribe(sub, "t", qos=1)
    sub.drop()
    pub = w.connect("pub")
    expired: list[Packet] = [Publish(b"t", b"old", 1, packet_id=1, expiry=1) for _ in range(10 * PUMP_BATCH)]
    pub.send_all(expired)
    deliver(pub, "t", b"fresh", qos=1)
    w.advance(5.0)
    back = persistent(w, "sub", 5)
    assert [packet.payload for packet in back.receive() if isinstance(packet, Publish)] == [b"fresh"]
    assert w.dropped == {"expired": 10 * PUMP_BATCH}
