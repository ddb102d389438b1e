"""An append-only log of records, read by offset: the messages that durable receivers need.

Offsets count records from 0 and are never reused. A reader keeps the offset that it wants next. Records before
``first`` are deleted. If offsets are skipped, records were lost or thrown away, and the reader can tell how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class JournalSegment(Protocol):
    """A part of the journal that can be freed separately: the offsets ``first`` to ``next`` - 1."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...


class Journal(Protocol):
    """An engine. Each method raises OSError if the storage fails. An ``append`` that raised has added nothing, and the
    next append uses its offsets."""

    @property
    def first(self) -> int:
        """Offset of the oldest record; ``next`` if there is none."""
        ...

    @property
    def next(self) -> int:
        """Offset of the next record to be appended."""
        ...

    @property
    def size(self) -> int:
        """Bytes used by the present records, including the overhead of the engine."""
        ...

    def append(self, records: Sequence[bytes]) -> int:
        """Append all records or none, and return the offset of the first one. They survive the death of the process."""
        ...

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Records from ``offset`` on (or from the first record after it), with their offsets, in order.

        As many as fit into both bounds, which count payload, but at least one if there is one. [] at the end.
        """
        ...

    def read_at(self, offsets: Sequence[int]) -> list[bytes | None]:
        """The records at these offsets, in the given order; None for a record that is deleted or damaged."""
        ...

    def segments(self) -> Sequence[JournalSegment]:
        """The segments, oldest first; [] for an engine that frees space only by ``trim``."""
        ...

    def drop(self, first: int) -> None:
        """Delete the segment that begins with this offset. No record in it is needed."""
        ...

    def trim(self, before: int) -> None:
        """Records below offset ``before`` are no longer needed. The engine may keep some of them, as ``first``
        shows."""
        ...

    def sync(self) -> None:
        """Make records that were appended before this call survive a power failure. Blocks; may be called from another
        thread."""
        ...

    def close(self) -> None:
        """Release all resources. May be called again; no other method may be called afterwards."""
        ...
