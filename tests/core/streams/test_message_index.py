"""The index of a stream against a list of what it should have."""

import random

import pytest

from starlingmq.core.streams.message_index import BLOCK, MessageIndex, TopicSelection
from starlingmq.core.topics.topics import matches

TOPICS = [b"a/b", b"a/c", b"a/b/c", b"d", b"e/f/g"]
FILTERS: list[list[bytes]] = [[], [b"#"], [b"a/b"], [b"a/+"], [b"a/#"], [b"d", b"a/c"], [b"none"], [b"+/f/#", b"d"]]
FILTERS.append([b"d/+", b"+/c", b"f/#", b"+/+/+/+", b"g", b"h", b"i", b"e/#"])
FILTERS.append([*FILTERS[-1], b"a/b/#"])  # more than are compared one by one


class Model:
    def __init__(self) -> None:
        self.there: dict[int, tuple[bytes, int, float]] = {}
        self.last = 0

    def wanted(self, seq: int, filters: list[bytes]) -> list[int]:
        def admits(topic: bytes) -> bool:
            return not filters or any(matches(filter, topic) for filter in filters)

        return [each for each, (topic, _, _) in self.there.items() if each >= seq and admits(topic)]


def compare(index: MessageIndex, model: Model, rng: random.Random) -> None:
    seqs = sorted(model.there)
    assert (index.count, index.last) == (len(seqs), model.last)
    assert index.first == (seqs[0] if seqs else index.last + 1)
    assert index.octets == sum(size for _, size, _ in model.there.values())
    for filters in FILTERS:
        selection = TopicSelection(filters)
        at = rng.randrange(1, model.last + 3)
        wanted = model.wanted(at, filters)
        assert index.next_of(at, selection) == (wanted[0] if wanted else 0), filters
        assert index.waiting(at, selection) == len(wanted), filters
    for topic in TOPICS:
        mine = [seq for seq, (each, _, _) in model.there.items() if each == topic]
        found = index.topics.get(topic)
        assert (found is not None) == bool(mine)
        if found is not None:
            assert (found.first, found.last, found.count) == (mine[0], mine[-1], len(mine))
            assert found.oldest(2) == mine[:-2]
    assert index.gaps(1 << 30) == [seq for seq in range(index.first, index.last + 1) if seq not in model.there]
    when = rng.uniform(0, model.last + 1)
    later = [seq for seq in seqs if model.there[seq][2] >= when]
    assert index.since(when) == (later[0] if later else index.last + 1)


@pytest.mark.parametrize("seed", range(12))
def test_it_has_what_was_added_and_not_removed(seed: int) -> None:
    rng = random.Random(seed)
    index = MessageIndex(False)
    model = Model()
    for step in range(rng.choice((60, 3 * BLOCK, 6 * BLOCK))):
        if model.there and rng.random() < (0.45 if seed % 2 else 0.2):
            seqs = list(model.there)
            seq = seqs[0] if rng.random() < 0.5 else rng.choice(seqs)
            assert index.remove(seq)
            assert not index.remove(seq)
            del model.there[seq]
        elif rng.random() < 0.003:
            below = rng.randrange(1, model.last + 3)
            index.remove_before(below)
            model.there = {seq: each for seq, each in model.there.items() if seq >= below}
        elif rng.random() < 0.02:
            model.last += rng.choice((1, 5, BLOCK))
            index.skip(model.last)
        else:
            model.last += 1
            topic, size = rng.choice(TOPICS), rng.randrange(1, 500)
            assert index.add(topic, size, float(model.last), None) == model.last
            model.there[model.last] = (topic, size, float(model.last))
        if step % 37 == 0:
            compare(index, model, rng)
    compare(index, model, rng)
    for seq in list(model.there):
        index.remove(seq)
    assert (index.count, index.octets, index.first, index.topics) == (0, 0, model.last + 1, {})


def test_blocks_that_have_nothing_any_more_take_no_memory() -> None:
    index = MessageIndex(False)
    for at in range(10 * BLOCK):
        index.add(b"a", 1, float(at), None)
        if index.count > 10:
            index.remove(index.first)
    assert len(index.blocks) <= 2
    assert len(index.topics[b"a"].oldest(0)) == 10


def test_most_of_many_messages_go_without_a_look_at_each_topic() -> None:
    index = MessageIndex(False)
    for seq in range(1, 20 * BLOCK):
        index.add(b"a/%d" % (seq % 3), seq, 0.0, None)
    index.remove(17 * BLOCK)
    kept = list(index.blocks)[17:]
    index.remove_before(17 * BLOCK)
    assert list(index.blocks) == kept
    assert (index.first, index.count) == (17 * BLOCK + 1, 3 * BLOCK - 1)
    assert index.octets == sum(range(17 * BLOCK + 1, 20 * BLOCK))
    assert sum(each.count for each in index.topics.values()) == index.count
    index.remove_before(1 << 40)
    assert (index.first, index.count, index.octets, index.topics, index.blocks) == (20 * BLOCK, 0, 0, {}, {})


def test_messages_go_from_anywhere_in_the_list_of_a_topic() -> None:
    index = MessageIndex(False)
    model = list(range(1, 3001))
    for _ in model:
        index.add(b"a", 1, 0.0, None)
    rng = random.Random(1)
    while len(model) > 2:
        seq = model.pop(rng.randrange(len(model) - 1) if len(model) % 3 else rng.randrange(min(9, len(model) - 1)))
        assert index.remove(seq)
        found = index.topics[b"a"]
        assert (found.first, found.last, found.count) == (model[0], model[-1], len(model))
        assert found.next(seq) == next(each for each in model if each > seq)
    assert index.topics[b"a"].oldest(0) == model


def test_blocks_without_messages_take_no_memory() -> None:
    index = MessageIndex(False)
    for _ in range(3 * BLOCK):
        assert index.remove(index.add(b"a", 1, 0.0, None))
    assert len(index.blocks) == 1
    index.skip(10 * BLOCK)
    assert len(index.blocks) == 0
    assert index.add(b"a", 1, 0.0, None) == index.first == 10 * BLOCK + 1


@pytest.mark.parametrize("topics", [10, 2000])
def test_a_filter_that_matches_little_finds_that_and_gaps_are_as_many_as_wanted(topics: int) -> None:
    index = MessageIndex(False)
    for seq in range(20 * BLOCK):
        index.add(b"a/%d" % (seq % topics), 1, 0.0, None)
    last = index.add(b"b/c", 1, 0.0, None)

    assert index.next_of(1, TopicSelection([b"b/+"])) == last
    assert index.next_of(1, TopicSelection([b"c/+"])) == 0
    assert index.waiting(1, TopicSelection([b"b/+"])) == 1
    index.skip(1 << 40)
    assert index.gaps(3) == [last + 1, last + 2, last + 3]
