"""Shared subscriptions (MQTT 5, 4.8.2)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Ack
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.kit import (
    acknowledge,
    deliver,
    ended,
    frame,
    messages,
    payloads,
    persistent,
    sole,
    subscribe,
    subscriber,
    unsubscribe,
    utf8,
)
from tests.harness import FakeClient, World


@clause(v5="4.8.2-1")
def test_each_message_goes_to_one_member_and_to_all_others(w: World) -> None:
    members = [subscriber(w, "$share/g/t/#", client_id=f"m{n}") for n in range(3)]
    other_group = subscriber(w, "$share/h/t/#", client_id="h")
    alone = subscriber(w, "t/#", client_id="alone")
    pub = w.connect(client_id="pub")
    sent = [b"%d" % n for n in range(60)]
    for payload in sent:
        deliver(pub, "t/x", payload)
    shares = [payloads(c) for c in members]
    assert sorted(payload for share in shares for payload in share) == sorted(sent)
    assert all(shares)
    assert payloads(other_group) == payloads(alone) == sent


@pytest.mark.parametrize(
    "filter",
    [
        *(pytest.param(f, marks=clause(v5="4.8.2-1")) for f in ("$share//t", "$share/", "$share//")),
        *(pytest.param(f, marks=clause(v5="4.8.2-2")) for f in ("$share/g", "$share/g/", "$share/g+/t", "$share/#/t")),
        pytest.param("$share/+/t", marks=clause(v5="4.8.2-2")),
        pytest.param("$share/g/a/#/b", marks=clause(v5="4.8.2-2")),
    ],
)
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_a_malformed_share_closes_the_connection(w: World, filter: str, first: int) -> None:
    c = w.connect(client_id="a")
    c.send(frame(first, b"\0\1\0" + utf8(filter) + (b"\0" if first == 0x82 else b"")))
    ended(c, Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("filter", ["$share//t", "$share/g", "$share/g/", "$share/+/t"])
@pytest.mark.parametrize("version", (3, 4))
def test_3_1_1_has_no_shared_subscriptions_so_a_malformed_one_is_only_refused(
    w: World, version: int, filter: str
) -> None:
    c = w.connect(client_id="a", version=version)
    assert subscribe(c, filter, "t") == [0x80, 0]
    assert unsubscribe(c, filter, "t") == []
    deliver(w.connect(client_id="pub"), "$share/g")
    assert c.receive() == []


def test_share_alone_is_a_filter_that_is_not_accepted(w: World) -> None:
    c = w.connect(client_id="a")
    assert subscribe(c, "$share", "t") == [Reason.TOPIC_FILTER_INVALID, 0]  # correctly formed: 0x8F is for this


@clause(v5="3.8.3-4")
def test_no_local_on_a_share_is_a_protocol_error(w: World) -> None:
    c = w.connect(client_id="a")
    c.send(frame(0x82, b"\0\1\0" + utf8("$share/g/t") + b"\4"))
    ended(c, Reason.PROTOCOL_ERROR)


@clause(v5="4.8.2-3")
def test_each_member_is_served_at_its_own_qos(w: World) -> None:
    members = [subscriber(w, "$share/g/t", qos=qos, client_id=f"m{qos}") for qos in (0, 1, 2)]
    pub = w.connect(client_id="pub")
    for packet_id in range(1, 40):
        deliver(pub, "t", qos=2, packet_id=packet_id)
    for qos, c in enumerate(members):
        assert {m.qos for m in messages(c)} == {qos}


def chosen(w: World, qos: int, expiry: int) -> tuple[FakeClient, FakeClient, int]:
    """Two members of a group, of which the first has been sent a message; its packet identifier."""
    pub = w.connect(client_id="pub")
    one, two = (
        w.connect(client_id=name, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: expiry})
        for name in ("one", "two")
    )
    subscribe(one, "$share/g/t", qos=2)
    deliver(pub, "t", b"mine", qos=qos)
    (message,) = messages(one)
    subscribe(two, "$share/g/t", qos=2)
    return one, two, message.packet_id


@clause(v5="4.8.2-4")
@pytest.mark.parametrize("received", [False, True])
def test_a_qos_2_delivery_cut_off_is_completed_when_its_client_returns(w: World, received: bool) -> None:
    one, two, packet_id = chosen(w, 2, 1000)
    if received:
        one.send(Ack(PUBREC, packet_id))
        assert sole(one, Ack) == Ack(PUBREL, packet_id)
    one.drop()
    w.advance(500)
    assert two.receive() == []
    back = w.connect(client_id="one", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 1000})
    if received:
        assert sole(back, Ack) == Ack(PUBREL, packet_id)
        back.send(Ack(PUBCOMP, packet_id))
    else:
        (message,) = messages(back)
        assert (message.payload, message.packet_id, message.dup) == (b"mine", packet_id, True)
        acknowledge(back, message)
    assert two.receive() == []


@clause(v5="4.8.2-5")
@pytest.mark.parametrize("end", ["expiry", "clean start"])
def test_a_qos_2_message_whose_client_never_returns_goes_to_nobody_else(w: World, end: str) -> None:
    one, two, _ = chosen(w, 2, 100)
    one.drop()
    if end == "expiry":
        w.advance(1000)
    else:
        assert persistent(w, "one", 5, clean=True).receive() == []
    assert two.receive() == []


@clause(v5="4.8.2-6")
@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_a_refusing_member_discards_the_message(w: World, qos: int, kind: int) -> None:
    one, two, packet_id = chosen(w, qos, 100)
    one.send(Ack(kind, packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
    w.advance(1000)
    assert (one.receive(), two.receive()) == ([], [])
