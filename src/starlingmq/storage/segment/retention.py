"""Limits for the age and size of segment files that wait for absent clients; beyond them the oldest is given up.

Segments that no session needs are deleted in any case. The limits apply to messages that still wait: whole files,
oldest first, never the file that is being appended to because of its size. Messages in flight, handshakes and retained
messages are not given up; they keep their segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlingmq.storage.journal import JournalSegment
from starlingmq.storage.segment.segment_journal import SegmentInfo


@dataclass(frozen=True, slots=True)
class Retention:
    """``seconds`` since the last write to a file, ``size`` in bytes of all files; 0 sets no limit."""

    seconds: float
    size: int

    def cutoff(self, segments: Sequence[JournalSegment], now: float) -> int:
        """The offset below which messages no longer wait; ``now`` is wall clock time in seconds."""
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
