"""FilterTree against a linear scan, at its bounds, and its memory."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.twins import SMALL_FILTERS, SMALL_TOPICS, LinearFilters, filters, topics
from tests.few import drawn, live

from starlingmq.core.topics import filter_tree
from starlingmq.core.topics.filter_tree import FilterTree, Subscriber
from starlingmq.core.topics.topics import matches

DEPTH_MAX = 128


class AsTheScanSays(RuleBasedStateMachine):
    """After any sequence of additions and removals the tree matches the same filters as the scan."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = FilterTree()
        self.twin = LinearFilters()
        self.count = 0

    @rule(filter=filters, key=st.integers(0, 3))
    def add(self, filter: bytes, key: int) -> None:
        self.count += 1
        assert self.tree.add(filter, key, self.count) == self.twin.add(filter, key, self.count)

    @rule(filter=filters, key=st.integers(0, 3))
    def remove_any(self, filter: bytes, key: int) -> None:
        assert self.tree.remove(filter, key) == self.twin.remove(filter, key)

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.twin.values:
            filter, key = data.draw(st.sampled_from(sorted(self.twin.values, key=repr)))
            assert self.tree.remove(filter, key) == self.twin.remove(filter, key)

    @rule(topic=topics)
    def match(self, topic: bytes) -> None:
        assert Counter(self.tree.match(topic)) == Counter(self.twin.match(topic))

    @rule(filter=filters)
    def has(self, filter: bytes) -> None:
        assert self.tree.has(filter) == (filter in self.twin.filters())

    @invariant()
    def same_contents(self) -> None:
        assert len(self.tree) == len(self.twin.values)
        assert self.tree.filters() == self.twin.filters()
        # At zero, a match does not even split the topic.
        assert self.tree._wildcards == sum(b"+" in filter or b"#" in filter for filter in self.twin.filters())


@drawn(40, 200)
def test_the_tree_matches_as_the_scan(examples: int) -> None:
    live(AsTheScanSays, examples, stateful_step_count=40)


@given(st.sets(st.sampled_from(SMALL_FILTERS)))
@settings(max_examples=50, deadline=None)
def test_every_small_topic(given_filters: set[bytes]) -> None:
    tree = FilterTree()
    for filter in sorted(given_filters):
        tree.add(filter, "key", filter)
    for topic in SMALL_TOPICS:
        assert sorted(map(bytes_of, tree.match(topic))) == sorted(f for f in given_filters if matches(f, topic))


@given(st.lists(filters, unique=True, min_size=1, max_size=60), st.lists(topics, max_size=20))
def test_many_filters_at_once(given_filters: list[bytes], given_topics: list[bytes]) -> None:
    tree = FilterTree()
    for filter in given_filters:
        tree.add(filter, "key", filter)
    for topic in given_topics:
        assert sorted(map(bytes_of, tree.match(topic))) == sorted(f for f in given_filters if matches(f, topic))


def bytes_of(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


@pytest.mark.parametrize("filter", [b"a/b", b"a/+", b"#", b"+", b"a/b/#", b"/"])
def test_one_key_has_one_value_per_filter(filter: bytes) -> None:
    tree = FilterTree()
    assert tree.add(filter, "client", "first") is None
    assert tree.add(filter, "client", "second") == "first"
    assert tree.add(filter, "other", "third") is None
    assert tree.add(filter, "other", "fourth") == "third"
    assert len(tree) == 2
    assert tree.remove(filter, "nobody") is None
    assert tree.remove(filter, "client") == "second"
    assert tree.remove(filter, "client") is None
    assert tree.remove(filter, "other") == "fourth"
    assert (len(tree), tree.has(filter), tree.filters()) == (0, False, [])


def test_the_order_is_that_of_the_additions() -> None:
    runs = []
    for _ in range(2):
        tree = FilterTree()
        for key in range(100):
            tree.add(b"a/+" if key % 3 else b"a/b", key, key)
        for key in range(0, 100, 7):
            tree.remove(b"a/+", key)
        runs.append(tree.match(b"a/b"))
    assert runs[0] == runs[1]
    assert runs[0] == [k for k in range(100) if k % 3 == 0] + [k for k in range(100) if k % 3 and k % 7]


@pytest.mark.interpreted_only("a compiled class takes no interpreted subclass")
def test_a_subscriber_that_knows_its_key_is_stored_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Subscriber):
        def key(self) -> object:
            return owner

    def no_wrapping(*args: object) -> None:
        raise AssertionError("wrapped")

    owner, bare = object(), Own()
    with monkeypatch.context() as patched:
        patched.setattr(filter_tree._Pair, "__init__", no_wrapping)
        tree = FilterTree()
        tree.add(b"a", owner, bare)
        tree.add(b"a/+", owner, bare)
    assert tree.match(b"a") == [bare]
    assert tree.match(b"a/b") == [bare]
    tree.add(b"a", "another", "value")
    assert tree.match(b"a") == [bare, "value"]
    assert tree.remove(b"a", "another") == "value"
    assert tree.remove(b"a", owner) is bare
    # Under another key than its own it is a value like any other.
    tree.add(b"b", "other", bare)
    assert tree.remove(b"b", owner) is None
    assert tree.remove(b"b", "other") is bare


