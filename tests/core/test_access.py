"""Rights: the decisions of rules about topics and filters, checked against every topic of a small set."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from starlingmq.core.limits.access import (
    EVERY_PUBLISH,
    GROUP,
    NOTHING,
    PUBLISH,
    STREAM,
    SUBSCRIBE,
    WHOLE,
    Grant,
    Rights,
)
from starlingmq.core.topics.topics import matches

NAMES = (b"a", b"b", b"$s", b"")
TOPICS = [b"/".join(parts) for length in (1, 2, 3) for parts in product(NAMES, repeat=length) if parts != (b"",)]


def grant(allow: bool, filter: bytes, actions: int = SUBSCRIBE | PUBLISH, group: bytes = b"") -> Grant:
    levels = filter.split(b"/")
    rest = levels[-1] == b"#"
    fixed: list[bytes | None] = [None if level == b"+" else level for level in (levels[:-1] if rest else levels)]
    return Grant(allow, actions, EVERY_PUBLISH, fixed, rest, group)


level = st.sampled_from((*NAMES, b"+"))
filters = st.builds(
    lambda parts, rest: b"/".join([*parts, b"#"] if rest else parts),
    st.lists(level, min_size=1, max_size=3),
    st.booleans(),
).filter(bool) | st.just(b"#")


@given(filters, filters)
def test_a_rule_is_about_the_topics_that_it_matches(rule: bytes, filter: bytes) -> None:
    one = grant(True, rule)
    of_rule = {topic for topic in TOPICS if one.matches(topic.split(b"/"))}
    assert of_rule == {topic for topic in TOPICS if matches(rule, topic)}
    of_filter = {topic for topic in TOPICS if matches(filter, topic)}
    if one.covers(filter.split(b"/")):
        assert of_filter <= of_rule
    if of_filter & of_rule:
        assert one.overlaps(filter.split(b"/"))


@given(filters)
def test_a_rule_covers_and_overlaps_itself(filter: bytes) -> None:
    assert grant(True, filter).covers(filter.split(b"/"))
    assert grant(True, filter).overlaps(filter.split(b"/"))


@given(st.lists(st.tuples(st.booleans(), filters), max_size=5), st.booleans(), filters)
def test_a_granted_subscription_never_delivers_a_denied_topic(
    rules: list[tuple[bool, bytes]], default: bool, filter: bytes
) -> None:
    rights = Rights([grant(allow, rule) for allow, rule in rules], default)
    if not rights.may_subscribe(filter, b""):
        return
    for topic in TOPICS:
        if matches(filter, topic):
            first = next((allow for allow, rule in rules if matches(rule, topic)), default)
            assert first, topic
            assert rights.may_publish(topic, 0, False)


def test_rules_that_overlap_without_covering() -> None:
    secrets = Rights([grant(False, b"secret/#"), grant(True, b"#")], False)
    assert secrets.may_subscribe(b"open/#", b"")
    assert not secrets.may_subscribe(b"#", b"")
    assert not secrets.may_subscribe(b"+/x", b"")
    assert not secrets.may_subscribe(b"$SYS/#", b"")
    assert Rights([grant(True, b"secret/mine"), grant(False, b"secret/#")], True).may_subscribe(b"secret/mine", b"")


def test_qos_and_retain_are_decided_each_for_itself() -> None:
    only_retained = Grant(False, PUBLISH, 0b111000, [], True, b"")
    only_qos_2 = Grant(False, PUBLISH, 0b100100, [b"a"], False, b"")
    rights = Rights([only_retained, only_qos_2], True)
    said = [rights.may_publish(b"a", qos, retain) for retain in (False, True) for qos in range(3)]
    assert said == [True, True, False, False, False, False]
    assert [rights.may_publish(b"b", qos, False) for qos in range(3)] == [True] * 3


def test_cached_decisions_are_bounded() -> None:
    rights = Rights([grant(True, b"a/+")], False)
    for number in range(5000):
        assert rights.may_publish(b"a/%d" % number, 0, False)
    assert len(rights._publishes) <= 1000


def test_groups_and_streams_have_rules_of_their_own() -> None:
    rights = Rights([grant(True, b"jobs/#", GROUP, b"workers"), grant(True, b"orders", STREAM)], False)
    assert rights.may_subscribe(b"jobs/1", b"workers")
    assert not rights.may_subscribe(b"jobs/1", b"others")
    assert not rights.may_subscribe(b"jobs/1", b"")
    assert rights.may_read(b"orders") and not rights.may_read(b"others")


@given(st.lists(st.tuples(st.booleans(), filters), max_size=5), st.booleans(), filters)
def test_a_partly_denied_filter_is_decided_per_topic(
    rules: list[tuple[bool, bytes]], default: bool, filter: bytes
) -> None:
    rights = Rights([grant(allow, rule) for allow, rule in rules], default)
    extent = rights.extent(filter, b"")
    matched = [topic for topic in TOPICS if matches(filter, topic)]
    first = {topic: next((allow for allow, rule in rules if matches(rule, topic)), default) for topic in matched}
    assert all(rights.may_receive(topic) == allowed for topic, allowed in first.items())
    if extent == WHOLE:
        assert all(first.values())
    elif extent == NOTHING and default and all(not allow for allow, _ in rules):
        assert not any(first.values())
