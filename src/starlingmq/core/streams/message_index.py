"""Which sequences a stream has, and of each: topic, size and time.

Invariants:

- Sequences rise by one with each message, and are never given twice. One that was removed stays a gap.
- ``first`` is the lowest sequence that is there; of an empty index it is ``last`` + 1.
- A topic knows its sequences in order. So the last one of a topic, the next one after a sequence, and how many follow,
  are found without a walk, unless a filter has wildcards: then the walk goes over sequences, each once for a reader.

Memory for a message: 20 bytes, and 8 more if its topic has others.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.topics.filter_tree import FilterTree
from starlingmq.core.topics.topics import matches
from starlingmq.wire.characters import HASH, PLUS

SHIFT: Final = 10
HASH_BYTE: Final = 0x23
BLOCK: Final = 1 << SHIFT  # sequences in a block
MASK: Final = BLOCK - 1
FEW: Final = 8  # filters that are compared one by one
REMEMBERED_MAX: Final = 4096  # topics of which a selection remembers whether they match
WALKED: Final = 256  # sequences that are looked at one by one rather than topic by topic, or as many as topics
HEAD_MAX: Final = 512  # removed sequences at the beginning of a topic's list until it is shortened


class TopicSequences:
    """The sequences of one topic."""

    topic: bytes
    count: int
    first: int  # 0: there is none
    last: int
    _all: array[int] | None  # rising, if there are several; those before ``_head`` were removed
    _head: int

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.count = 0
        self.first = 0
        self.last = 0
        self._all = None
        self._head = 0

    def add(self, seq: int) -> None:
        if self.count == 0:
            self.first = seq
        elif self._all is None:
            self._all = array("Q", (self.first, seq))
        else:
            self._all.append(seq)
        self.last = seq
        self.count += 1

    def remove(self, seq: int) -> None:
        """It must be there."""
        self.count -= 1
        found = self._all
        if found is None:
            self.first = self.last = 0
            return
        if seq == self.first:
            self._head += 1
            self._shorten(found)
        else:
            at = bisect_left(found, seq, self._head)
            if at - self._head < len(found) - at:  # the shorter part moves
                found[self._head + 1 : at + 1] = found[self._head : at]
                self._head += 1
                self._shorten(found)
            else:
                del found[at]
        self.first = found[self._head]
        self.last = found[len(found) - 1]
        if self.count == 1:
            self._all = None
            self._head = 0

    def _shorten(self, found: array[int]) -> None:
        if self._head > HEAD_MAX and self._head * 2 > len(found):
            del found[: self._head]
            self._head = 0

    def next(self, seq: int) -> int:
        """The lowest one from ``seq`` on; 0: none."""
        if seq <= self.first:
            return self.first
        if seq > self.last:
            return 0
        found = self._all
        return self.last if found is None else found[bisect_left(found, seq, self._head)]

    def from_here(self, seq: int) -> int:
        """How many there are from ``seq`` on."""
        if seq <= self.first:
            return self.count
        if seq > self.last:
            return 0
        found = self._all
        return 1 if found is None else len(found) - bisect_left(found, seq, self._head)

    def newest(self, end: int, limit: int) -> list[int]:
        """The last ones up to ``end``, falling, at most ``limit``."""
        found = self._all
        if found is None:
            return [self.last] if 0 < self.last <= end and limit > 0 else []
        after = bisect_right(found, end, self._head)
        return list(found[max(self._head, after - limit) : after])[::-1]

    def oldest(self, keep: int) -> list[int]:
        """All but the newest ``keep``."""
        found = self._all
        if self.count <= keep:
            return []
        return [self.first] if found is None else list(found[self._head : len(found) - keep])


def takes_all(filters: list[bytes]) -> bool:
    """Whether they match every topic. Subjects have no ``$`` that ``>`` would leave out."""
    for filter in filters:
        if len(filter) == 1 and filter[0] == HASH_BYTE:
            return True
    return len(filters) == 0


class TopicSelection:
    """Topics that a reader wants: those that match one of ``filters``; without any, all."""

    filters: list[bytes]
    everything: bool
    exact: list[bytes]  # its topics, if no filter has wildcards
    _tree: FilterTree | None  # of many filters
    _known: dict[bytes, bool]
    _remembered: int

    def __init__(self, filters: list[bytes], remembered: int = REMEMBERED_MAX) -> None:
        self.filters = filters
        self.everything = takes_all(filters)
        self.exact = []
        if not any(PLUS in each or HASH in each for each in filters):
            self.exact = list(filters)
        self._tree = None
        if len(filters) > FEW:
            self._tree = FilterTree()
            for filter in filters:
                self._tree.add(filter, filter, filter)
        self._known = {}
        self._remembered = remembered

    def admits(self, topic: bytes) -> bool:
        if self.everything:
            return True
        known = self._known.get(topic)
        if known is None:
            tree = self._tree
            known = tree is not None and len(tree.match(topic)) != 0
            if tree is None or tree.gave_up:
                known = any(matches(filter, topic) for filter in self.filters)
            if len(self._known) >= self._remembered:
                self._known = {}
            self._known[topic] = known
        return known


class SequenceBlock:
    """``BLOCK`` sequences in a row. ``messages``: None if they are in a log."""

    topics: list[TopicSequences | None]  # None: it was removed
    sizes: array[int]
    times: array[float]
    messages: list[Message | None] | None
    live: int

    def __init__(self, keeps: bool) -> None:
        self.topics = []
        self.sizes = array("I")
        self.times = array("d")
        self.messages = [] if keeps else None
        self.live = 0


class MessageIndex:
    """``keeps``: the messages, too, since no log has them."""

    first: int
    last: int
    count: int
    octets: int
    topics: dict[bytes, TopicSequences]
    blocks: dict[int, SequenceBlock]  # by number: the sequence without its last bits; those without messages are gone
    changed: dict[int, None]  # blocks in which others than the first one were removed, and a store has not been told
    keeps: bool

    def __init__(self, keeps: bool, first: int = 1) -> None:
        self.first = first
        self.last = first - 1
        self.count = 0
        self.octets = 0
        self.topics = {}
        self.blocks = {}
        self.changed = {}
        self.keeps = keeps

    def add(self, topic: bytes, size: int, when: float, message: Message | None) -> int:
        """Returns the sequence."""
        seq = self.last = self.last + 1
        place = seq & MASK
        block = self.blocks.get(seq >> SHIFT)
        if block is None:
            self._drop_empty((seq >> SHIFT) - 1)
            block = self.blocks[seq >> SHIFT] = SequenceBlock(self.keeps)
        if len(block.topics) != place:
            self._leave_out(block, place)
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicSequences(topic)
        found.add(seq)
        block.topics.append(found)
        block.sizes.append(size)
        block.times.append(when)
        if block.messages is not None:
            block.messages.append(message)
        block.live += 1
        self.count += 1
        self.octets += size
        return seq

    @staticmethod
    def _leave_out(block: SequenceBlock, place: int) -> None:
        """The sequences before ``place`` were given and are not there."""
        for _ in range(place - len(block.topics)):
            block.topics.append(None)
            block.sizes.append(0)
            block.times.append(0.0)
            if block.messages is not None:
                block.messages.append(None)

    def _drop_empty(self, number: int) -> None:
        """A block that has become empty while it was the last one."""
        before = self.blocks.get(number)
        if before is not None and before.live == 0:
            del self.blocks[number]

    def skip(self, seq: int) -> None:
        """``seq`` was given, and nothing is kept under it, nor under those before it that are not there."""
        if seq >> SHIFT != self.last >> SHIFT:
            self._drop_empty(self.last >> SHIFT)
        self.last = seq
        if self.count == 0:
            self.first = seq + 1

    def has(self, seq: int) -> bool:
        return self.topic_of(seq) is not None

    def topic_of(self, seq: int) -> bytes | None:
        block = self.blocks.get(seq >> SHIFT)
        if block is None or seq & MASK >= len(block.topics):
            return None
        found = block.topics[seq & MASK]
        return None if found is None else found.topic

    def size_of(self, seq: int) -> int:
        return self.blocks[seq >> SHIFT].sizes[seq & MASK]

    def time_of(self, seq: int) -> float:
        return self.blocks[seq >> SHIFT].times[seq & MASK]

    def kept(self, seq: int) -> Message | None:
        block = self.blocks.get(seq >> SHIFT)
        if block is None or block.messages is None or seq & MASK >= len(block.messages):
            return None
        return block.messages[seq & MASK]

    def remove(self, seq: int) -> bool:
        """Returns whether it was there."""
        number = seq >> SHIFT
        block = self.blocks.get(number)
        if block is None or seq & MASK >= len(block.topics):
            return False
        place = seq & MASK
        found = block.topics[place]
        if found is None:
            return False
        block.topics[place] = None
        if block.messages is not None:
            block.messages[place] = None
        block.live -= 1
        self.count -= 1
        self.octets -= block.sizes[place]
        found.remove(seq)
        if found.count == 0:
            del self.topics[found.topic]
        if block.live == 0 and number != self.last >> SHIFT:
            del self.blocks[number]
        if seq == self.first:
            self.first = self.next(seq + 1) or self.last + 1
        else:
            self.changed[number] = None
        return True

    def remove_before(self, seq: int) -> None:
        """All that is before ``seq``: of many, block by block."""
        first = seq >> SHIFT
        old = [number for number in self.blocks if number < first]
        live = 0
        for number in old:
            live += self.blocks[number].live
        if live > BLOCK and live * 2 > self.count:
            self._drop_blocks(old)
        while self.count != 0 and self.first < seq:
            self.remove(self.first)

    def _drop_blocks(self, numbers: list[int]) -> None:
        """Fewer stay than go, so the topics are found again."""
        for number in numbers:
            block = self.blocks.pop(number)
            self.changed.pop(number, None)
            self.count -= block.live
            for place in range(len(block.topics)):
                if block.topics[place] is not None:
                    self.octets -= block.sizes[place]
        self.topics = {}
        for number in sorted(self.blocks):
            topics = self.blocks[number].topics
            for place in range(len(topics)):
                before = topics[place]
                if before is not None:
                    found = self.topics.get(before.topic)
                    if found is None:
                        found = self.topics[before.topic] = TopicSequences(before.topic)
                    found.add(number << SHIFT | place)
                    topics[place] = found
        self.first = self.last + 1
        if self.count != 0:
            self.first = 0
            self.first = self.next(0)

    def next(self, seq: int) -> int:
        """The lowest sequence from ``seq`` on that is there; 0: none."""
        seq = max(seq, self.first)
        while seq <= self.last:
            block = self.blocks.get(seq >> SHIFT)
            if block is not None and block.live != 0:
                topics = block.topics
                for place in range(seq & MASK, len(topics)):
                    if topics[place] is not None:
                        return seq >> SHIFT << SHIFT | place
            number = (seq >> SHIFT) + 1
            if number not in self.blocks:  # sequences may be far apart
                number = min([each for each in self.blocks if each > number], default=(self.last >> SHIFT) + 1)
            seq = number << SHIFT
        return 0

    def next_of(self, seq: int, selection: TopicSelection) -> int:
        """The lowest one from ``seq`` on that ``selection`` admits; 0: none."""
        if selection.everything:
            if seq >= self.first and self.has(seq):
                return seq
            return self.next(seq)
        if selection.exact:
            lowest = 0
            for topic in selection.exact:
                found = self.topics.get(topic)
                if found is not None:
                    each = found.next(seq)
                    if each != 0 and (lowest == 0 or each < lowest):
                        lowest = each
            return lowest
        seq = max(seq, self.first)
        left = WALKED + len(self.topics)
        while seq <= self.last:
            block = self.blocks.get(seq >> SHIFT)
            if block is not None and block.live != 0:
                topics = block.topics
                for place in range(seq & MASK, len(topics)):
                    each_topic = topics[place]
                    if each_topic is not None and selection.admits(each_topic.topic):
                        return seq >> SHIFT << SHIFT | place
            seq = ((seq >> SHIFT) + 1) << SHIFT
            left -= BLOCK
            if left <= 0:  # topics are fewer than the sequences that may follow
                return min([found.next(seq) for found in self.matching(selection) if found.last >= seq], default=0)
        return 0

    def waiting(self, seq: int, selection: TopicSelection) -> int:
        """How many there are from ``seq`` on."""
        if seq > self.last or self.count == 0:
            return 0
        if not selection.everything:
            if not selection.exact and self.last - seq < max(WALKED, len(self.topics)):
                return self._walk(seq, selection)
            return sum([each.from_here(seq) for each in self.matching(selection)])
        if seq <= self.first:
            return self.count
        if self.last - self.first + 1 == self.count:
            return self.last - seq + 1
        found = 0
        for number, block in self.blocks.items():
            if number >= seq >> SHIFT:
                found += block.live
        first = self.blocks.get(seq >> SHIFT)
        if first is not None:
            found -= sum([each is not None for each in first.topics[: seq & MASK]])
        return found

    def _walk(self, seq: int, selection: TopicSelection) -> int:
        found = 0
        seq = self.next_of(seq, selection)
        while seq != 0:
            found += 1
            seq = self.next_of(seq + 1, selection)
        return found

    def matching(self, selection: TopicSelection) -> list[TopicSequences]:
        if selection.exact and not selection.everything:
            return [self.topics[topic] for topic in selection.exact if topic in self.topics]
        return [each for each in self.topics.values() if selection.admits(each.topic)]

    def since(self, when: float) -> int:
        """The lowest sequence of a message that came at ``when`` or later; ``last`` + 1: none. Times rise with
        sequences, except where a clock was set back."""
        for number in sorted(self.blocks):
            block = self.blocks[number]
            if block.live != 0 and block.times[len(block.times) - 1] >= when:
                for place in range(len(block.topics)):
                    if block.topics[place] is not None and block.times[place] >= when:
                        return number << SHIFT | place
        return self.last + 1

    # The removed sequences, for a store

    def gaps(self, most: int) -> list[int]:
        """The first removed sequences between ``first`` and ``last``, as many as are wanted."""
        found: list[int] = []
        for seq in range(self.first, self.last + 1):
            if len(found) >= most:
                break
            if not self.has(seq):
                found.append(seq)
        return found

    def live_between(self, first: int, last: int) -> int:
        """How many there are from ``first`` to ``last``."""
        found = 0
        for number in range(first >> SHIFT, (last >> SHIFT) + 1):
            block = self.blocks.get(number)
            if block is not None:
                if number << SHIFT >= first and (number << SHIFT | MASK) <= last:
                    found += block.live
                else:
                    low, high = max(first - (number << SHIFT), 0), last - (number << SHIFT) + 1
                    found += sum([each is not None for each in block.topics[low:high]])
        return found

    def removed_bits(self, number: int) -> bytes:
        """The removed sequences of a block, one bit each, low ones first."""
        block = self.blocks.get(number)
        if block is None:
            return b"\xff" * (BLOCK // 8)
        topics = block.topics
        bits = 0
        for place in range(len(topics)):
            if topics[place] is None:
                bits |= 1 << place
        return bits.to_bytes(BLOCK // 8, "little").rstrip(b"\0")
