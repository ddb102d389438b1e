"""A fast publisher is held before anything is dropped; a client that cannot learn its limit loses no message."""

from __future__ import annotations

import pytest
from tests.conformance.kit import acknowledge, ended, messages, payloads, persistent, publish, sole, subscribe
from tests.harness import FakeClient, World

from starlingmq.wire.mqtt import Ack, Packet, Publish
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from starlingmq.wire.reasons import Reason

BOUND = 10
HIGH = 5  # publishers are held from this number on
LOW = 2  # and released at this one


def slow_receiver(w: World, topic: str = "t") -> FakeClient:
    """Return a receiver with a window of one message, which acknowledges only on request."""
    properties = {RECEIVE_MAXIMUM: 1, SESSION_EXPIRY_INTERVAL: 3600}
    sub = w.connect(f"slow {topic}", properties={**properties})
    subscribe(sub, topic, qos=1)
    return sub


def fill(pub: FakeClient, count: int, topic: str = "t") -> None:
    for number in range(count):
        publish(pub, topic, b"%d" % number, qos=1, packet_id=number + 1)


def queued(w: World, sub: FakeClient) -> int:
    queue = w.state.ctx.sessions[sub.client_id].queue
    return 0 if queue is None else len(queue)


def take_one(sub: FakeClient) -> None:
    (message,) = messages(sub)
    acknowledge(sub, message)


def test_a_publisher_is_not_read_while_a_queue_is_half_full() -> None:
    w = World(max_mqueue_len=BOUND)
    sub, pub = slow_receiver(w), w.connect("pub")
    fill(pub, 1 + HIGH - 1)  # one is in the window
    assert pub.reading
    publish(pub, "t", b"more", qos=1, packet_id=100)
    assert queued(w, sub) == HIGH and not pub.reading
    publish(pub, "t", b"not read", qos=1, packet_id=101)
    assert queued(w, sub) == HIGH
    while queued(w, sub) > LOW + 1:
        take_one(sub)
        assert not pub.reading
    take_one(sub)
    assert pub.reading
    assert queued(w, sub) == LOW + 1, "what was not read is read now"
    assert w.dropped == {}


def test_nothing_is_lost_of_a_burst_that_a_receiver_can_take_in_time() -> None:
    w = World(max_mqueue_len=BOUND)
    sub, pub = slow_receiver(w), w.connect("pub", version=4)
    burst: list[Packet] = [Publish(b"t", b"%d" % n, 1, packet_id=n) for n in range(1, 501)]
    pub.send_all(burst)
    arrived: list[bytes] = []
    while found := messages(sub):
        assert queued(w, sub) <= HIGH
        arrived += [message.payload for message in found]
        for message in found:
            acknowledge(sub, message)
    assert arrived == [b"%d" % n for n in range(1, 501)]
    assert pub.receive() == [Ack(PUBACK, n) for n in range(1, 501)]
    assert w.dropped == {}


def test_a_receiver_has_its_time_and_then_the_oldest_is_dropped() -> None:
    w = World(max_mqueue_len=BOUND, publisher_hold=1.0)
    sub, pub = slow_receiver(w), w.connect("pub")
    fill(pub, 30)
    assert not pub.reading
    w.advance(0.9)
    assert not pub.reading
    w.advance(0.5)
    assert pub.reading, "one second, and a tick of the timers"
    assert queued(w, sub) == BOUND
    assert w.dropped == {"queue_full": 30 - 1 - BOUND}
    fill(pub, 5)
    assert pub.reading, "it had its time, it does not get it again for every message"
    (first,) = messages(sub)
    assert first.payload == b"0"
    acknowledge(sub, first)
    assert payloads(sub) == [b"25"]


def test_a_receiver_that_has_caught_up_gets_its_time_again() -> None:
    w = World(max_mqueue_len=BOUND)
    sub, pub = slow_receiver(w), w.connect("pub")
    fill(pub, 1 + HIGH)
    w.advance(2.0)
    assert pub.reading
    while queued(w, sub):
        take_one(sub)
    fill(pub, 1 + HIGH)
    assert not pub.reading


def test_everyone_who_publishes_to_it_is_held_and_nobody_else() -> None:
    w = World(max_mqueue_len=BOUND)
    sub = slow_receiver(w)
    other = w.connect("other receiver")
    subscribe(other, "u", qos=1)
    first, second, third = (w.connect(f"pub{n}", version=4) for n in range(3))
    fill(first, 1 + HIGH)
    fill(second, 1)
    assert not first.reading and not second.reading
    fill(third, 20, topic="u")
    assert third.reading and len(messages(other)) == 20
    while queued(w, sub) > LOW:
        take_one(sub)
    assert first.reading and second.reading


def test_a_receiver_that_is_away_holds_nobody() -> None:
    w = World(max_mqueue_len=BOUND)
    slow_receiver(w).drop()
    pub = w.connect("pub")
    fill(pub, 30)
    assert pub.reading
    assert w.dropped == {"queue_full": 30 - BOUND}