def test_every_node_is_visited_at_most_once() -> None:
    """a/a/a/... against all 2^10 mixtures of 'a' and '+': as many visits as the tree has nodes, all of which match."""
    depth = 10
    tree = FilterTree()
    for parts in itertools.product([b"a", b"+"], repeat=depth):
        tree.add(b"/".join(parts), "key", parts)
    assert len(tree.match(b"/".join([b"a"] * depth))) == 2**depth
    assert tree.visits <= 2 ** (depth + 1)


def test_mixtures_that_cannot_match_cost_no_more_than_their_nodes() -> None:
    """The same with one level too few and with one that no filter has: no walk is repeated on the way to nothing."""
    depth = 10
    tree = FilterTree()
    for parts in itertools.product([b"a", b"+"], repeat=depth):
        tree.add(b"/".join([*parts, b"end"]), "key", parts)
    assert tree.match(b"/".join([b"a"] * depth)) == []
    assert tree.visits <= 2 ** (depth + 1)
    assert tree.match(b"/".join([b"a"] * (depth + 1))) == []
    assert tree.visits <= 2 ** (depth + 1)
    assert tree.match(b"b/" * depth + b"end") == [(b"+",) * depth]
    assert tree.visits <= depth + 2


def test_levels_that_wildcards_share_are_walked_once_each() -> None:
    """+/+/+... of every depth, with and without '#': a chain, so a match walks it, however many filters hang on it."""
    tree = FilterTree()
    for depth in range(1, DEPTH_MAX + 1):
        tree.add(b"/".join([b"+"] * depth), "key", depth)
        tree.add(b"/".join([*[b"+"] * depth, b"#"]), "key", -depth)
    assert sorted(tree.match(b"/".join([b"a"] * DEPTH_MAX)), key=repr) == sorted(
        [DEPTH_MAX, *range(-DEPTH_MAX, 0)], key=repr
    )
    assert tree.visits <= DEPTH_MAX


def test_unrelated_filters_cost_a_match_nothing() -> None:
    tree = FilterTree()
    for number in range(10_000):
        tree.add(b"fleet/%d/+/state" % number, number, number)
        tree.add(b"+/%d/#" % number, number, -number)
        tree.add(b"fleet/%d" % number, number, number)
    assert tree.match(b"fleet/77/engine/state") == [77, -77]
    assert tree.visits <= 4
    assert tree.match(b"elsewhere/x/y") == []
    assert tree.visits <= 2


def test_deep_filters_with_a_common_beginning() -> None:
    """Two filters that differ from level 128 on, and many that differ earlier; removing all removes their nodes too."""
    deep = [b"/".join([*[b"a"] * depth, b"+", b"x"]) for depth in range(DEPTH_MAX)]
    tree = FilterTree()
    for number, filter in enumerate(deep):
        tree.add(filter, "key", number)
    for number in range(DEPTH_MAX):
        assert tree.match(b"/".join([*[b"a"] * number, b"b", b"x"])) == [number]
        assert tree.visits <= 2 * DEPTH_MAX
    for filter in deep:
        tree.remove(filter, "key")
    assert tree.filters() == []
    assert tree.match(b"a/a/a") == []
    tree.add(b"zzz/+", "key", 1)
    assert tree.match(b"a/a/a") == []
    assert tree.visits == 0


def test_a_topic_of_nothing_but_slashes() -> None:
    """The longest topic and filter there can be by number of levels: walked, not recursed into."""
    tree = FilterTree()
    tree.add(b"/" * 65534 + b"+", "key", "plus")
    tree.add(b"/" * 65534 + b"#", "key", "multi")
    tree.add(b"/" * 30000 + b"+", "key", "shorter")
    assert sorted(map(str, tree.match(b"/" * 65534))) == ["multi", "plus"]
    assert tree.match(b"/" * 30000) == ["shorter"]
    assert tree.visits <= 30_002
    assert tree.remove(b"/" * 65534 + b"+", "key") == "plus"
    assert tree.remove(b"/" * 65534 + b"#", "key") == "multi"
    assert tree.filters() == [b"/" * 30000 + b"+"]


@pytest.mark.parametrize("filter", [b"all", b"all/#"])
def test_a_hundred_thousand_on_one_filter(filter: bytes) -> None:
    """Removal does not search: with a scan of the subscribers, this test would take minutes."""
    tree = FilterTree()
    for number in range(100_000):
        tree.add(filter, number, number)
    assert len(tree.match(b"all")) == 100_000
    for number in range(99_990):
        assert tree.remove(filter, number) == number
    assert tree.match(b"all") == list(range(99_990, 100_000))
    # The remaining entries do not keep the memory of removed ones.
    slot = tree._slot(filter)
    assert isinstance(slot, dict)
    assert slot.__sizeof__() < 10_000


def test_a_branch_may_widen_and_narrow() -> None:
    count = 3 * filter_tree.NARROW_MAX
    names = [b"f/%d/+/x" % number for number in range(count)]
    tree = FilterTree()
    tree.add(b"f/+/#", "key", "all")
    for name in names:
        tree.add(name, "key", name)
    assert tree.match(b"f/17/y/x") == [b"f/17/+/x", "all"]
    assert tree.filters() == sorted([*names, b"f/+/#"])
    for name in names:
        assert tree.remove(name, "key") == name
    assert tree.filters() == [b"f/+/#"]
    assert tree.match(b"f/17/y/x") == ["all"]
