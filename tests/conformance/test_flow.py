"""Flow control and Maximum Packet Size, in both directions (MQTT 5, 3.1.2.11, 3.2.2.3, 4.9)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Ack, Connack, Connect, Pingreq, Pingresp, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import MAXIMUM_PACKET_SIZE, RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties
from starlingmq.wire.reasons import Reason
from tests.conformance.audit import complaints
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import (
    NEVER,
    deliver,
    ended,
    messages,
    payloads,
    publish,
    publish_frame,
    sole,
    subscribe,
    subscriber,
)
from tests.harness import FakeClient, World


def narrow(w: World, receive_maximum: int, qos: int = 2) -> tuple[FakeClient, FakeClient]:
    """A subscriber with that Receive Maximum, and a publisher."""
    sub = w.connect(client_id="sub", properties={RECEIVE_MAXIMUM: receive_maximum, SESSION_EXPIRY_INTERVAL: NEVER})
    subscribe(sub, "t", qos=qos)
    return sub, w.connect(client_id="pub")


@clause(v5="3.3.4-9 4.9.0-1 4.9.0-2")
@pytest.mark.parametrize("maximum", [1, 3])
def test_no_more_than_receive_maximum_stay_unacknowledged(w: World, maximum: int) -> None:
    sub, pub = narrow(w, maximum, qos=1)
    for number in range(8):
        deliver(pub, "t", b"%d" % number, qos=1)
    arrived: list[bytes] = []
    open_ids: list[int] = []
    for _ in range(8):
        new = messages(sub)
        arrived += [m.payload for m in new]
        open_ids += [m.packet_id for m in new]
        assert len(open_ids) <= maximum
        sub.send(Ack(PUBACK, open_ids.pop(0)))
    assert arrived == [b"%d" % number for number in range(8)]


@clause(v5="3.3.4-9 4.9.0-2")
def test_a_qos_2_message_holds_its_place_until_pubcomp(w: World) -> None:
    sub, pub = narrow(w, 1)
    deliver(pub, "t", b"1", qos=2)
    deliver(pub, "t", b"2", qos=2)
    (first,) = messages(sub)
    sub.send(Ack(PUBREC, first.packet_id))
    assert sole(sub, Ack) == Ack(PUBREL, first.packet_id)
    sub.send(Ack(PUBCOMP, first.packet_id))
    assert payloads(sub) == [b"2"]


@clause(v5="3.3.4-9 4.4.0-2")
def test_a_refusing_pubrec_frees_the_place(w: World) -> None:
    sub, pub = narrow(w, 1)
    deliver(pub, "t", b"1", qos=2)
    deliver(pub, "t", b"2", qos=2)
    (first,) = messages(sub)
    sub.send(Ack(PUBREC, first.packet_id, Reason.QUOTA_EXCEEDED))
    assert payloads(sub) == [b"2"]


@clause(v5="3.3.4-10 4.9.0-3")
def test_everything_else_is_served_at_quota_0(w: World) -> None:
    sub, pub = narrow(w, 1)
    deliver(pub, "t", b"1", qos=1)
    assert payloads(sub) == [b"1"]
    deliver(pub, "t", b"2", qos=1)
    sub.send(Pingreq())
    assert sole(sub, Pingresp) == Pingresp()
    sub.send(Subscribe(9, [SubscribeRequest(b"u")]))
    assert sole(sub, Suback) == Suback(9, [0])
    publish(sub, "v", qos=1, packet_id=9)
    assert sole(sub, Ack).type == PUBACK
    publish(sub, "v", qos=2, packet_id=9)
    assert sole(sub, Ack) == Ack(PUBREC, 9)


@clause(v5="3.3.4-9 4.9.0-1 4.9.0-2")
def test_resending_keeps_within_a_smaller_receive_maximum(w: World) -> None:
    sub, pub = narrow(w, 10, qos=1)
    for number in range(5):
        deliver(pub, "t", b"%d" % number, qos=1)
    assert len(messages(sub)) == 5
    sub.drop()
    properties: Properties = {RECEIVE_MAXIMUM: 2, SESSION_EXPIRY_INTERVAL: NEVER}
    back = w.connect(client_id="sub", clean_start=False, properties=properties)
    again = messages(back)
    assert [m.payload for m in again] == [b"0", b"1"]
    back.send(Ack(PUBACK, again[0].packet_id))
    assert payloads(back) == [b"2"]


@clause(v5="3.3.4-7")
def test_a_client_beyond_the_servers_receive_maximum_is_disconnected(make_world: MakeWorld) -> None:
    w = make_world(max_awaiting_rel=2)
    c = w.connect(client_id="a")
    assert c.connack.properties[RECEIVE_MAXIMUM] == 2
    for packet_id in (1, 2):
        publish(c, "t", qos=2, packet_id=packet_id)
        assert sole(c, Ack) == Ack(PUBREC, packet_id)
    publish(c, "t", qos=2, packet_id=3)
    ended(c, Reason.RECEIVE_MAXIMUM_EXCEEDED)


@clause(v5="4.9.0-3")
def test_a_pubcomp_gives_the_client_its_place_back(make_world: MakeWorld) -> None:
    w = make_world(max_awaiting_rel=2)
    c = w.connect(client_id="a")
    for packet_id in range(1, 20):
        deliver(c, "t", qos=2, packet_id=packet_id)
    assert not c.closed


@clause(v5="3.1.2-24 3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_for_a_client_counts_as_delivered_to_it(w: World, qos: int) -> None:
    small = w.connect(client_id="small", properties={MAXIMUM_PACKET_SIZE: 200, RECEIVE_MAXIMUM: 1})
    subscribe(small, "t", qos=2)
    large = subscriber(w, "t", qos=2, client_id="large")
    pub = w.connect(client_id="pub")
    deliver(pub, "t", b"x" * 200, qos=qos)
    deliver(pub, "t", b"fits", qos=qos)
    assert payloads(small) == [b"fits"]
    assert payloads(large) == [b"x" * 200, b"fits"]


@clause(v5="3.1.2-24")
@pytest.mark.parametrize("qos", [0, 1])
def test_maximum_packet_size_counts_every_byte(w: World, qos: int) -> None:
    limit = 100
    small = w.connect(client_id="small", properties={MAXIMUM_PACKET_SIZE: limit})
    subscribe(small, "t", qos=2)
    pub = w.connect(client_id="pub")
    room = limit - len(publish_frame("t", b"", flags=qos << 1, packet_id=1 if qos else None))
    for size in (room, room + 1):
        deliver(pub, "t", b"x" * size, qos=qos)
    assert [len(payload) for payload in payloads(small)] == [room]


@clause(v5="3.1.2-25")
def test_a_queued_message_too_large_for_the_next_connection_counts_as_delivered(w: World) -> None:
    settings: Properties = {SESSION_EXPIRY_INTERVAL: NEVER}
    sub = w.connect(client_id="sub", properties=settings)
    subscribe(sub, "t", qos=1)
    pub = w.connect(client_id="pub")
    deliver(pub, "t", b"x" * 200, qos=1)  # sent, not acknowledged
    assert len(messages(sub)) == 1
    sub.drop()
    deliver(pub, "t", b"y" * 200, qos=1)  # queued
    deliver(pub, "t", b"fits", qos=1)
    back = w.connect(
        client_id="sub", clean_start=False, properties={**settings, MAXIMUM_PACKET_SIZE: 100, RECEIVE_MAXIMUM: 1}
    )
    assert [p.payload for p in back.receive() if isinstance(p, Publish)] == [b"fits"]


@clause(v5="3.2.2-15")
def test_a_packet_beyond_the_servers_maximum_is_refused(make_world: MakeWorld) -> None:
    w = make_world(max_packet_size=1000)
    watcher = subscriber(w, "#")
    c = w.connect(client_id="a")
    assert c.connack.properties[MAXIMUM_PACKET_SIZE] == 1000
    fits = publish_frame("t", b"x" * (1000 - len(publish_frame("t", b"")) - 1))
    assert len(fits) == 1000
    c.send(fits)
    assert len(messages(watcher)) == 1
    c.send(fits[:1] + b"\xe6\x07" + fits[3:] + b"x")
    ended(c, Reason.PACKET_TOO_LARGE)
    assert watcher.receive() == []


@clause(v5="3.1.2-24")
@pytest.mark.parametrize("limit", [1, 4, 5, 8, 12, 16, 24])
def test_not_even_connack_is_larger_than_the_client_takes(w: World, limit: int) -> None:
    c = w.open()
    c.max_packet = limit
    c.send(Connect(client_id="", properties={MAXIMUM_PACKET_SIZE: limit}))
    assert complaints(c) == []
    assert c.closed or isinstance(c.receive()[0], Connack)


@clause(v5="3.1.2-24")
def test_a_suback_larger_than_the_client_takes_is_not_sent(w: World) -> None:
    c = w.connect(client_id="a", properties={MAXIMUM_PACKET_SIZE: 40})
    c.send(Subscribe(1, [SubscribeRequest(b"%d" % number) for number in range(40)]))
    assert [p for p in c.receive() if isinstance(p, Suback)] == []
    assert c.closed


@clause(v5="3.1.2-25")
def test_a_whole_queue_too_large_for_the_next_connection_counts_as_delivered(w: World) -> None:
    sub = w.connect(client_id="sub", properties={SESSION_EXPIRY_INTERVAL: NEVER})
    subscribe(sub, "t", qos=1)
    sub.drop()
    pub = w.connect(client_id="pub")
    for _ in range(999):
        deliver(pub, "t", b"y" * 200, qos=1)
    deliver(pub, "t", b"fits", qos=1)
    properties: Properties = {SESSION_EXPIRY_INTERVAL: NEVER, MAXIMUM_PACKET_SIZE: 100}
    assert payloads(w.connect(client_id="sub", clean_start=False, properties=properties)) == [b"fits"]


@clause(v5="4.9.0-3")
def test_a_repeat_at_the_limit_is_no_further_message(make_world: MakeWorld) -> None:
    w = make_world(max_awaiting_rel=1)
    c = w.connect(client_id="a")
    for dup in (False, True):
        publish(c, "t", qos=2, packet_id=1, dup=dup)
        assert sole(c, Ack) == Ack(PUBREC, 1)
