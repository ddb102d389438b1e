"""Topic names and filters: what they may be and what matches (MQTT 4.7, 1.5)."""

from __future__ import annotations

import pytest

from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.kit import (
    ALL,
    BOTH,
    deliver,
    ended,
    frame,
    messages,
    persistent,
    properties_byte,
    publish_frame,
    subscribe,
    subscriber,
    topics,
    unsubscribe,
    utf8,
)
from tests.harness import World


@clause(v3="3.3.2-3", v5="3.3.2-3")
@pytest.mark.parametrize(
    ("filter", "topic", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/", False),
        ("a/b", "/a/b", False),
        ("a/b", "A/b", False),
        ("a/+", "a/b", True),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("+/b/#", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "/", True),
        ("a//b", "a//b", True),
        ("a/+/b", "a//b", True),
        ("a//b", "a/b", False),
    ],
)
@pytest.mark.parametrize("version", BOTH)
def test_delivered_topics_match_the_filter(w: World, version: int, filter: str, topic: str, matches: bool) -> None:
    sub = subscriber(w, filter, version=version)
    deliver(w.connect(client_id="pub"), topic)
    assert topics(sub) == ([topic.encode()] if matches else [])


@clause(v3="4.7.2-1", v5="4.7.2-1")
@pytest.mark.parametrize("filter", ["#", "+/monitor", "+/#", "+"])
@pytest.mark.parametrize("version", BOTH)
def test_a_leading_wildcard_does_not_match_topics_with_a_dollar(w: World, version: int, filter: str) -> None:
    sub = subscriber(w, filter, version=version)
    exact = subscriber(w, "$other/monitor", client_id="exact")
    below = subscriber(w, "$other/#", client_id="below")
    pub = w.connect(client_id="pub")
    deliver(pub, "$other/monitor")
    deliver(pub, "$other")
    assert sub.receive() == []
    assert topics(exact) == [b"$other/monitor"]
    assert topics(below) == [b"$other/monitor", b"$other"]


@pytest.mark.parametrize(
    "filter",
    [
        *(
            pytest.param(f, marks=clause(v3="4.7.1-2 4.8.0-1", v5="4.7.1-1 4.13.1-1"))
            for f in ("a/#/b", "a#", "#a", "#/a", "a/b#", "##")
        ),
        *(
            pytest.param(f, marks=clause(v3="4.7.1-3 4.8.0-1", v5="4.7.1-2 4.13.1-1"))
            for f in ("a+", "+a", "a/+b", "a/b+/c", "++", "a+/b")
        ),
        pytest.param("", marks=clause(v3="4.7.3-1 4.8.0-1", v5="4.7.3-1 4.13.1-1")),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("first", [0x82, 0xA2])
@pytest.mark.parametrize("version", ALL)
def test_an_invalid_filter_closes_the_connection(w: World, version: int, filter: str, first: int, place: int) -> None:
    """A protocol violation [MQTT-4.13.1-1] (3.1.1: [MQTT-4.8.0-1]), wherever it stands: nothing is subscribed to."""
    c = persistent(w, "a", version)
    filters = ["a/b", "a/b"]
    filters[place] = filter
    options = b"\1" if first == 0x82 else b""
    body = b"".join(utf8(each) + options for each in filters)
    c.send(frame(first, b"\0\1" + properties_byte(version) + body))
    ended(c, Reason.PROTOCOL_ERROR)
    deliver(w.connect(client_id="pub"), "a/b", qos=1)
    assert persistent(w, "a", version).receive() == []


@clause(v3="4.7.3-1", v5="4.7.3-1")
@pytest.mark.parametrize("version", BOTH)
def test_an_empty_topic_can_not_be_published_to(w: World, version: int) -> None:
    watcher = subscriber(w, "#")
    c = w.connect(client_id="a", version=version)
    c.send(publish_frame("", version=version))
    ended(c, Reason.PROTOCOL_ERROR, Reason.TOPIC_NAME_INVALID)
    assert watcher.receive() == []


@clause(v3="1.5.3-2 4.7.3-2", v5="1.5.4-2 4.7.3-2")
@pytest.mark.parametrize("version", BOTH)
def test_u_0000_closes_the_connection(w: World, version: int) -> None:
    null = utf8("a\0b")
    for packet in (
        publish_frame("a\0b", version=version),
        frame(0x82, b"\0\1" + properties_byte(version) + null + b"\0"),
        frame(0xA2, b"\0\1" + properties_byte(version) + null),
    ):
        c = w.connect(client_id="a", version=version)
        c.send(packet)
        ended(c, Reason.MALFORMED_PACKET)


@clause(v3="1.5.3-1 3.8.3-1 3.10.3-1", v5="1.5.4-1 3.8.3-1 3.10.3-1")
@pytest.mark.parametrize(
    "bad", [b"\xff", b"a\xc0\xaf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"a\xe2\x82"]
)
@pytest.mark.parametrize("version", BOTH)
def test_ill_formed_utf_8_closes_the_connection(w: World, version: int, bad: bytes) -> None:
    for packet in (
        publish_frame(bad, version=version),
        frame(0x82, b"\0\1" + properties_byte(version) + utf8(bad) + b"\0"),
        frame(0xA2, b"\0\1" + properties_byte(version) + utf8(bad)),
    ):
        c = w.connect(client_id="a", version=version)
        c.send(packet)
        ended(c, Reason.MALFORMED_PACKET)


@clause(v3="1.5.3-3", v5="1.5.4-3")
@pytest.mark.parametrize("version", BOTH)
def test_a_byte_order_mark_is_a_character(w: World, version: int) -> None:
    marked = subscriber(w, "\ufefft/\ufeff", version=version, client_id="marked")
    plain = subscriber(w, "t/", version=version, client_id="plain")
    c = w.connect(client_id="\ufeffa", version=version)
    deliver(c, "\ufefft/\ufeff")
    assert topics(marked) == [b"\xef\xbb\xbft/\xef\xbb\xbf"]
    assert plain.receive() == []
    w.connect(client_id="a", version=version)
    assert not c.closed  # another client id


@clause(v3="4.7.3-4", v5="4.7.3-4")
@pytest.mark.parametrize("version", BOTH)
def test_characters_are_not_normalised(w: World, version: int) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    one = subscriber(w, composed, version=version, client_id="one")
    two = subscriber(w, decomposed, version=version, client_id="two")
    upper = subscriber(w, composed.upper(), version=version, client_id="upper")
    deliver(w.connect(client_id="pub"), composed)
    assert topics(one) == [composed.encode()]
    assert (two.receive(), upper.receive()) == ([], [])


@clause(v3="4.7.3-3", v5="4.7.3-3")
@pytest.mark.parametrize("version", ALL)
def test_topics_of_65535_bytes_are_served(w: World, version: int) -> None:
    topic = "t" * 65535
    sub = subscriber(w, topic, version=version)
    deliver(w.connect(client_id="pub", version=version), topic, b"long")
    (message,) = messages(sub)
    assert (message.topic, message.payload) == (topic.encode(), b"long")


@clause(v3="3.10.4-1", v5="3.10.4-1")
@pytest.mark.parametrize("version", BOTH)
def test_filters_to_remove_are_compared_by_character(w: World, version: int) -> None:
    sub = w.connect(client_id="sub", version=version)
    subscribe(sub, "a/+", "a/b", "A/b")
    unsubscribe(sub, "a/#", "a/B", "+/b", "a/+")
    pub = w.connect(client_id="pub")
    for topic in ("a/b", "A/b", "a/c"):
        deliver(pub, topic)
    assert topics(sub) == [b"a/b", b"A/b"]
