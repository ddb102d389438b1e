"""Wills: kept, published, delayed, cancelled (MQTT 3.1.2.5, 3.1.3.2)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Disconnect
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, USER_PROPERTY, WILL_DELAY_INTERVAL, encode_properties
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.kit import ALL, BOTH, messages, payloads, persistent, subscribe, subscriber, will
from tests.harness import World


@clause(v3="3.1.2-8", v5="3.1.2-7 3.1.2-8")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", ALL)
def test_a_lost_connection_publishes_the_will_once(w: World, version: int, qos: int) -> None:
    watcher = subscriber(w, "will", qos=2)
    c = w.connect(client_id="a", version=version, will=will(payload=b"bye", qos=qos))
    w.advance(1)
    assert watcher.receive() == []
    c.drop()
    (message,) = messages(watcher)
    assert (message.topic, message.payload, message.qos, message.retain) == (b"will", b"bye", qos, False)


@clause(v3="3.1.2-8", v5="3.1.2-8")
@pytest.mark.parametrize("version", BOTH)
def test_a_connection_closed_for_a_protocol_error_publishes_the_will(w: World, version: int) -> None:
    watcher = subscriber(w, "will")
    c = w.connect(client_id="a", version=version, will=will())
    c.send(b"\x00\x00")
    assert c.closed
    assert payloads(watcher) == [b"gone"]


@clause(v3="3.1.2-10 3.14.4-3", v5="3.1.2-10 3.14.4-3")
@pytest.mark.parametrize("version", ALL)
def test_a_disconnect_discards_the_will(w: World, version: int) -> None:
    watcher = subscriber(w, "will")
    c = persistent(w, "a", version, will=will())
    c.send(Disconnect())
    assert c.closed
    w.advance(10)
    persistent(w, "a", version).drop()
    w.advance(10)
    assert watcher.receive() == []


@clause(v3="3.1.2-10", v5="3.1.2-10")
@pytest.mark.parametrize("version", BOTH)
def test_a_published_will_is_gone(w: World, version: int) -> None:
    watcher = subscriber(w, "will")
    persistent(w, "a", version, will=will()).drop()
    assert payloads(watcher) == [b"gone"]
    persistent(w, "a", version).drop()
    w.advance(10)
    assert watcher.receive() == []


@clause(v3="3.1.2-12")
@pytest.mark.parametrize("version", BOTH)
def test_without_a_will_nothing_is_published(w: World, version: int) -> None:
    watcher = subscriber(w, "#")
    w.connect(client_id="a", version=version).drop()
    w.advance(10)
    assert watcher.receive() == []


@pytest.mark.parametrize(
    ("retain", "kept"),
    [
        pytest.param(False, [], marks=clause(v3="3.1.2-16", v5="3.1.2-14")),
        pytest.param(True, [b"gone"], marks=clause(v3="3.1.2-17", v5="3.1.2-15")),
    ],
)
@pytest.mark.parametrize("version", BOTH)
def test_a_will_is_retained_if_it_says_so(w: World, version: int, retain: bool, kept: list[bytes]) -> None:
    w.connect(client_id="a", version=version, will=will(retain=retain)).drop()
    late = w.connect(client_id="late", version=version)
    subscribe(late, "will")
    assert payloads(late) == kept


@clause(v5="3.1.2-8 3.1.2-10")
def test_disconnect_with_will_publishes_it(w: World) -> None:
    watcher = subscriber(w, "will")
    c = w.connect(client_id="a", will=will())
    c.send(Disconnect(Reason.DISCONNECT_WITH_WILL))
    assert c.closed
    assert payloads(watcher) == [b"gone"]


@clause(v5="3.1.2-8")
def test_a_delayed_will_waits(w: World) -> None:
    watcher = subscriber(w, "will")
    c = w.connect(
        client_id="a",
        properties={SESSION_EXPIRY_INTERVAL: 1000},
        will=will(properties={WILL_DELAY_INTERVAL: 60}),
    )
    c.drop()
    w.advance(58)
    assert watcher.receive() == []
    w.advance(4)
    assert payloads(watcher) == [b"gone"]


@clause(v5="3.1.2-8")
@pytest.mark.parametrize("expiry", [0, 10])
def test_the_end_of_the_session_does_not_wait_for_the_delay(w: World, expiry: int) -> None:
    watcher = subscriber(w, "will")
    c = w.connect(
        client_id="a",
        properties={SESSION_EXPIRY_INTERVAL: expiry},
        will=will(properties={WILL_DELAY_INTERVAL: 1000}),
    )
    c.drop()
    w.advance(expiry + 2)
    assert payloads(watcher) == [b"gone"]


@clause(v5="3.1.3-9 3.1.2-8")
def test_coming_back_within_the_delay_cancels_the_will(w: World) -> None:
    watcher = subscriber(w, "will")
    delayed = will(properties={WILL_DELAY_INTERVAL: 60})
    persistent(w, "a", 5, will=delayed).drop()
    w.advance(50)
    back = persistent(w, "a", 5)
    assert back.connack.session_present
    w.advance(100)
    back.drop()
    w.advance(100)
    assert watcher.receive() == []


@clause(v5="3.1.2-8")
def test_a_clean_start_within_the_delay_ends_the_session_and_so_publishes_the_will(w: World) -> None:
    watcher = subscriber(w, "will")
    persistent(w, "a", 5, will=will(properties={WILL_DELAY_INTERVAL: 60})).drop()
    persistent(w, "a", 5, clean=True)
    assert payloads(watcher) == [b"gone"]


@clause(v5="3.1.3-10")
def test_user_properties_of_a_will_keep_their_order(w: World) -> None:
    watcher = subscriber(w, "will")
    pairs = [("b", "2"), ("a", "1"), ("b", "1"), ("a", "1")]
    w.connect(client_id="a", will=will(properties={USER_PROPERTY: pairs})).drop()
    (message,) = messages(watcher)
    assert message.properties == encode_properties({USER_PROPERTY: pairs})[1:]


@clause(v3="3.1.2-8", v5="3.1.2-8")
@pytest.mark.parametrize("version", BOTH)
def test_a_takeover_publishes_the_will_of_the_connection_it_ends(w: World, version: int) -> None:
    watcher = subscriber(w, "will")
    persistent(w, "a", version, will=will(payload=b"old"))
    new = persistent(w, "a", version, will=will(payload=b"new"))
    assert payloads(watcher) == [b"old"]
    new.drop()
    assert payloads(watcher) == [b"new"]


@clause(v5="3.1.3-9")
def test_a_takeover_cancels_a_will_with_a_delay(w: World) -> None:
    watcher = subscriber(w, "will")
    persistent(w, "a", 5, will=will(properties={WILL_DELAY_INTERVAL: 5}))
    persistent(w, "a", 5)
    w.advance(100)
    assert watcher.receive() == []
