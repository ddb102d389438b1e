"""The broker as sender of QoS 0, 1 and 2 (MQTT 4.3, 4.4, 4.6)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Ack, Publish
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import (
    ALL,
    BOTH,
    acknowledge,
    deliver,
    messages,
    payloads,
    persistent,
    publish_frame,
    sole,
    subscribe,
    subscriber,
)
from tests.harness import FakeClient, World


def waiting(w: World, version: int, *, count: int = 3, qos: int = 2) -> tuple[FakeClient, list[Publish]]:
    """A client with a persistent session, and messages sent to it that it has not acknowledged."""
    sub = persistent(w, "sub", version)
    subscribe(sub, "t", qos=qos)
    pub = w.connect(client_id="pub")
    for number in range(count):
        deliver(pub, "t", b"%d" % number, qos=qos)
    return sub, messages(sub)


@clause(
    v3="4.3.1-1 4.3.2-1 4.3.3-1 2.3.1-4 2.3.1-5 3.3.1-2",
    v5="4.3.1-1 4.3.2-1 4.3.2-2 4.3.3-1 4.3.3-2 2.2.1-2 2.2.1-4 3.3.1-2",
)
@pytest.mark.parametrize("version", ALL)
def test_new_messages_go_out_without_dup_and_with_identifiers_of_their_own(w: World, version: int) -> None:
    sub = subscriber(w, "t", qos=2, version=version)
    pub = w.connect(client_id="pub")
    for qos in (0, 1, 2, 1, 2):
        deliver(pub, "t", qos=qos)
    found = messages(sub)
    assert [(m.qos, m.dup) for m in found] == [(0, False), (1, False), (2, False), (1, False), (2, False)]
    ids = [m.packet_id for m in found if m.qos]
    assert found[0].packet_id == 0 and 0 not in ids and len(set(ids)) == 4


@clause(v3="2.3.1-4", v5="2.2.1-4 4.3.2-1 4.3.3-1")
@pytest.mark.parametrize("version", BOTH)
def test_an_identifier_in_use_is_not_taken_again(make_world: MakeWorld, version: int) -> None:
    """Two messages stay open while more than 65535 others come and go."""
    w = make_world(max_inflight=65_535)
    sub = subscriber(w, "t", qos=2, version=version)
    pub = w.connect(client_id="pub", version=version)
    deliver(pub, "t", qos=1)
    deliver(pub, "t", qos=2)
    open_ids = {m.packet_id for m in messages(sub)}
    batch = publish_frame("t", version=version, flags=0x02, packet_id=1) * 500
    seen: set[int] = set()
    for _ in range(66_000 // 500):
        pub.send(batch)
        ids = [m.packet_id for m in messages(sub)]
        assert len(set(ids)) == 500 and not set(ids) & (open_ids | {0})
        seen.update(ids)
        sub.send(b"".join(b"\x40\x02" + packet_id.to_bytes(2) for packet_id in ids))
    assert len(seen) > 65_000


@clause(v3="4.4.0-1 4.3.2-1 3.3.1-1 4.6.0-1", v5="4.4.0-1 4.3.2-3 3.3.1-1 4.6.0-1")
@pytest.mark.parametrize("version", ALL)
def test_unacknowledged_qos_1_is_resent_in_order_with_dup(w: World, version: int) -> None:
    sub, first = waiting(w, version, qos=1)
    sub.send(Ack(PUBACK, first[1].packet_id))
    sub.drop()
    again = messages(persistent(w, "sub", version))
    assert [(m.payload, m.packet_id, m.dup, m.qos) for m in again] == [
        (m.payload, m.packet_id, True, 1) for m in (first[0], first[2])
    ]


@clause(v3="4.4.0-1 4.3.3-1 3.3.1-1 4.6.0-1", v5="4.4.0-1 4.3.3-3 4.3.3-5 4.3.3-6 3.3.1-1 4.6.0-1")
@pytest.mark.parametrize("version", ALL)
def test_qos_2_goes_on_where_it_stopped(w: World, version: int) -> None:
    sub, (one, two, three) = waiting(w, version)
    sub.send(Ack(PUBREC, two.packet_id))
    assert sole(sub, Ack) == Ack(PUBREL, two.packet_id)
    sub.send(Ack(PUBREC, three.packet_id))
    sub.send(Ack(PUBCOMP, three.packet_id))
    sub.drop()
    back = persistent(w, "sub", version)
    packets = back.receive()
    resent = [p for p in packets if isinstance(p, Publish)]
    assert [(m.payload, m.packet_id, m.dup, m.qos) for m in resent] == [(b"0", one.packet_id, True, 2)]
    assert [p for p in packets if isinstance(p, Ack)] == [Ack(PUBREL, two.packet_id)]
    back.send(Ack(PUBCOMP, two.packet_id))
    acknowledge(back, resent[0])
    back.drop()
    assert persistent(w, "sub", version).receive() == []


@clause(v3="4.3.2-1", v5="4.3.2-3")
@pytest.mark.parametrize("version", BOTH)
def test_acknowledged_messages_are_not_resent(w: World, version: int) -> None:
    sub, found = waiting(w, version, qos=1)
    for message in found:
        sub.send(Ack(PUBACK, message.packet_id))
    sub.drop()
    assert persistent(w, "sub", version).receive() == []


@clause(v3="4.3.3-1 2.3.1-6 4.6.0-4", v5="4.3.3-4 2.2.1-5 4.6.0-4")
@pytest.mark.parametrize("version", ALL)
def test_every_pubrec_gets_its_pubrel_in_order(w: World, version: int) -> None:
    sub, found = waiting(w, version)
    order = [found[2].packet_id, found[0].packet_id, found[1].packet_id]
    sub.send(b"".join(b"\x50\x02" + packet_id.to_bytes(2) for packet_id in order))
    assert sub.receive() == [Ack(PUBREL, packet_id) for packet_id in order]


@clause(v3="4.3.3-1", v5="4.3.3-4 4.3.3-6 3.6.2-1")
@pytest.mark.parametrize("version", BOTH)
def test_a_repeated_pubrec_gets_pubrel_again(w: World, version: int) -> None:
    sub, (message,) = waiting(w, version, count=1)
    for _ in range(2):
        sub.send(Ack(PUBREC, message.packet_id))
        assert sole(sub, Ack) == Ack(PUBREL, message.packet_id)


@clause(v5="3.6.2-1 4.3.3-4")
def test_a_pubrec_for_nothing_is_told_so(w: World) -> None:
    sub = subscriber(w, "t", qos=2)
    sub.send(Ack(PUBREC, 4711))
    assert sole(sub, Ack) == Ack(PUBREL, 4711, Reason.PACKET_IDENTIFIER_NOT_FOUND)


@clause(v5="4.4.0-2 4.3.3-4")
@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_a_refusal_by_the_receiver_ends_the_delivery(w: World, qos: int, kind: int) -> None:
    sub, (message,) = waiting(w, 5, count=1, qos=qos)
    sub.send(Ack(kind, message.packet_id, Reason.QUOTA_EXCEEDED))
    assert sub.receive() == []
    sub.drop()
    assert persistent(w, "sub", 5).receive() == []


@clause(v5="4.4.0-1")
def test_mqtt_5_resends_only_on_a_new_connection(w: World) -> None:
    sub, _ = waiting(w, 5)
    deliver(sub, "other", qos=2, packet_id=9)  # which the broker looks after from time to time
    w.advance(10_000)
    assert sub.receive() == []


@clause(v3="3.3.1-1 4.4.0-1")
def test_3_1_1_is_sent_again_within_the_connection_with_dup(w: World) -> None:
    """Allowed, not demanded: what is resent is the same packet with DUP."""
    sub, found = waiting(w, 4, qos=1)
    w.advance(32)
    again = messages(sub)
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in found]


@clause(v5="4.3.3-7")
def test_expiry_does_not_touch_what_was_sent(w: World) -> None:
    sub = persistent(w, "sub", 5)
    subscribe(sub, "t", qos=2)
    deliver(w.connect(client_id="pub"), "t", b"brief", qos=2, expiry=5)
    (message,) = messages(sub)
    w.advance(10)
    sub.drop()
    back = persistent(w, "sub", 5)
    (again,) = messages(back)
    assert (again.payload, again.packet_id, again.dup) == (b"brief", message.packet_id, True)
    acknowledge(back, again)


@clause(v3="4.6.0-5 4.6.0-6", v5="4.6.0-5 4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", ALL)
def test_messages_arrive_in_the_order_of_their_publisher(w: World, version: int, qos: int) -> None:
    sub = subscriber(w, "t/#", qos=2, version=version)
    pub = w.connect(client_id="pub", version=version)
    sent = [b"%d" % number for number in range(50)]
    for packet_id, payload in enumerate(sent, 1):
        deliver(pub, "t/1", payload, qos=qos, packet_id=packet_id)
    assert payloads(sub) == sent


@clause(v3="4.6.0-6", v5="4.6.0-5")
@pytest.mark.parametrize("version", BOTH)
def test_order_survives_a_narrow_window_and_a_reconnection(w: World, version: int) -> None:
    sub = persistent(w, "sub", version)
    subscribe(sub, "t", qos=1)
    pub = w.connect(client_id="pub")
    deliver(pub, "t", b"0", qos=1)
    deliver(pub, "t", b"1", qos=1)
    first = messages(sub)
    sub.drop()
    for number in range(2, 20):
        deliver(pub, "t", b"%d" % number, qos=1)
    back = messages(persistent(w, "sub", version))
    assert [m.payload for m in first] == [b"0", b"1"]
    assert [m.payload for m in back] == [b"%d" % number for number in range(20)]
    assert [m.dup for m in back] == [True, True, *[False] * 18]


@clause(v3="4.3.2-1", v5="4.3.2-3 2.2.1-5")
@pytest.mark.parametrize(("qos", "strangers"), [(1, (PUBREC, PUBCOMP)), (2, (PUBACK, PUBCOMP))])
@pytest.mark.parametrize("version", BOTH)
def test_only_the_right_packet_acknowledges(w: World, version: int, qos: int, strangers: tuple[int, ...]) -> None:
    sub, (message,) = waiting(w, version, count=1, qos=qos)
    for kind in strangers:
        sub.send(Ack(kind, message.packet_id))
        sub.receive()  # a PUBREC for what is none is answered in its own way
    sub.drop()
    (again,) = messages(persistent(w, "sub", version))
    assert (again.packet_id, again.qos, again.dup) == (message.packet_id, qos, True)
