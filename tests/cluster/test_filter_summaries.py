"""Filters in sum: what a node publishes, and what another node's router makes of it, beside a dumb twin that keeps all
filters exactly."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster.summary_twin import Twin, live, shrink
from tests.few import few
from tests.planting import Plant, around, first_to_find

from starlingmq.cluster.links.record_bytes import RouteRecord, RouteRecordError, pack_records, unpack_records
from starlingmq.cluster.routes import filter_shape
from starlingmq.cluster.routes.filter_shape import FilterShape, Record, fitting_size
from starlingmq.cluster.routes.filter_summaries import FilterSummaries
from starlingmq.cluster.routes.route_facts import decode_records, encode_records, encode_value
from starlingmq.core.peers.peer_summaries import PeerSummaries
from starlingmq.core.router.filter_summary import CHUNK_BITS, is_summary
from starlingmq.core.router.router import Router
from starlingmq.core.session.session import Session

MINIMUM = 40

Sound = Callable[..., Any]
interpreted = pytest.mark.interpreted_only("what is compiled cannot be patched")


def fleet(numbers: range) -> dict[bytes, int]:
    return {b"devices/%d/commands" % number: 2 for number in numbers}


def test_few_filters_are_published_exactly() -> None:
    twin = Twin(MINIMUM)
    twin.set(fleet(range(MINIMUM - 1)))
    assert twin.table == twin.wanted
    assert not any(is_summary(key) for key in twin.table)


def test_many_filters_of_one_shape_are_a_summary_that_admits_each() -> None:
    twin = Twin(MINIMUM)
    twin.set({b"lone/filter": 1, b"lone/+/filter": 1, b"$share/group/devices/1/commands": 3})
    twin.set(fleet(range(1000)))
    assert {key: value for key, value in twin.table.items() if not is_summary(key)} == {
        b"lone/filter": 1,
        b"lone/+/filter": 1,
        b"$share/group/devices/1/commands": 3,
    }
    assert len(twin.table) < 500
    assert all(twin.receives(filter) for filter in twin.wanted if filter.startswith(b"devices/"))


def test_a_summary_admits_few_others() -> None:
    twin = Twin(MINIMUM)
    twin.set(fleet(range(10_000)))
    admitted = sum(twin.receives(b"devices/%d/commands" % number) for number in range(10_000, 20_000))
    assert 0 < admitted < 200
    assert not twin.receives(b"devices/1/state")
    assert not twin.receives(b"devices/1/2/commands")


def test_a_filter_in_a_summary_takes_at_most_40_bytes_at_another_node() -> None:
    twin = Twin(1000)
    twin.set(fleet(range(20_000)))
    entries = list(twin.table.items())
    tracemalloc.start()
    try:
        routes: dict[bytes, int] = {}
        router, session = Router(1, 1 << 16, 1 << 10), Session("$node/2")
        session.node = 2
        summaries = PeerSummaries(router)
        for key, value in entries:
            own = bytes(bytearray(key))  # as it comes from a frame
            routes[own] = value
            summaries.route(session, own, value)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 20_000 <= 40


def test_a_filter_that_comes_back_changes_nothing() -> None:
    twin = Twin(MINIMUM)
    twin.set(fleet(range(1000)))
    published = len(twin.records)
    twin.set({b"devices/7/commands": 0})
    twin.set({b"devices/7/commands": 2})
    assert len(twin.records) == published


def test_a_topic_that_was_not_wanted_is_looked_up_again_when_its_chunk_changes() -> None:
    twin = Twin(MINIMUM)
    twin.set(fleet(range(MINIMUM)))
    new = [b"devices/%d/commands" % number for number in range(500, 540)]
    before = [twin.receives(topic) for topic in new]  # cached from here on
    twin.set(dict.fromkeys(new, 1))
    assert before.count(True) < 5
    assert all(twin.receives(topic) for topic in new)


def test_the_shape_is_published_before_its_chunks_and_an_exact_entry_is_removed_after_them() -> None:
    twin = Twin(MINIMUM)
    twin.set(fleet(range(MINIMUM)))  # the twin checks after each single record that nothing that is wanted is missing
    assert any(value == 0 for _, value in twin.records)
    assert is_summary(next(iter(twin.table)))


def test_a_small_shape_is_exact_again() -> None:
    twin = Twin(MINIMUM)
    twin.set(fleet(range(1000)))
    twin.set(dict.fromkeys(fleet(range(995)), 0))
    assert twin.table == fleet(range(995, 1000))


def test_a_fleet_that_grows_gets_more_chunks_and_each_filter_is_admitted_meanwhile() -> None:
    twin = Twin(MINIMUM)
    for first in range(0, 8000, 100):
        twin.set(fleet(range(first, first + 100)))
    chunks = sum(is_summary(key) for key in twin.table) - 1
    assert chunks * filter_shape.CHUNK_MEMBERS > 8000 / 2
    assert chunks <= 1 << fitting_size(8000)


def test_former_members_are_forgotten_once_they_are_as_many_as_the_present_ones() -> None:
    twin = Twin(MINIMUM)
    twin.set(fleet(range(2000)))
    twin.set(dict.fromkeys(fleet(range(1100)), 0))
    assert sum(twin.receives(b"devices/%d/commands" % number) for number in range(1100)) < 60


def test_a_summary_that_lets_too_much_through_is_split() -> None:
    twin = Twin(MINIMUM)
    twin.set(fleet(range(2000)))
    before = sum(is_summary(key) for key in twin.table)
    twin.arrive([b"devices/%d/commands" % number for number in range(5000, 5600)], received=1800)
    assert sum(is_summary(key) for key in twin.table) > 1.5 * before


def test_one_durable_subscriber_makes_the_shape_durable() -> None:
    twin = Twin(MINIMUM)
    twin.set(dict.fromkeys(fleet(range(1000)), 1))
    assert not twin.durable(b"devices/1/commands")
    twin.set({b"devices/2/commands": 2})
    assert twin.durable(b"devices/2/commands")


@pytest.mark.parametrize(
    "filters",
    [
        [b"%d/commands" % number for number in range(100)],
        [b"site/%d" % number for number in range(100)],
        [b"site/%d/#" % number for number in range(100)],
        [b"site/+/%d/state/#" % number for number in range(100)],
        [b"/%d" % number for number in range(100)],
        [b"a/b/c/%d/" % number for number in range(100)],
    ],
    ids=repr,
)
def test_any_level_may_vary(filters: list[bytes]) -> None:
    twin = Twin(MINIMUM)
    twin.set(dict.fromkeys(filters, 1))
    assert len(twin.table) < MINIMUM
    for filter in filters:
        assert twin.receives(filter.replace(b"+", b"x").replace(b"/#", b"/x/y"))


def test_topics_of_the_broker_itself_are_not_summarised_at_the_first_level() -> None:
    twin = Twin(MINIMUM)
    twin.set({b"$%d/x" % number: 1 for number in range(100)})
    assert twin.receives(b"$7/x")
    assert len(twin.table) == 100


@interpreted
@pytest.mark.parametrize("seed", few(range(60), *range(8)))
def test_nothing_that_is_wanted_is_ever_missing(seed: int) -> None:
    live(seed)


def removals_first(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record[1] != 0)


def absorbed_early(absorb: Sound, summaries: Any, absorbing: Any, table: Any, records: list[Record]) -> None:
    absorb(summaries, absorbing, table, records)
    records[:] = removals_first(records)


def without(attribute: str) -> Sound:
    """A method that finds nothing in this attribute."""

    def planted(method: Sound, shape: Any, *arguments: Any) -> None:
        before = getattr(shape, attribute)
        setattr(shape, attribute, {} if attribute == "_unpublished" else None)
        method(shape, *arguments)
        setattr(shape, attribute, before)

    return planted


def removed_early(step: Sound, shape: Any, limit: int, records: list[Record]) -> None:
    if shape._unread is None and shape._removed is not None:
        without("_published")(step, shape, limit, records)
    else:
        step(shape, limit, records)


def not_exact_again(dissolve: Sound, summaries: Any, shape: Any, records: list[Record]) -> None:
    shape.members = {}
    dissolve(summaries, shape, records)


MISTAKES: dict[str, Plant] = {
    "exact entries are removed before the chunks are published": around(
        FilterSummaries, "translate", lambda translate, *arguments: removals_first(translate(*arguments))
    ),
    "absorbed entries are removed before the chunks are published": around(FilterSummaries, "_absorb", absorbed_early),
    "filters that come while the chunks are made again are left out": around(FilterShape, "_add", without("_next")),
    "chunks of the old size are removed first": around(FilterShape, "step", removed_early),
    "a shape is withdrawn before its filters are exact again": around(FilterSummaries, "_dissolve", not_exact_again),
    "a shape includes what it does not match": patch.object(filter_shape, "SLASH", 0),
    "a restart forgets the shapes' filters": patch.object(FilterShape, "whole", lambda shape: ()),
}


@interpreted
@pytest.mark.parametrize(
    "mistake",
    few(
        MISTAKES,
        "exact entries are removed before the chunks are published",
        "a shape includes what it does not match",
        "a restart forgets the shapes' filters",
    ),
)
def test_each_mistake_is_found(mistake: str) -> None:
    assert first_to_find(range(300), lambda: MISTAKES[mistake], live) >= 0, "no seed of 300 finds it"


@interpreted
def test_a_filter_that_relies_on_chunks_which_are_not_published_is_found() -> None:
    shrink()
    with around(FilterShape, "_add", without("_unpublished")), pytest.raises(AssertionError, match="is not received"):
        shrink()


def test_wide_values_travel_and_are_stored() -> None:
    records = [RouteRecord(b"a/b", 2), RouteRecord(b"\0\2x", (1 << CHUNK_BITS) - 1), RouteRecord(b"c", 0xFFFFFFFF)]
    assert decode_records(encode_records(records)) == records
    assert unpack_records(pack_records(records)) == records
    with pytest.raises(RouteRecordError):
        unpack_records(pack_records([RouteRecord(b"\0\2x", 1 << CHUNK_BITS)]))
    assert int.from_bytes(encode_value(1 << 100), "big") == 1 << 100


def test_a_shape_takes_one_level_only() -> None:
    shape = FilterShape(1, b"d/", b"/c", 0)
    assert shape.varying(b"d/1/c") == b"1"
    assert shape.varying(b"d//c") == b""
    for other in (b"d/1/2/c", b"d/+/c", b"d/#", b"d/c", b"x/1/c", b"d/1/x"):
        assert shape.varying(other) is None
