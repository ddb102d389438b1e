"""Decides which of this node's filters are published in sum (docs/CLUSTER.md has what follows for users).

Where many filters differ in one level only, they are one entry for their shape and a few bits for each. A shape is
searched for among the newest filters whenever the exact ones have doubled; its filters are then taken out of the table
some at a time. A shape that has become small is published exactly again.

Invariant: at every version of the table, each filter that is wanted has an exact entry, or is in published chunks. So
what replaces an entry is always published before the entry is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from starlingmq.cluster.routes.filter_shape import FilterShape, Record, fitting_size
from starlingmq.core.router.filter_summary import is_summary, parse_shape

SAMPLE: Final = 512  # newest filters among which a shape is searched for
SHARE_MIN: Final = 4  # a shape must have one in so many of them
LEVELS_MAX: Final = 8  # levels that may be the varying one
SHAPES_MAX: Final = 16
STEP: Final = 1000  # members or records of one turn
SMALL: Final = 4  # a shape with fewer members than this part of the minimum is published exactly again


class _Absorption:
    """Exact entries that are taken into a shape."""

    def __init__(self, shape: FilterShape, keys: list[bytes]) -> None:
        self.shape = shape
        self.keys = iter(keys)


class FilterSummaries:
    """``minimum``: filters of one shape from which on they are summarised; 0: never."""

    shapes: dict[int, FilterShape]

    def __init__(self, minimum: int) -> None:
        self._minimum = minimum
        self.shapes = {}
        self._search_at = minimum  # exact entries from which on a shape is searched for
        self._absorbing: _Absorption | None = None
        self._added = 0  # exact entries added since the last search

    def _shape_of(self, key: bytes) -> FilterShape | None:
        for shape in self.shapes.values():
            if shape.includes(key):
                return shape
        return None

    def pending(self) -> bool:
        if self._absorbing is not None:
            return True
        return any(shape.busy() for shape in self.shapes.values())

    def restart(self, wanted: dict[bytes, int], table: Mapping[bytes, int]) -> dict[bytes, int]:
        """The table for these filters. Shapes that the recovered ``table`` has are kept, if they are still large."""
        if self._minimum == 0:
            return wanted
        self.shapes = {}
        for key in table:
            found = parse_shape(key) if is_summary(key) else None
            if found is not None and len(self.shapes) < SHAPES_MAX:
                _, level, pattern = found
                parts = pattern.split(b"/")
                prefix = b"".join([part + b"/" for part in parts[:level]])
                shape = FilterShape(level, prefix, pattern[len(prefix) + 1 :], 0)
                self.shapes[shape.number] = shape
        current: dict[bytes, int] = {}
        members: dict[int, list[Record]] = {}
        for key, value in wanted.items():
            of = self._shape_of(key)
            if of is None or value == 0:
                current[key] = value
            else:
                members.setdefault(of.number, []).append((key, value))
        for shape in list(self.shapes.values()):
            filters = members.get(shape.number, [])
            if len(filters) * SMALL < self._minimum:
                del self.shapes[shape.number]
                current.update(filters)
                continue
            shape.size = fitting_size(len(filters))
            for key, value in filters:
                shape.set(key, value)
            current.update(shape.whole())
        self._search_at = max(self._minimum, len(current))
        return current

    def translate(self, changes: list[Record], table: Mapping[bytes, int]) -> list[Record]:
        """The records to publish for filters that have changed; ``table``: what is published."""
        if self._minimum == 0 or not self.shapes:
            self._added += len(changes)
            return changes
        records: list[Record] = []
        removed: list[Record] = []
        for key, value in changes:
            shape = self._shape_of(key)
            if shape is None:
                self._added += 1
                records.append((key, value))
                continue
            shape.set(key, value)
            if key in table:
                removed.append((key, 0))
        self._take(records)
        return records + removed

    def _take(self, records: list[Record]) -> None:
        for shape in self.shapes.values():
            shape.take(records)

    def step(self, table: Mapping[bytes, int], unwanted: list[bytes], received: int) -> list[Record]:
        """Does a part of what is under way, and looks whether more has to be done. ``unwanted``: topics of messages
        from other nodes that no subscriber here wants; ``received``: the number of all messages from other nodes."""
        if self._minimum == 0:
            return []
        records: list[Record] = []
        for topic in unwanted:
            shape = self._shape_of(topic)
            if shape is not None:
                shape.unwanted += 1
        if self._absorbing is not None:
            self._absorb(self._absorbing, table, records)
        elif self._added != 0:
            self._added = 0
            self._search(table)
        for shape in list(self.shapes.values()):
            if shape.busy():
                shape.step(STEP, records)
            elif self._absorbing is None or self._absorbing.shape is not shape:
                count = len(shape.members)
                if count * SMALL < self._minimum and shape.size <= fitting_size(count) + 2:
                    self._dissolve(shape, records)
                else:
                    shape.look(received)
        return records

    def _exact(self, table: Mapping[bytes, int]) -> int:
        return len(table) - sum([shape.entries() for shape in self.shapes.values()])

    def _search(self, table: Mapping[bytes, int]) -> None:
        exact = self._exact(table)
        if exact * 2 < self._search_at:
            self._search_at = max(self._minimum, exact * 2)
        if exact < self._search_at or len(self.shapes) >= SHAPES_MAX:
            return
        self._search_at = exact * 2
        keys = list(table)
        newest = [key for key in islice(reversed(keys), SAMPLE * 8) if not is_summary(key)][:SAMPLE]
        shape = _common_shape(newest)
        if shape is None:
            return
        found = [key for key in keys if not is_summary(key) and shape.includes(key)]
        if len(found) < self._minimum:
            return
        shape.size = fitting_size(len(found))
        self.shapes[shape.number] = shape
        self._absorbing = _Absorption(shape, found)

    def _absorb(self, absorbing: _Absorption, table: Mapping[bytes, int], records: list[Record]) -> None:
        keys = list(islice(absorbing.keys, STEP))
        removed: list[Record] = []
        for key in keys:
            value = table.get(key, 0)
            if value != 0:  # else it has changed since, and is in the shape or not wanted
                absorbing.shape.set(key, value)
                removed.append((key, 0))
        self._take(records)
        records += removed
        if len(keys) < STEP:
            self._absorbing = None

    def _dissolve(self, shape: FilterShape, records: list[Record]) -> None:
        del self.shapes[shape.number]
        records += list(shape.members.items())
        records += list(shape.withdraw())


def _common_shape(filters: list[bytes]) -> FilterShape | None:
    """The shape that most of these filters have, if enough have it."""
    counts: dict[tuple[int, bytes, bytes], int] = {}
    for filter in filters:
        if filter.startswith(b"$share/"):
            continue
        for candidate in _shapes(filter):
            counts[candidate] = counts.get(candidate, 0) + 1
    best = max(counts, key=lambda candidate: counts[candidate], default=None)
    if best is None or counts[best] * SHARE_MIN < len(filters) or counts[best] < 2:
        return None
    return FilterShape(best[0], best[1], best[2], 0)


def _shapes(filter: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Level, prefix and suffix of each shape that a filter has."""
    begin = 0
    for level in range(LEVELS_MAX):
        end = filter.find(b"/", begin)
        if end < 0:
            end = len(filter)
        name = filter[begin:end]
        if name not in (b"+", b"#") and not (level == 0 and name.startswith(b"$")):
            yield level, filter[:begin], filter[end:]
        if end == len(filter):
            return
        begin = end + 1
