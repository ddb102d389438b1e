from __future__ import annotations

from itertools import product
from random import Random

import pytest

from starlingmq.core.topics.topics import matches
from starlingmq.jetstream.subjects import (
    FiltersOfStreams,
    any_collide,
    collide,
    covers,
    filter_or_none,
    is_literal,
    topic_or_none,
)

LEVELS = (b"a", b"b", b"+")
FILTERS = [b"/".join(each) for length in (1, 2, 3) for each in product(LEVELS, repeat=length)]
FILTERS += [b"#", *(each + b"/+/#" for each in FILTERS if each.count(b"/") < 2)]
TOPICS = [b"/".join(each) for length in (1, 2, 3, 4, 5) for each in product((b"a", b"b"), repeat=length)]
MATCHED = {each: frozenset(topic for topic in TOPICS if matches(each, topic)) for each in FILTERS}


def test_filters_collide_if_a_topic_matches_both() -> None:
    for one, other in product(FILTERS, repeat=2):
        assert collide(one, other) == bool(MATCHED[one] & MATCHED[other]), (one, other)


def test_a_filter_covers_another_if_it_matches_all_of_its_topics() -> None:
    for wide, narrow in product(FILTERS, repeat=2):
        assert covers(wide, narrow) == (MATCHED[narrow] <= MATCHED[wide]), (wide, narrow)


@pytest.mark.parametrize("subject", ["", ".", "a..b", "a.", ".a", "a b", "a.>.b", "a\0", "\udc80"])
def test_invalid_subjects_have_no_filter(subject: str) -> None:
    assert filter_or_none(subject) is None


def test_subjects_become_filters() -> None:
    assert [filter_or_none(each) for each in ("a.b", "a.*", "a.>", ">")] == [b"a/b", b"a/+", b"a/+/#", b"#"]
    assert topic_or_none("a.*") is None
    assert topic_or_none("a.b") == b"a/b"
    assert [is_literal(each) for each in ("a.b", "a.*", ">", "a*")] == [True, False, False, True]


def test_filters_of_streams_are_found_by_those_that_collide_with_them() -> None:
    random = Random(1)

    def filter() -> bytes:
        levels = random.choices((b"a", b"b", b"+"), k=random.randint(1, 4))
        return b"/".join(levels + [b"#"] * (random.random() < 0.3))

    for _ in range(3000):
        known = list({filter() for _ in range(random.randint(0, 6))})
        filters, asked = FiltersOfStreams(), filter()
        for number, each in enumerate(known):
            filters.add([each], str(number))
        taken = filters.taken([asked])
        assert (taken != "") == any_collide([asked], known), (asked, known)
        assert not taken or collide(asked, known[int(taken)])
    deep = FiltersOfStreams()
    deep.add([b"a/" * 5000 + b"#"], "deep")
    assert (deep.taken([b"a/" * 5001 + b"b"]), deep.taken([b"a/" * 4000 + b"b"])) == ("deep", "")
