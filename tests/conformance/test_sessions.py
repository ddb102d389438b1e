"""Sessions: begun, resumed, discarded, expired (MQTT 3.1.2.4, 3.2.2.2, 4.1, 4.5)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Disconnect
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.kit import (
    ALL,
    BOTH,
    NEVER,
    acknowledge,
    deliver,
    ended,
    messages,
    payloads,
    persistent,
    subscribe,
)
from tests.harness import World


@clause(v3="3.1.2-4 3.1.2-5 3.2.2-2 3.2.2-3 4.1.0-1 4.5.0-1", v5="3.1.2-5 3.1.2-6 3.1.2-23 3.2.2-3 4.5.0-1")
@pytest.mark.parametrize("version", ALL)
def test_a_kept_session_is_resumed_with_its_subscriptions_and_messages(w: World, version: int) -> None:
    pub = w.connect(client_id="pub")
    c = persistent(w, "a", version)
    assert not c.connack.session_present
    subscribe(c, "t", qos=2)
    c.drop()
    deliver(pub, "t", b"1", qos=1)
    deliver(pub, "t", b"2", qos=2)
    back = persistent(w, "a", version)
    assert back.connack.session_present == (version != 3)  # 3.1 has no such flag
    assert [(m.payload, m.qos) for m in messages(back)] == [(b"1", 1), (b"2", 2)]
    deliver(pub, "t", b"3")
    assert payloads(back) == [b"3"]


@clause(v3="3.1.2-6 3.1.4-3 3.2.2-1", v5="3.1.2-4 3.1.4-4 3.2.2-2")
@pytest.mark.parametrize("version", BOTH)
def test_a_clean_start_begins_with_nothing(w: World, version: int) -> None:
    pub = w.connect(client_id="pub")
    c = persistent(w, "a", version)
    subscribe(c, "t", qos=1)
    c.drop()
    deliver(pub, "t", b"1", qos=1)
    back = persistent(w, "a", version, clean=True)
    assert not back.connack.session_present
    deliver(pub, "t", b"2", qos=1)
    assert back.receive() == []


@clause(v3="3.1.2-6 3.1.4-3 3.2.2-1", v5="3.1.2-4 3.1.4-4 3.2.2-2")
@pytest.mark.parametrize("version", BOTH)
def test_a_clean_start_over_a_living_connection_begins_with_nothing(w: World, version: int) -> None:
    pub = w.connect(client_id="pub")
    c = persistent(w, "a", version)
    subscribe(c, "t", qos=1)
    back = persistent(w, "a", version, clean=True)
    assert not back.connack.session_present
    ended(c, Reason.SESSION_TAKEN_OVER)
    deliver(pub, "t", qos=1)
    assert back.receive() == []


@clause(v3="3.1.2-6 3.2.2-3", v5="3.1.2-6 3.2.2-3")
@pytest.mark.parametrize("version", BOTH)
def test_a_clean_session_ends_with_its_connection(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version, clean_start=True)
    subscribe(c, "t", qos=1)
    c.drop()
    deliver(w.connect(client_id="pub"), "t", qos=1)
    back = persistent(w, "a", version)
    assert not back.connack.session_present
    assert back.receive() == []


@clause(v3="3.1.2-4", v5="3.1.2-4 3.1.2-23")
def test_clean_start_and_expiry_are_two_things_in_mqtt_5(w: World) -> None:
    c = w.connect(client_id="a", clean_start=True, properties={SESSION_EXPIRY_INTERVAL: NEVER})
    c.drop()
    assert w.connect(client_id="a", clean_start=False).connack.session_present


@clause(v3="4.1.0-2", v5="4.1.0-1")
@pytest.mark.parametrize("version", BOTH)
def test_a_session_lasts_as_long_as_its_connection(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version, clean_start=True)
    subscribe(c, "t", qos=1)
    pub = w.connect(client_id="pub")
    w.advance(30 * 86400)
    deliver(pub, "t", qos=1)
    (message,) = messages(c)
    acknowledge(c, message)


@clause(v5="4.1.0-2 3.1.2-23")
def test_a_session_is_gone_once_its_expiry_has_passed(w: World) -> None:
    settings: Properties = {SESSION_EXPIRY_INTERVAL: 100}
    w.connect(client_id="a", clean_start=False, properties=settings).drop()
    w.advance(98)
    back = w.connect(client_id="a", clean_start=False, properties=settings)
    assert back.connack.session_present
    w.advance(1000)
    back.drop()
    w.advance(102)
    assert not w.connect(client_id="a", clean_start=False, properties=settings).connack.session_present


@clause(v5="4.1.0-2")
def test_disconnect_may_change_the_expiry(w: World) -> None:
    settings: Properties = {SESSION_EXPIRY_INTERVAL: 10}
    c = w.connect(client_id="a", clean_start=False, properties=settings)
    c.send(Disconnect(properties={SESSION_EXPIRY_INTERVAL: 1000}))
    w.advance(500)
    back = w.connect(client_id="a", clean_start=False, properties=settings)
    assert back.connack.session_present
    back.send(Disconnect(properties={SESSION_EXPIRY_INTERVAL: 0}))
    assert not w.connect(client_id="a", clean_start=False, properties=settings).connack.session_present


@clause(v5="4.13.1-1")
def test_disconnect_can_not_give_an_expiry_to_a_session_without(w: World) -> None:
    c = w.connect(client_id="a")
    c.send(Disconnect(properties={SESSION_EXPIRY_INTERVAL: 10}))
    ended(c, Reason.PROTOCOL_ERROR)


@clause(v3="3.1.2-7")
@pytest.mark.parametrize("version", BOTH)
def test_retained_messages_outlive_the_session_that_published_them(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version, clean_start=True)
    deliver(c, "t", b"kept", qos=1, retain=True)
    c.send(Disconnect())
    late = w.connect(client_id="late", version=version)
    subscribe(late, "t")
    assert payloads(late) == [b"kept"]


@clause(v3="4.1.0-1 3.1.2-4", v5="3.1.2-5")
@pytest.mark.parametrize("version", BOTH)
def test_taking_over_a_living_connection_keeps_the_session(w: World, version: int) -> None:
    pub = w.connect(client_id="pub")
    first = persistent(w, "a", version)
    subscribe(first, "t", qos=1)
    deliver(pub, "t", b"1", qos=1)
    assert payloads(first) == [b"1"]  # not acknowledged
    second = persistent(w, "a", version)
    assert second.connack.session_present
    deliver(pub, "t", b"2", qos=1)
    assert [(m.payload, m.dup) for m in messages(second)] == [(b"1", True), (b"2", False)]
