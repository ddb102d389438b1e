"""The broker as receiver of QoS 1 and 2 (MQTT 4.3, 4.6)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Ack
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import (
    ALL,
    BOTH,
    deliver,
    ended,
    frame,
    payloads,
    persistent,
    publish,
    publish_frame,
    sole,
    subscribe,
    subscriber,
)
from tests.harness import World


@clause(v3="4.3.2-2", v5="4.3.2-5")
@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("version", ALL)
def test_after_puback_the_identifier_means_a_new_message(w: World, version: int, dup: bool) -> None:
    watcher = subscriber(w, "t")
    c = w.connect(client_id="a", version=version)
    deliver(c, "t", b"1", qos=1, packet_id=5)
    deliver(c, "t", b"2", qos=1, packet_id=5, dup=dup)
    assert payloads(watcher) == [b"1", b"2"]


@clause(v3="4.3.3-2", v5="4.3.3-10")
@pytest.mark.parametrize("version", ALL)
def test_before_pubrel_a_repeat_is_acknowledged_and_not_delivered_again(w: World, version: int) -> None:
    watcher = subscriber(w, "t")
    c = w.connect(client_id="a", version=version)
    for dup in (False, True, True):
        publish(c, "t", b"once", qos=2, packet_id=5, dup=dup)
        assert sole(c, Ack) == Ack(PUBREC, 5)
    c.send(Ack(PUBREL, 5))
    assert sole(c, Ack) == Ack(PUBCOMP, 5)
    assert payloads(watcher) == [b"once"]


@clause(v3="4.3.3-2 4.4.0-1", v5="4.3.3-10 4.3.3-11")
@pytest.mark.parametrize("version", BOTH)
def test_a_handshake_goes_on_after_a_reconnection(w: World, version: int) -> None:
    watcher = subscriber(w, "t")
    c = persistent(w, "a", version)
    publish(c, "t", b"once", qos=2, packet_id=5)
    c.drop()
    c = persistent(w, "a", version)
    publish(c, "t", b"once", qos=2, packet_id=5, dup=True)
    assert sole(c, Ack) == Ack(PUBREC, 5)
    c.send(Ack(PUBREL, 5))
    assert sole(c, Ack) == Ack(PUBCOMP, 5)
    c.drop()
    c = persistent(w, "a", version)
    c.send(Ack(PUBREL, 5))  # its PUBCOMP was lost
    assert sole(c, Ack) == Ack(PUBCOMP, 5)
    assert payloads(watcher) == [b"once"]


@clause(v3="4.3.3-2 2.3.1-6", v5="4.3.3-11 4.3.3-12 2.2.1-5 3.7.2-1")
@pytest.mark.parametrize("version", ALL)
def test_after_pubcomp_the_identifier_means_a_new_message(w: World, version: int) -> None:
    watcher = subscriber(w, "t")
    c = w.connect(client_id="a", version=version)
    for payload in (b"1", b"2"):
        deliver(c, "t", payload, qos=2, packet_id=5)
    assert payloads(watcher) == [b"1", b"2"]


@clause(v5="3.7.2-1")
def test_a_pubrel_for_nothing_is_told_so(w: World) -> None:
    c = w.connect(client_id="a")
    c.send(Ack(PUBREL, 4711))
    assert sole(c, Ack) == Ack(PUBCOMP, 4711, Reason.PACKET_IDENTIFIER_NOT_FOUND)
    assert (w.state.ctx.counters.errors, w.state.ctx.counters.noted) == ({}, {"pubrel_unknown": 1})
    assert not c.closed


@clause(v3="4.3.3-2 4.1.0-1", v5="4.1.0-1")
@pytest.mark.parametrize("version", BOTH)
def test_a_handshake_lives_as_long_as_the_session_while_its_client_is_away(make_world: MakeWorld, version: int) -> None:
    w = make_world(await_rel_timeout=300.0)
    watcher = subscriber(w, "t")
    c = persistent(w, "a", version)
    publish(c, "t", b"kept", qos=2, packet_id=5)
    assert sole(c, Ack) == Ack(PUBREC, 5)
    deliver(c, "t", b"done", qos=2, packet_id=6)
    c.drop()
    w.advance(86_400.0)
    c = persistent(w, "a", version)
    w.advance(200.0)
    c.send(Ack(PUBREL, 5))
    c.send(Ack(PUBREL, 6))  # its PUBCOMP was lost
    assert c.receive() == [Ack(PUBCOMP, 5), Ack(PUBCOMP, 6)]
    assert payloads(watcher) == [b"done", b"kept"]


@clause(v3="4.3.3-2")
@pytest.mark.parametrize("version", (3, 4))
def test_an_unknown_pubrel_closes_the_connection_once_and_leaves_the_session(w: World, version: int) -> None:
    c = persistent(w, "a", version)
    subscribe(c, "mine", qos=1)
    publish(w.connect(client_id="pub"), "mine", b"unacknowledged", qos=1)
    assert payloads(c) == [b"unacknowledged"]
    c.send(Ack(PUBREL, 4711))
    ended(c)
    c = persistent(w, "a", version)
    assert c.connack.session_present == (version != 3)
    assert payloads(c) == [b"unacknowledged"]
    for _ in range(2):
        c.send(Ack(PUBREL, 4711))
        assert sole(c, Ack) == Ack(PUBCOMP, 4711)
    assert w.state.ctx.counters.errors == {"packet_identifier_not_found": 1}
    assert w.state.ctx.counters.noted == {"pubrel_unknown": 1}
    assert [(notice.client_id, notice.closing) for notice in w.notices] == [("a", True), ("a", False)]
    c.send(Ack(PUBREL, 4712))
    ended(c)  # another one is closed for once, too


@clause(v5="4.3.3-9")
def test_after_a_refusing_pubrec_the_identifier_means_a_new_message(make_world: MakeWorld) -> None:
    w = make_world(ask_publish=True)
    watcher = subscriber(w, "t")
    c = w.connect(client_id="a")
    publish(c, "t", b"no", qos=2, packet_id=5)
    w.answer(w.question(), Reason.NOT_AUTHORIZED)
    assert sole(c, Ack) == Ack(PUBREC, 5, Reason.NOT_AUTHORIZED)
    publish(c, "t", b"yes", qos=2, packet_id=5)
    w.allow(w.question())
    assert sole(c, Ack) == Ack(PUBREC, 5)
    c.send(Ack(PUBREL, 5))
    assert sole(c, Ack) == Ack(PUBCOMP, 5)
    assert payloads(watcher) == [b"yes"]


@clause(v5="4.3.3-13 3.3.2-5")
def test_the_handshake_is_completed_though_the_message_expired(w: World) -> None:
    watcher = subscriber(w, "t")
    c = w.connect(client_id="a")
    publish(c, "t", b"stale", qos=2, packet_id=5, expiry=3)
    assert sole(c, Ack) == Ack(PUBREC, 5)
    w.advance(5)
    c.send(Ack(PUBREL, 5))
    assert sole(c, Ack) == Ack(PUBCOMP, 5)
    assert watcher.receive() == []


@pytest.mark.parametrize(
    ("qos", "kind"),
    [
        pytest.param(1, PUBACK, marks=clause(v3="4.6.0-2", v5="4.6.0-2")),
        pytest.param(2, PUBREC, marks=clause(v3="4.6.0-3", v5="4.6.0-3")),
    ],
)
@pytest.mark.parametrize("version", ALL)
def test_acknowledgements_follow_the_order_of_the_messages(w: World, version: int, qos: int, kind: int) -> None:
    subscriber(w, "t")
    c = w.connect(client_id="a", version=version)
    ids = [7, 3, 65535, 1, 9]
    c.send(b"".join(publish_frame("t", version=version, flags=qos << 1, packet_id=n) for n in ids))
    assert c.receive() == [Ack(kind, n) for n in ids]


@clause(v3="4.6.0-3 4.6.0-2")
@pytest.mark.parametrize("version", BOTH)
def test_acknowledgements_of_both_kinds_keep_their_order_behind_a_hook(make_world: MakeWorld, version: int) -> None:
    w = make_world(ask_publish=True)
    subscriber(w, "t")
    c = w.connect(client_id="a", version=version)
    c.send(
        b"".join(publish_frame("t", version=version, flags=q << 1, packet_id=n) for n, q in ((1, 1), (2, 2), (3, 1)))
    )
    for _ in range(3):
        w.allow(w.question())
    assert c.receive() == [Ack(PUBACK, 1), Ack(PUBREC, 2), Ack(PUBACK, 3)]


@clause(v3="3.6.1-1 2.2.2-1 2.2.2-2", v5="3.6.1-1 2.1.3-1 4.13.1-1")
@pytest.mark.parametrize("first", [0x60, 0x61, 0x63, 0x6A])
@pytest.mark.parametrize("version", BOTH)
def test_a_pubrel_with_wrong_flags_is_malformed(w: World, version: int, first: int) -> None:
    c = w.connect(client_id="a", version=version)
    publish(c, "t", qos=2, packet_id=5)
    assert sole(c, Ack) == Ack(PUBREC, 5)
    c.send(frame(first, b"\0\5"))
    ended(c, Reason.MALFORMED_PACKET)


@clause(v3="4.5.0-1", v5="4.5.0-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", BOTH)
def test_an_acknowledged_message_is_in_every_matching_session(w: World, version: int, qos: int) -> None:
    away = persistent(w, "away", version)
    subscribe(away, "t", qos=2)
    away.drop()
    here = subscriber(w, "#", qos=2, version=version)
    deliver(w.connect(client_id="pub", version=version), "t", b"m", qos=qos)
    assert payloads(here) == [b"m"]
    assert payloads(persistent(w, "away", version)) == [b"m"]