@pytest.mark.parametrize("how", ["drop", "disconnect"])
def test_a_receiver_that_goes_lets_go(how: str) -> None:
    w = World(max_mqueue_len=BOUND)
    sub, pub = slow_receiver(w), w.connect("pub")
    fill(pub, 1 + HIGH)
    assert not pub.reading
    getattr(sub, how)()
    assert pub.reading


def test_holding_can_be_turned_off() -> None:
    w = World(max_mqueue_len=BOUND, publisher_hold=0.0)
    sub, pub = slow_receiver(w), w.connect("pub")
    fill(pub, 30)
    assert pub.reading and queued(w, sub) == BOUND
    assert w.dropped == {"queue_full": 30 - 1 - BOUND}


def test_a_transport_that_takes_nothing_holds_too() -> None:
    w = World(max_mqueue_len=BOUND)
    sub, pub = w.connect("sub"), w.connect("pub")
    subscribe(sub, "t")
    sub.block()
    for number in range(HIGH):
        publish(pub, "t", b"%d" % number)
    assert not pub.reading
    sub.unblock()
    assert pub.reading
    assert payloads(sub) == [b"%d" % number for number in range(HIGH)]


# max_awaiting_rel


def records(c: FakeClient) -> list[int]:
    """Return the PUBRECs written since the last call."""
    packets = c.receive()
    assert all(isinstance(packet, Ack) and packet.type == PUBREC for packet in packets)
    return [packet.packet_id for packet in packets if isinstance(packet, Ack)]


def burst(c: FakeClient, count: int, payload: bytes = b"x") -> None:
    packets: list[Packet] = [Publish(b"t", payload + b"%d" % n, 2, packet_id=n) for n in range(1, count + 1)]
    c.send_all(packets)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("count", [3, 5, 40])
def test_a_client_that_can_not_know_max_awaiting_rel_waits_for_its_pubrecs(version: int, count: int) -> None:
    w = World(max_awaiting_rel=2)
    watcher = w.connect("watcher")
    subscribe(watcher, "t", qos=2)
    c = w.connect("c", version=version)
    burst(c, count)
    todo = records(c)
    assert todo == [1, 2]
    for number in range(1, count + 1):
        inbound = w.state.ctx.sessions["c"].inbound
        assert inbound is not None and inbound.held <= 2
        c.send(Ack(PUBREL, number))
        packets = c.receive()
        assert packets[0] == Ack(PUBCOMP, number)
        assert packets[1:] == ([Ack(PUBREC, number + 2)] if number + 2 <= count else [])
    assert payloads(watcher) == [b"x%d" % n for n in range(1, count + 1)]
    assert w.state.ctx.sessions["c"].parked is None and w.dropped == {}


def test_a_repeated_publish_that_waits_is_one_message() -> None:
    w = World(max_awaiting_rel=1)
    c = w.connect("c", version=4)
    burst(c, 2)
    publish(c, "t", b"again", qos=2, packet_id=2, dup=True)
    assert records(c) == [1]
    c.send(Ack(PUBREL, 1))
    assert c.receive() == [Ack(PUBCOMP, 1), Ack(PUBREC, 2)]
    c.send(Ack(PUBREL, 2))
    assert c.receive() == [Ack(PUBCOMP, 2)]


def test_waiting_messages_are_bounded_and_not_acknowledged() -> None:
    """The client starts again, and each time progresses by the free room."""
    w = World(max_awaiting_rel=1, queue_bytes=10_000)
    c = persistent(w, "c", 4)
    burst(c, 20, b"x" * 1000)
    assert records(c) == [1]
    ended(c, Reason.QUOTA_EXCEEDED)
    assert w.state.ctx.counters.errors == {"quota_exceeded": 1}
    c = persistent(w, "c", 4)
    c.send(Ack(PUBREL, 1))
    publish(c, "t", b"x" * 1000, qos=2, packet_id=2, dup=True)
    assert c.receive() == [Ack(PUBCOMP, 1), Ack(PUBREC, 2)]


def test_a_handshake_that_was_given_up_makes_room() -> None:
    w = World(max_awaiting_rel=1, await_rel_timeout=10.0)
    c = w.connect("c", version=4)
    burst(c, 2)
    assert records(c) == [1]
    w.advance(12.0)
    assert records(c) == [2]
    assert w.dropped == {"await_rel_timeout": 1}


def test_an_mqtt_5_client_knows_the_limit_and_goes_past_it_only_once() -> None:
    w = World(max_awaiting_rel=2)
    c = w.connect("c")
    assert c.connack.properties[RECEIVE_MAXIMUM] == 2
    burst(c, 2)
    assert records(c) == [1, 2]
    c.send(Ack(PUBREL, 1))
    assert sole(c, Ack) == Ack(PUBCOMP, 1)
    publish(c, "t", qos=2, packet_id=3)
    assert records(c) == [3]
    publish(c, "t", qos=2, packet_id=4)
    ended(c, Reason.RECEIVE_MAXIMUM_EXCEEDED)
