"""One space of names: the table of docs/NATS.md, and the round trip of every name."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from starlingmq.core.nats.subject_cache import GENERATION, SubjectCache
from starlingmq.core.topics.topics import matches, valid_filter, valid_topic
from starlingmq.wire.nats_subjects import filter_of, subject_of, topic_of

relaxed = settings(deadline=None)

# subject, topic: each is the other's only translation
PAIRS = [
    ("a", "a"),
    ("sensors.kitchen.temperature", "sensors/kitchen/temperature"),
    ("_INBOX.x1.7", "_INBOX/x1/7"),
    ("$JS.API.INFO", "$JS/API/INFO"),
    ("$SYS.broker.uptime", "$SYS/broker/uptime"),
    ("v1/2.x", "v1.2/x"),
    ("files./etc/passwd", "files/.etc.passwd"),
    ("c#.build", "c>/build"),
    ("a+b.c", "a*b/c"),
    ("+.x", "*/x"),
    ("#", ">"),
    ("/.a", "/a"),
    ("a./", "a/"),
    ("a./.b", "a//b"),
    ("/./", "/"),
    ("a.//.b", "a/./b"),
    ("a.///", "a/.."),
    ("living\u2420room.temp", "living room/temp"),
    ("a\u2409b\u240a\u240d", "a\tb\n\r"),
    ("caf\u00e9.\u6e29\u5ea6", "caf\u00e9/\u6e29\u5ea6"),
]

NO_TOPIC = ["", ".", "a.", ".a", "a..b", "*", "a.*", "a.>", "foo*", "a.b>.c", "a b", "a\tb", "a\0b", "/"]
NO_SUBJECT = ["a\u2420b", "\u2409", "x/\u240d"]

# subscription, filter
FILTERS = [
    ("a.b", "a/b"),
    ("*", "+"),
    (">", "#"),
    ("a.*", "a/+"),
    ("*.b.*", "+/b/+"),
    ("a.>", "a/+/#"),
    ("*.>", "+/+/#"),
    ("$SYS.>", "$SYS/+/#"),
    ("v1/2.*", "v1.2/+"),
    ("/.*", "/+"),
    ("a./.>", "a//+/#"),
    ("c#.*", "c>/+"),
]
NO_FILTER = ["", ".", "a.", ".a", "a..b", "a.>.b", ">.a", "a*", "*a.b", "a.b>", "a b", "a.*.\0", "/"]


@pytest.mark.parametrize(("subject", "topic"), PAIRS)
def test_pairs(subject: str, topic: str) -> None:
    assert topic_of(subject.encode()) == topic.encode()
    assert subject_of(topic.encode()) == subject.encode()
    assert filter_of(subject.encode()) == topic.encode()


@pytest.mark.parametrize("subject", NO_TOPIC)
def test_subjects_without_a_topic(subject: str) -> None:
    assert topic_of(subject.encode()) == b""


@pytest.mark.parametrize("topic", NO_SUBJECT)
def test_topics_without_a_subject(topic: str) -> None:
    assert subject_of(topic.encode()) == b""


@pytest.mark.parametrize(("subject", "filter"), FILTERS)
def test_filters(subject: str, filter: str) -> None:
    assert filter_of(subject.encode()) == filter.encode()


@pytest.mark.parametrize("subject", NO_FILTER)
def test_invalid_subscription_subjects_are_refused(subject: str) -> None:
    assert filter_of(subject.encode()) == b""


def test_names_must_be_utf_8() -> None:
    assert topic_of(b"a.\xff") == b""
    assert filter_of(b"*.\xff") == b""


character = st.sampled_from("ab/.+#*> \t\u2420\u2409\u00e9$") | st.characters(exclude_categories=["Cs"])
names = st.text(character, min_size=1, max_size=12).map(str.encode)


@relaxed
@given(names)
@example(b"a b")
@example("a\u2420b".encode())
def test_a_topic_comes_back(topic: bytes) -> None:
    assume(valid_topic(topic))
    subject = subject_of(topic)
    if subject:
        assert topic_of(subject) == topic
        assert not any(blank in subject for blank in b" \t\r\n\f\v")
    else:
        assert any(chr(0x2400 + code).encode() in topic for code in (9, 10, 11, 12, 13, 32))


@relaxed
@given(names)
def test_a_subject_comes_back(subject: bytes) -> None:
    topic = topic_of(subject)
    if topic:
        assert valid_topic(topic)
        assert subject_of(topic) == subject
    filter = filter_of(subject)
    assert not filter or valid_filter(filter)


def nats_matches(subscription: bytes, subject: bytes) -> bool:
    """As NATS defines it: ``*`` is one token, ``>`` one or more."""
    wanted, given = subscription.split(b"."), subject.split(b".")
    for place, token in enumerate(wanted):
        if token == b">":
            return len(given) > place
        if place == len(given) or token not in (b"*", given[place]):
            return False
    return len(given) == len(wanted)


token = st.text("ab/+#", min_size=1, max_size=3)
subjects = st.lists(token, min_size=1, max_size=4).map(lambda tokens: ".".join(tokens).encode())
wild = st.lists(token | st.just("*"), max_size=4)
subscriptions = st.tuples(wild, st.booleans()).map(lambda parts: ".".join([*parts[0], *[">"] * parts[1]]).encode())


@relaxed
@given(subscriptions, subjects)
def test_the_other_spelling_matches_what_nats_matches(subscription: bytes, subject: bytes) -> None:
    filter, topic = filter_of(subscription), topic_of(subject)
    assume(filter and topic)
    assert matches(filter, topic) == nats_matches(subscription, subject)


def test_spellings_are_remembered_and_bounded() -> None:
    spellings = SubjectCache()
    for number in range(GENERATION * 3):
        assert spellings.topic_of(b"a.%d" % number) == b"a/%d" % number
        assert spellings.head_of(b"b/%d" % number) == b"MSG b.%d " % number
    kept = (spellings._topics, spellings._older_topics, spellings._heads, spellings._older_heads)
    assert all(len(generation) <= GENERATION for generation in kept)
    assert spellings.topic_of(b"a.1") == b"a/1"
    assert spellings.topic_of(b"a..1") == b""
    assert spellings.head_of("\u2420".encode()) == b""
