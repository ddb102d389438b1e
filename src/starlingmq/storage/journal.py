"""An append-only log of records, found again by offset: the messages that something durable wants.

Offsets count records from 0 and are never given twice. Readers keep the offset they want next. What lies before
``first`` is gone; where a reader finds an offset skipped, records were lost or thrown away, and it can tell how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class JournalSegment(Protocol):
    """A part of the journal that can be given back by itself: the offsets ``first`` to ``next`` - 1."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...


class Journal(Protocol):
    """An engine. Every method raises OSError when the storage fails; an ``append`` that raised has added nothing, and
    its offsets are given to the next one."""

    @property
    def first(self) -> int:
        """Offset of the oldest record that is kept; ``next`` when there is none."""
        ...

    @property
    def next(self) -> int:
        """Offset the next appended record gets."""
        ...

    @property
    def size(self) -> int:
        """Bytes taken by the records that are kept, the engine's own overhead included."""
        ...

    def append(self, records: Sequence[bytes]) -> int:
        """Add records, all or none; the offset of the first of them. They survive the death of the process."""
        ...

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Records from ``offset`` (or the first one kept after it) on, with their offsets, in order.

        As many as fit into both bounds, which count payload, but always one if there is one. [] at the end.
        """
        ...

    def read_at(self, offsets: Sequence[int]) -> list[bytes | None]:
        """The records at these offsets, in the order asked for; None where one is gone or damaged."""
        ...

    def segments(self) -> Sequence[JournalSegment]:
        """What the journal is made of, oldest first; [] for an engine that gives back by ``trim`` alone."""
        ...

    def drop(self, first: int) -> None:
        """Nobody needs anything in the segment that begins with this offset any more."""
        ...

    def trim(self, before: int) -> None:
        """Nobody needs the offsets below ``before`` any more. An engine may keep some of them: ``first`` tells."""
        ...

    def sync(self) -> None:
        """Make what was appended before this call survive a power failure. Blocks; may be called from another
        thread."""
        ...

    def close(self) -> None:
        """Let go of everything. May be called again; nothing else may."""
        ...
