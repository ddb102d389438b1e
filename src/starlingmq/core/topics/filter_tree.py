"""Subscribers by filter: which subscribers want this topic?

Filters without wildcards are in one flat dict. Only filters with wildcards are in a tree by level, and only as deep as
needed to tell them apart: a filter that shares no further level with another is one leaf with the rest of it.

The entry of a filter is a *slot*: its only subscriber itself, or a dict from the second subscriber on. Most filters of
most brokers have one subscriber, so that is their cost: a dict entry, and the subscriber itself.

The shape of the tree follows from the filters in it, with one exception: a branch that loses all filters but one stays
until that one goes, too. This costs memory of the order of that filter's length, and saves a merge at each removal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.core.structures.sharded_dict import ShardedDict
from starlingmq.wire.characters import HASH, PLUS

DOLLAR: Final = 0x24
# A dict keeps the room of its largest size, and iteration walks that room. Dicts of this module are copied when they
# use more bytes than this per remaining subscriber; a dict that was just copied uses less than half of it.
ROOM_PER_SUBSCRIBER: Final = 400
ROOM_SMALL: Final = 4096
NARROW_MAX: Final = 4096  # next levels of a branch in one dict; more are spread over a ShardedDict
RESTS_MAX: Final = 1024  # different ends of filters that are kept for sharing ...
REST_BYTES_MAX: Final = 64  # ... and the longest of them
SEARCH_MAX: Final = 16_384
"""Nodes, beside two for each level, that one search visits before it is given up at the end of a level: some 30 ms at
worst. Each level at most doubles the places that a topic reaches, so no topic of up to 13 levels gets there."""


class Subscriber:
    """A value that knows the key under which it was added. FilterTree stores it directly, and wraps other values."""

    def key(self) -> object:
        raise NotImplementedError


class _Pair(Subscriber):
    """A value that does not know its key, with the key."""

    own: object
    value: object

    def __init__(self, own: object, value: object) -> None:
        self.own = own
        self.value = value

    def key(self) -> object:
        return self.own


class _Node:
    """The tree below a level: a leaf or a branch."""


class _Leaf(_Node):
    """The only filter from here on. ``rest`` is the rest of it, slash included; b"" if it ends here."""

    rest: bytes
    slot: object

    def __init__(self, rest: bytes, slot: object) -> None:
        self.rest = rest
        self.slot = slot


class _Branch(_Node):
    """The place after some levels where filters differ."""

    narrow: dict[bytes, _Node] | None  # by the next level, if it is not a wildcard
    wide: ShardedDict[_Node] | None  # the same for many levels; one of the two is None, both if there are none
    plus: _Node | None  # for the next level '+'
    multi: object | None  # slot of the filter that ends here with '#'
    here: object | None  # slot of the filter that ends here without '#'

    def __init__(self) -> None:
        self.narrow = None
        self.wide = None
        self.plus = None
        self.multi = None
        self.here = None

    def literal(self, level: bytes) -> _Node | None:
        if self.narrow is not None:
            return self.narrow.get(level)
        return None if self.wide is None else self.wide.get(level)

    def next(self, level: bytes) -> _Node | None:
        return self.plus if level == b"+" else self.literal(level)

    def put(self, level: bytes, node: _Node) -> None:
        if level == b"+":
            self.plus = node
        elif self.wide is not None:
            self.wide.set(level, node)
        elif self.narrow is None:
            self.narrow = {level: node}
        else:
            self.narrow[level] = node
            if len(self.narrow) > NARROW_MAX:
                self._widen()

    def drop(self, level: bytes) -> None:
        if level == b"+":
            self.plus = None
        elif self.narrow is not None:
            del self.narrow[level]
            if not self.narrow:
                self.narrow = None
        elif self.wide is not None:
            self.wide.pop(level)
            if not len(self.wide):
                self.wide = None

    def empty(self) -> bool:
        return (
            self.narrow is None and self.wide is None and self.plus is None and self.multi is None and self.here is None
        )

    def children(self) -> list[tuple[bytes, _Node]]:
        found: list[tuple[bytes, _Node]] = [] if self.plus is None else [(b"+", self.plus)]
        if self.narrow is not None:
            found.extend(self.narrow.items())
        elif self.wide is not None:
            found.extend(self.wide.items())
        return found

    def _widen(self) -> None:
        wide: ShardedDict[_Node] = ShardedDict()
        for level, node in self.children():
            if level != b"+":
                wide.set(level, node)
        self.narrow, self.wide = None, wide

    def adopt(self, leaf: _Leaf) -> None:
        """Replaces a leaf at this place."""
        rest = leaf.rest
        if not rest:
            self.here = leaf.slot
        elif rest == b"/#":
            self.multi = leaf.slot
        else:
            end = _level_end(rest, 1)
            leaf.rest = rest[end:]  # a copy: few leaves meet another one
            self.put(rest[1:end], leaf)


class FilterTree:
    """Subscribers by topic filter, found by topic.

    A filter may have many subscribers with different keys; a key may be under many filters. Filters and topics are
    valid (``topics.valid_filter``, ``topics.valid_topic``), keys hashable, values anything but None. Values that are
    Subscribers and return the very key under which they are added are stored without overhead.
    """

    visits: int  # nodes of the tree that the last match visited, a leaf counted once more for every 8 levels: its cost
    gave_up: bool  # the last match would have visited too many, and found nothing

    _exact: ShardedDict[object]
    _rests: dict[bytes, bytes]
    _root: _Branch
    _wildcards: int  # filters in the tree under _root
    _pairs: int

    def __init__(self) -> None:
        self.visits = 0
        self.gave_up = False
        self._exact = ShardedDict()
        self._rests = {}
        self._root = _Branch()
        self._wildcards = 0
        self._pairs = 0

    def __len__(self) -> int:
        """Number of (filter, key) pairs."""
        return self._pairs

    def add(self, filter: bytes, key: object, value: object) -> object | None:
        """Set the value of ``key`` under ``filter``. Returns the previous one, or None."""
        slot = self._slot(filter)
        joined, previous = _join(slot, key, value)
        if joined is not slot:
            self._store(filter, joined, slot is None)
        if previous is None:
            self._pairs += 1
        return previous

    def remove(self, filter: bytes, key: object) -> object | None:
        """Remove ``key`` from ``filter``. Returns its value, or None if it was absent."""
        slot = self._slot(filter)
        if slot is None:
            return None
        left, value = _part(slot, key)
        if left is None:
            self._clear(filter)
        elif left is not slot:
            self._store(filter, left, False)
        if value is not None:
            self._pairs -= 1
        return value

    def has(self, filter: bytes) -> bool:
        """Whether exactly this filter has a subscriber."""
        return self._slot(filter) is not None

    def at(self, filter: bytes) -> Iterable[object]:
        """The values under exactly this filter, not copied: there may be many."""
        slot = self._slot(filter)
        if slot is None:
            return ()
        return slot.values() if isinstance(slot, dict) else (_value(slot),)

    def filters(self) -> list[bytes]:
        """All filters with a subscriber, in byte order."""
        found = [filter for filter, _ in self._exact.items()]
        pending: list[tuple[bytes, _Branch]] = [(b"", self._root)]
        while pending:
            path, branch = pending.pop()
            if branch.here is not None:
                found.append(path[:-1])
            if branch.multi is not None:
                found.append(path + b"#")
            for level, node in branch.children():
                if isinstance(node, _Leaf):
                    found.append(path + level + node.rest)
                elif isinstance(node, _Branch):
                    pending.append((path + level + b"/", node))
        return sorted(found)

    def match(self, topic: bytes) -> list[object]:
        """The values under each filter that matches ``topic``; one key may occur several times, once per filter.

        The order depends only on the sequence of additions and removals. Empty with ``gave_up`` if the search was too
        expensive.
        """
        found: list[object] = []
        self.visits = 0
        self.gave_up = False
        slot = self._exact.get(topic)
        if slot is not None:
            _collect(slot, found)
        if self._wildcards:
            self._match_wildcards(topic, found)
        return found

    def _match_wildcards(self, topic: bytes, found: list[object]) -> None:
        """Level by level, with all branches that the topic has reached: none of them can be reached twice."""
        levels = topic.split(b"/")
        branches = [self._root]
        to_wildcards = topic[0] != DOLLAR  # the first level; later ones always match wildcards [MQTT-4.7.2-1]
        visits = 0
        for depth, level in enumerate(levels):
            reached: list[_Branch] = []
            for branch in branches:
                node = branch.literal(level)
                if node is not None:
                    visits += _reach(node, levels, depth + 1, reached, found)
                if to_wildcards:
                    if branch.multi is not None:
                        _collect(branch.multi, found)
                    if branch.plus is not None:
                        visits += _reach(branch.plus, levels, depth + 1, reached, found)
            branches = reached
            to_wildcards = True
            if visits - 2 * depth > SEARCH_MAX:
                self.visits = visits
                self.gave_up = True
                found.clear()
                return
        for branch in branches:
            if branch.here is not None:
                _collect(branch.here, found)
            if branch.multi is not None:
                _collect(branch.multi, found)  # '#' includes the parent level
        self.visits = visits

    def _slot(self, filter: bytes) -> object | None:
        if not _has_wildcard(filter):
            return self._exact.get(filter)
        branch, at = self._root, 0
        while at <= len(filter):
            end = _level_end(filter, at)
            level = filter[at:end]
            if level == b"#":
                return branch.multi
            node = branch.next(level)
            if isinstance(node, _Leaf):
                return node.slot if node.rest == filter[end:] else None
            if not isinstance(node, _Branch):
                return None
            branch, at = node, end + 1
        return branch.here

    def _store(self, filter: bytes, slot: object, new: bool) -> None:
        if not _has_wildcard(filter):
            self._exact.set(filter, slot)
            return
        if new:
            self._wildcards += 1
        branch, at = self._root, 0
        while at <= len(filter):
            end = _level_end(filter, at)
            level = filter[at:end]
            if level == b"#":
                branch.multi = slot
                return
            node = branch.next(level)
            if node is None:
                branch.put(level, _Leaf(self._shared(filter[end:]), slot))
                return
            if isinstance(node, _Branch):
                branch, at = node, end + 1
            elif isinstance(node, _Leaf):
                if node.rest == filter[end:]:
                    node.slot = slot
                    return
                parting = _Branch()
                parting.adopt(node)
                branch.put(level, parting)
                branch, at = parting, end + 1
        branch.here = slot

    def _shared(self, rest: bytes) -> bytes:
        """The same bytes as one object, for all filters of a fleet that end alike (``/+/state``)."""
        if len(rest) > REST_BYTES_MAX:
            return rest
        if len(self._rests) < RESTS_MAX:
            return self._rests.setdefault(rest, rest)
        return self._rests.get(rest, rest)

    def _clear(self, filter: bytes) -> None:
        """Remove an existing filter, and all branches that become empty."""
        if not _has_wildcard(filter):
            self._exact.pop(filter)
            return
        self._wildcards -= 1
        way: list[tuple[_Branch, bytes]] = []
        branch, at = self._root, 0
        while at <= len(filter):
            end = _level_end(filter, at)
            level = filter[at:end]
            if level == b"#":
                branch.multi = None
                break
            node = branch.next(level)
            if not isinstance(node, _Branch):
                branch.drop(level)
                break
            way.append((branch, level))
            branch, at = node, end + 1
        else:
            branch.here = None
        while way and branch.empty():
            branch, level = way.pop()
            branch.drop(level)


def _has_wildcard(filter: bytes) -> bool:
    return PLUS in filter or HASH in filter


def _level_end(name: bytes, start: int) -> int:
    end = name.find(b"/", start)
    return len(name) if end < 0 else end


def _reach(node: _Node, levels: list[bytes], depth: int, reached: list[_Branch], found: list[object]) -> int:
    """The topic's first ``depth`` levels lead to ``node``: add it to ``reached`` if it is a branch, decide if it is a
    leaf. Returns the cost."""
    if isinstance(node, _Branch):
        reached.append(node)
    elif isinstance(node, _Leaf):
        if _rest_matches(node.rest, levels, depth):
            _collect(node.slot, found)
        return 1 + (min(len(levels) - depth, len(node.rest)) >> 3)
    return 1


def _rest_matches(rest: bytes, levels: list[bytes], depth: int) -> bool:
    """Whether the rest of a filter matches the levels of a topic from ``depth`` on."""
    left = len(levels) - depth
    if not rest:
        return left == 0
    if rest == b"/#":
        return True
    # Split only as far as needed to see that there are too many parts: a long filter costs a short topic nothing.
    parts = rest.split(b"/", left + 1)
    for at in range(1, len(parts)):  # parts[0] is empty: the part before the first slash
        part = parts[at]
        if part == b"#":
            return True
        if at > left or (part != b"+" and part != levels[depth + at - 1]):
            return False
    return len(parts) - 1 == left


def _collect(slot: object, found: list[object]) -> None:
    if isinstance(slot, dict):
        found.extend(slot.values())
    else:
        found.append(_value(slot))


def _value(slot: object) -> object:
    return slot.value if isinstance(slot, _Pair) else slot


def _alone(key: object, value: object) -> object:
    """The slot of a filter with one subscriber."""
    return value if isinstance(value, Subscriber) and value.key() is key else _Pair(key, value)


def _key(slot: object) -> object:
    assert isinstance(slot, Subscriber)
    return slot.key()


def _join(slot: object | None, key: object, value: object) -> tuple[object, object | None]:
    """The slot with ``key`` set to ``value``, and the previous value."""
    if slot is None:
        return _alone(key, value), None
    if isinstance(slot, dict):
        previous = slot.get(key)
        slot[key] = value
        return slot, previous
    if _key(slot) == key:
        return _alone(key, value), _value(slot)
    return {_key(slot): _value(slot), key: value}, None


def _part(slot: object, key: object) -> tuple[object | None, object | None]:
    """The slot without ``key`` (None if it becomes empty), and the value of ``key``."""
    if not isinstance(slot, dict):
        return (None, _value(slot)) if _key(slot) == key else (slot, None)
    value = slot.pop(key, None)
    if len(slot) == 1:
        last, its_value = slot.popitem()
        return _alone(last, its_value), value
    room = slot.__sizeof__()
    if room > ROOM_SMALL and room > ROOM_PER_SUBSCRIBER * len(slot):
        return dict(slot), value
    return slot, value
