"""How long, and how much, segment files keep for absent clients before what is oldest is given up.

What nobody needs goes anyway. This bounds what somebody still waits for: whole files, oldest first, never the one that
is appended to for its size. Messages in flight, handshakes and retained messages are not given up; they hold theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlingmq.storage.journal import JournalSegment
from starlingmq.storage.segment.segment_journal import SegmentInfo


@dataclass(frozen=True, slots=True)
class Retention:
    """``seconds`` since the last write to a file, ``size`` in bytes of all files; 0: no bound."""

    seconds: float
    size: int

    def cutoff(self, segments: Sequence[JournalSegment], now: float) -> int:
        """The offset below which nothing waits any longer; ``now`` in seconds of the wall clock."""
        found = 0
        files = [segment for segment in segments if isinstance(segment, SegmentInfo)]
        total = sum(file.bytes for file in files)
        for file in files:
            old = self.seconds != 0 and file.last_written + self.seconds < now
            if not old and (file.grows or self.size == 0 or total <= self.size):
                break
            total -= file.bytes
            found = file.next
        return found
