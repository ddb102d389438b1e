"""The filter in which two filters meet, against all topics of a small world."""

from __future__ import annotations

from itertools import product

from starlingmq.core.topics.topics import matches, meet, valid_filter

LEVELS = ("a", "b", "$x", "")
TOPICS = ["/".join(levels).encode() for length in (1, 2, 3) for levels in product(LEVELS, repeat=length) if any(levels)]
FILTERS = [
    "/".join(levels).encode()
    for length in (1, 2, 3)
    for levels in product(("a", "$x", "+", "#", ""), repeat=length)
    if any(levels) and valid_filter("/".join(levels).encode())
]


def test_two_filters_meet_in_the_topics_that_both_match() -> None:
    matched = {filter: {topic for topic in TOPICS if matches(filter, topic)} for filter in FILTERS}
    met = 0
    for one in FILTERS:
        for other in FILTERS:
            both = meet(one, other)
            if both:
                assert valid_filter(both), (one, other, both)
                met += 1
                assert {topic for topic in TOPICS if matches(both, topic)} == matched[one] & matched[other], (
                    one,
                    other,
                )
            else:
                assert not matched[one] & matched[other], (one, other)
    assert met > len(FILTERS)
