"""Retained messages (MQTT 3.3.1.3)."""

from __future__ import annotations

import pytest

from tests.conformance.clauses import clause
from tests.conformance.kit import ALL, BOTH, deliver, messages, payloads, persistent, subscribe, subscriber, unsubscribe
from tests.harness import FakeClient, World


def kept(w: World, filter: str = "#", **options: int) -> list[tuple[bytes, bytes]]:
    """The retained messages that a new subscriber gets."""
    c = w.connect(client_id="late")
    subscribe(c, filter, qos=2, **options)  # type: ignore[arg-type]
    found = [(m.topic, m.payload) for m in messages(c)]
    c.drop()
    return found


@pytest.fixture
def pub(w: World) -> FakeClient:
    return w.connect(client_id="pub")


@clause(v3="3.3.1-5 3.3.1-6 3.3.1-8", v5="3.3.1-5 3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", ALL)
def test_a_new_subscription_gets_the_retained_message_with_its_qos(w: World, version: int, qos: int) -> None:
    deliver(w.connect(client_id="pub", version=version), "a/b", b"kept", qos=qos, retain=True)
    sub = subscriber(w, "a/+", qos=2, version=version)
    (message,) = messages(sub)
    assert (message.topic, message.payload, message.qos, message.retain) == (b"a/b", b"kept", qos, True)


@clause(v3="3.3.1-6", v5="3.3.1-9")
def test_each_matching_topic_has_its_own(w: World, pub: FakeClient) -> None:
    for topic in ("a", "a/b", "a/b/c", "b", "$other/a"):
        deliver(pub, topic, topic.encode(), retain=True)
    assert sorted(topic for topic, _ in kept(w)) == [b"a", b"a/b", b"a/b/c", b"b"]
    assert sorted(topic for topic, _ in kept(w, "a/#")) == [b"a", b"a/b", b"a/b/c"]
    assert kept(w, "+/b") == [(b"a/b", b"a/b")]


@clause(v3="3.3.1-5", v5="3.3.1-5")
def test_the_last_one_replaces_those_before(w: World, pub: FakeClient) -> None:
    for payload in (b"1", b"2", b"3"):
        deliver(pub, "t", payload, qos=1, retain=True)
    assert kept(w) == [(b"t", b"3")]


@clause(v3="3.3.1-7", v5="3.3.1-5")
def test_one_of_qos_0_displaces_one_of_qos_2(w: World, pub: FakeClient) -> None:
    deliver(pub, "t", b"two", qos=2, retain=True)
    deliver(pub, "t", b"zero", qos=0, retain=True)
    assert kept(w) == [(b"t", b"zero")]


@clause(v3="3.3.1-9", v5="3.3.1-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("version", BOTH)
def test_an_established_subscription_sees_no_retain(
    w: World, pub: FakeClient, version: int, retain: bool, qos: int
) -> None:
    sub = subscriber(w, "t", version=version, qos=qos)
    deliver(pub, "t", b"live", retain=retain, qos=qos)
    assert [(m.payload, m.retain) for m in messages(sub)] == [(b"live", False)]


@clause(v3="3.3.1-9", v5="3.3.1-12")
@pytest.mark.parametrize("version", BOTH)
def test_nor_does_one_whose_client_was_away(w: World, pub: FakeClient, version: int) -> None:
    sub = persistent(w, "sub", version)
    subscribe(sub, "t", qos=1)
    sub.drop()
    for qos in (0, 1):
        deliver(pub, "t", b"live", retain=True, qos=qos)
    assert [(m.qos, m.retain) for m in messages(persistent(w, "sub", version))] == [(0, False), (1, False)]


@clause(v5="3.3.1-13")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_retain_as_published_shows_what_was_published(w: World, pub: FakeClient, retain: bool, qos: int) -> None:
    sub = w.connect(client_id="sub")
    subscribe(sub, "t", retain_as_published=True, qos=qos)
    deliver(pub, "t", b"live", retain=retain, qos=qos)
    assert [(m.payload, m.retain) for m in messages(sub)] == [(b"live", retain)]


@clause(v3="3.3.1-8", v5="3.3.1-9 3.3.1-12")
@pytest.mark.parametrize("as_published", [False, True])
def test_a_replay_is_marked_retained_whatever_the_option(w: World, pub: FakeClient, as_published: bool) -> None:
    deliver(pub, "t", b"kept", retain=True)
    sub = w.connect(client_id="sub")
    subscribe(sub, "t", retain_as_published=as_published)
    assert [(m.payload, m.retain) for m in messages(sub)] == [(b"kept", True)]


@clause(v3="3.3.1-10 3.3.1-11", v5="3.3.1-6 3.3.1-7")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", BOTH)
def test_an_empty_message_is_delivered_and_clears(w: World, version: int, qos: int) -> None:
    pub = w.connect(client_id="pub", version=version)
    deliver(pub, "t", b"kept", qos=1, retain=True)
    sub = subscriber(w, "t", version=version)
    assert payloads(sub) == [b"kept"]
    deliver(pub, "t", b"", qos=qos, retain=True)
    deliver(pub, "never/set", b"", qos=qos, retain=True)
    assert [(m.payload, m.retain) for m in messages(sub)] == [(b"", False)]
    assert kept(w) == []


@clause(v3="3.3.1-12", v5="3.3.1-8")
@pytest.mark.parametrize("payload", [b"", b"other"])
@pytest.mark.parametrize("version", BOTH)
def test_without_retain_nothing_is_stored_or_removed(w: World, version: int, payload: bytes) -> None:
    pub = w.connect(client_id="pub", version=version)
    deliver(pub, "t", b"kept", retain=True)
    deliver(pub, "t", payload, qos=1)
    deliver(pub, "u", payload, qos=1)
    assert kept(w) == [(b"t", b"kept")]


@clause(v3="3.8.4-3", v5="3.8.4-4 3.8.4-3 3.3.1-9")
@pytest.mark.parametrize("version", BOTH)
def test_subscribing_again_replays_again(w: World, pub: FakeClient, version: int) -> None:
    deliver(pub, "t", b"kept", qos=2, retain=True)
    sub = subscriber(w, "t", version=version)
    assert [(m.payload, m.qos) for m in messages(sub)] == [(b"kept", 0)]
    subscribe(sub, "t", qos=2)
    assert [(m.payload, m.qos, m.retain) for m in messages(sub)] == [(b"kept", 2, True)]


@clause(v5="3.3.1-10")
def test_retain_handling_1_replays_to_new_subscriptions_only(w: World, pub: FakeClient) -> None:
    deliver(pub, "t", b"kept", retain=True)
    sub = w.connect(client_id="sub")
    subscribe(sub, "t", retain_handling=1)
    assert payloads(sub) == [b"kept"]
    subscribe(sub, "t", retain_handling=1, qos=1)
    assert sub.receive() == []
    unsubscribe(sub, "t")
    subscribe(sub, "t", retain_handling=1)
    assert payloads(sub) == [b"kept"]


@clause(v5="3.3.1-11")
def test_retain_handling_2_never_replays(w: World, pub: FakeClient) -> None:
    deliver(pub, "t", b"kept", retain=True)
    sub = w.connect(client_id="sub")
    subscribe(sub, "t", retain_handling=2)
    subscribe(sub, "t", retain_handling=2)
    assert sub.receive() == []
    deliver(pub, "t", b"live", retain=True)
    assert payloads(sub) == [b"live"]
