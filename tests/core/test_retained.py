"""RetainedTree against a dict, and its cursor: complete, without repetition, and with bounded steps."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.twins import SMALL_FILTERS, SMALL_TOPICS, LinearRetained, filters, retained, topics
from tests.few import drawn, live

from starlingmq.core.messages.message import Message
from starlingmq.core.retained.retained_store import LOOK_BYTES, LOOKS_PER_MATCH, RetainedCursor, RetainedTree
from starlingmq.core.structures.sorted_topics import BLOCK_MAX, SortedTopics
from starlingmq.core.topics.topics import matches


def walk(tree: RetainedTree, filter: bytes, limit: int = 7) -> list[Message]:
    cursor = tree.cursor(filter)
    found: list[Message] = []
    while not cursor.done:
        found += step(cursor, limit, 256)
    return found


def step(cursor: RetainedCursor, limit: int, longest: int = 0) -> list[Message]:
    """Make one step and check its bounds: the last topic of a step may be as long as the longest one."""
    before = cursor.looks
    found = cursor.next(limit)
    assert len(found) <= limit
    assert cursor.looks - before <= limit * LOOKS_PER_MATCH + longest // LOOK_BYTES
    return found


class Walk:
    """A cursor in progress, and the messages that it must return: those present all the time."""

    def __init__(self, cursor: RetainedCursor, filter: bytes, stable: set[bytes]) -> None:
        self.cursor = cursor
        self.filter = filter
        self.stable = stable
        self.brought: list[bytes] = []


class AsTheDictSays(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = RetainedTree()
        self.twin = LinearRetained()
        self.walks: list[Walk] = []

    @rule(topic=topics, payload=st.binary(max_size=3))
    def put(self, topic: bytes, payload: bytes) -> None:
        message = retained(topic, payload)
        assert self.tree.put(message) is self.twin.put(message)

    @rule(data=st.data(), payload=st.binary(max_size=3))
    def replace(self, data: st.DataObject, payload: bytes) -> None:
        if self.twin.messages:
            self.put(data.draw(st.sampled_from(sorted(self.twin.messages))), payload)

    @rule(topic=topics)
    def remove(self, topic: bytes) -> None:
        assert self.tree.remove(topic) is self.twin.remove(topic)
        for each in self.walks:
            each.stable.discard(topic)

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.twin.messages:
            self.remove(data.draw(st.sampled_from(sorted(self.twin.messages))))

    @rule(filter=filters)
    def set_out(self, filter: bytes) -> None:
        stable = {message.topic for message in self.twin.matching(filter)}
        self.walks.append(Walk(self.tree.cursor(filter), filter, stable))

    @rule(limit=st.integers(1, 3))
    def go_on(self, limit: int) -> None:
        for each in self.walks:
            for message in step(each.cursor, limit):
                assert self.twin.messages[message.topic] is message
                assert matches(each.filter, message.topic)
                each.brought.append(message.topic)
            if each.cursor.done:
                assert len(set(each.brought)) == len(each.brought)
                assert each.stable <= set(each.brought)
        self.walks = [each for each in self.walks if not each.cursor.done]

    @rule(filter=filters)
    def whole_walk(self, filter: bytes) -> None:
        assert walk(self.tree, filter) == self.twin.matching(filter)

    @rule(topic=topics)
    def get(self, topic: bytes) -> None:
        assert self.tree.get(topic) is self.twin.messages.get(topic)

    @invariant()
    def same_contents(self) -> None:
        assert len(self.tree) == len(self.twin.messages)
        assert self.tree.total_bytes == self.twin.total_bytes()


@drawn(40, 200)
def test_retained_messages_are_those_of_the_dict(examples: int) -> None:
    live(AsTheDictSays, examples, stateful_step_count=40)


@given(st.lists(topics, unique=True, max_size=60), filters, st.integers(1, 9))
def test_a_walk_brings_what_matches(given_topics: list[bytes], filter: bytes, limit: int) -> None:
    tree = RetainedTree()
    for topic in given_topics:
        tree.put(retained(topic))
    expected = sorted(topic for topic in given_topics if matches(filter, topic))
    assert [message.topic for message in walk(tree, filter, limit)] == expected


@given(st.sets(st.sampled_from(SMALL_TOPICS)))
@settings(max_examples=50, deadline=None)
def test_every_small_filter(given_topics: set[bytes]) -> None:
    tree = RetainedTree()
    for topic in given_topics:
        tree.put(retained(topic))
    for filter in SMALL_FILTERS:
        expected = sorted(topic for topic in given_topics if matches(filter, topic))
        assert [message.topic for message in walk(tree, filter)] == expected


def test_put_get_remove() -> None:
    """The last message of a topic is its retained one [MQTT-3.3.1-5], until it is removed [MQTT-3.3.1-6]."""
    tree = RetainedTree()
    first, second = retained(b"a/b", b"1"), retained(b"a/b", b"22")
    assert tree.put(first) is None
    assert tree.put(second) is first
    assert tree.get(b"a/b") is second
    assert (len(tree), tree.total_bytes) == (1, 5)
    assert tree.remove(b"a/b") is second
    assert tree.remove(b"a/b") is None
    assert (tree.get(b"a/b"), len(tree), tree.total_bytes) == (None, 0, 0)


def test_a_topic_is_kept_once_however_often_its_message_changes() -> None:
    tree = RetainedTree()
    first, second = retained(b"fleet/" + b"1"), retained(b"fleet/" + b"%d" % 1)
    assert first.topic is not second.topic
    tree.put(first)
    tree.put(second)
    assert second.topic is first.topic


@pytest.mark.parametrize("filter", [b"#", b"+/+", b"+", b"+/x/#"])
def test_wildcards_at_the_beginning_leave_out_dollar_topics(filter: bytes) -> None:
    """[MQTT-4.7.2-1], without visiting each of them."""
    tree = RetainedTree()
    for number in range(1000):
        tree.put(retained(b"$SYS/%d" % number))
    others = [b"!/x", b"$", b"%/x", b"a/x"]
    for topic in others:
        tree.put(retained(topic))
    cursor = tree.cursor(filter)
    found = [message.topic for message in step(cursor, 10)]
    assert cursor.done
    assert found == [topic for topic in others if matches(filter, topic)]
    assert cursor.looks <= 10
    assert len(walk(tree, b"$SYS/#")) == 1000


@pytest.fixture(scope="module")
def plant() -> RetainedTree:
    """20 lines of 30 machines with 10 values each, and a status for each line and machine."""
    tree = RetainedTree()
    for line, machine, value in itertools.product(range(20), range(30), range(10)):
        tree.put(retained(b"plant/%d/%d/v%d" % (line, machine, value)))
        tree.put(retained(b"plant/%d/%d" % (line, machine)))
        tree.put(retained(b"plant/%d" % line))
    return tree


@pytest.mark.parametrize(
    ("filter", "count", "looks_max"),
    [
        (b"plant/7/11/v3", 1, 0),
        (b"plant/7/#", 331, 340),
        (b"plant/7/+/v3", 30, 130),
        (b"plant/+/11/v3", 20, 120),
        (b"plant/+", 20, 70),
        (b"+/+/+/v3", 600, 2500),
        (b"+/+/11/#", 220, 340),
        (b"nothing/#", 0, 2),
        (b"plant/7/11/v3/deeper/+", 0, 8),
        (b"+/nothing/+/+", 0, 3),
    ],
)
def test_a_walk_leaps_over_what_cannot_match(plant: RetainedTree, filter: bytes, count: int, looks_max: int) -> None:
    cursor = plant.cursor(filter)
    found = 0
    while not cursor.done:
        found += len(step(cursor, 50))
    assert found == count
    assert cursor.looks <= looks_max
    assert cursor.next(1) == []


def test_a_step_among_topics_that_do_not_match_ends_too(plant: RetainedTree) -> None:
    cursor = plant.cursor(b"+/+/+/none")
    assert step(cursor, 10) == []
    assert not cursor.done
    assert cursor.looks == 10 * LOOKS_PER_MATCH
    assert walk(plant, b"+/+/+/none") == []


@pytest.mark.parametrize("filter", [b"/".join([b"+"] * 64 + [b"x"]), b"/".join([b"+", b"a"] * 40), b"+/" * 127 + b"+"])
def test_many_wildcards_over_deep_topics_backtrack_nowhere(filter: bytes) -> None:
    """Each topic is visited a few times at most, whatever the number of wildcards."""
    tree = RetainedTree()
    for depth in range(1, 128):
        tree.put(retained(b"/".join([b"a"] * depth)))
        tree.put(retained(b"/".join([b"a"] * depth + [b"b"])))
    cursor = tree.cursor(filter)
    found = []
    while not cursor.done:
        found += [message.topic for message in step(cursor, 5, 256)]
    assert cursor.looks <= 2 * sum(1 + len(message.topic) // LOOK_BYTES for message in walk(tree, b"#")) + 10
    assert sorted(found) == sorted(message.topic for message in walk(tree, b"#") if matches(filter, message.topic))


def test_a_walk_survives_that_everything_changes_around_it() -> None:
    """So many topics are added and removed that blocks split and vanish; the walk returns each unchanged topic once."""
    tree = RetainedTree()
    stay = [b"t/%05d/stay" % number for number in range(0, 4000, 5)]
    for topic in stay:
        tree.put(retained(topic))
    cursor = tree.cursor(b"t/+/stay")
    found: list[bytes] = []
    for round in itertools.count():
        for number in range(4000):
            if round % 2:
                tree.remove(b"t/%05d/go" % number)
            else:
                tree.put(retained(b"t/%05d/go" % number))
        found += [message.topic for message in step(cursor, 100)]
        if cursor.done:
            break
    assert found == stay


def test_a_walk_brings_a_message_as_it_is_when_it_passes() -> None:
    tree = RetainedTree()
    for topic in (b"a", b"b", b"c"):
        tree.put(retained(topic, b"old"))
    cursor = tree.cursor(b"#")
    assert [message.payload for message in cursor.next(1)] == [b"old"]
    tree.put(retained(b"a", b"new"))
    tree.put(retained(b"c", b"new"))
    assert [(message.topic, message.payload) for message in cursor.next(9)] == [(b"b", b"old"), (b"c", b"new")]
    assert cursor.next(9) == []
    assert cursor.done


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=50), st.integers(1, 3000))
@settings(max_examples=25, deadline=None)
def test_sorted_topics_stay_sorted(changes: list[tuple[bool, int]], bulk: int) -> None:
    """Runs of additions and removals, long enough to split blocks and to empty them."""
    order, twin = SortedTopics(), set[bytes]()
    for adding, start in changes[:6]:
        for topic in [b"%d" % ((start + 7 * i) % 3001) for i in range(bulk)]:
            if adding and topic not in twin:
                order.add(topic)
                twin.add(topic)
            elif not adding and topic in twin:
                order.remove(topic)
                twin.remove(topic)
    assert listed(order) == sorted(twin)


def listed(order: SortedTopics) -> list[bytes]:
    found: list[bytes] = []
    place = b""
    while True:
        block, at = order.since(place)
        if not block:
            return found
        assert len(block) <= BLOCK_MAX
        found += block[at:]
        place = found[-1] + b"\0"
