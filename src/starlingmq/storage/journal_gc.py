"""Deletes the segments of the journal that no session refers to, after each checkpoint.

Sessions are looked at some per turn, so references can be made meanwhile: ``keep`` marks those. Offsets that were given
back are remembered, since a retained message in memory may know one of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from starlingmq.core.broker import BrokerState
from starlingmq.core.session.session import Session
from starlingmq.storage.journal import Journal
from starlingmq.storage.storage_thread import StorageThread


class JournalGc:
    """``careful``: a power failure must not bring back a reference to a segment that was deleted. ``piece``: sessions
    per turn."""

    def __init__(self, journal: Journal, thread: StorageThread, careful: bool, piece: int) -> None:
        self.journal = journal
        self.thread = thread
        self.careful = careful
        self.piece = piece
        self._marked: set[int] | None = None  # first offsets of the segments that are needed, while that is found out
        self._oldest = 0  # offset that is needed, as far as it was found out
        self._firsts: list[int] = []
        self._given = [0, journal.first]  # where each range that was given back begins and ends, in turn; rising

    def keep(self, offset: int) -> bool:
        """Whether a record is still there, and stays: a new reference to it keeps it from being given back."""
        if offset < self._given[-1] and bisect_right(self._given, offset) % 2:
            return False
        if self._marked is not None:
            self._mark(offset)
            self._oldest = min(self._oldest, offset)
        return True

    def give_back(self, state: BrokerState, checkpoint: int) -> Iterator[None]:
        """Find out which segments hold a message that a session still wants, and give back the others.

        References that are made meanwhile are marked by ``keep``; records that are appended meanwhile are behind
        ``checkpoint``.
        """
        segments = self.journal.segments()
        end = self.journal.next
        self._firsts = [segment.first for segment in segments]
        self._marked = set()
        self._oldest = checkpoint
        try:
            sessions = list(state.ctx.sessions.values())
            for number, session in enumerate(sessions):
                self._oldest = min(self._oldest, self._mark_session(session))
                if number % self.piece == self.piece - 1:
                    yield
            if self.careful:  # a power failure must not bring back the want of what is given back now
                yield from self.thread.run(self.journal.sync)
            needed = self._marked
        finally:
            self._marked = None
        oldest = self._oldest
        doomed = [segment for segment in segments if segment.next <= checkpoint and segment.first not in needed]
        self._forgo(0, oldest)
        for segment in doomed:
            self._forgo(segment.first, segment.next)
        self.journal.trim(oldest)
        for segment in doomed:
            grown = (
                segment is segments[-1] and self.journal.next != end
            )  # while we looked: it holds what nobody looked at
            if segment.first >= oldest and not grown:
                self.journal.drop(segment.first)
                yield

    def _forgo(self, first: int, next: int) -> None:
        """From here on no message may refer to these offsets: a retained one that is in memory may know one of them."""
        begin, end = bisect_left(self._given, first), bisect_right(self._given, next)
        self._given[begin:end] = [first] * (begin % 2 == 0) + [next] * (end % 2 == 0)

    def _mark(self, offset: int) -> None:
        assert self._marked is not None
        place = bisect_right(self._firsts, offset) - 1
        if place >= 0:
            self._marked.add(self._firsts[place])

    def _mark_session(self, session: Session) -> int:
        """Mark what a session refers to; the oldest offset, or that of what others need."""
        offsets: list[int] = []
        oldest = self._oldest
        if session.expiry == 0:
            return oldest  # nothing of it is kept
        if session.queue is not None:
            assert self._marked is not None
            kept = session.queue.mark(self._firsts, self._marked)
            oldest = kept if kept >= 0 else oldest
        if session.window is not None:
            offsets += [outgoing.message.offset for outgoing in session.window.entries.values()]
        if session.inbound is not None:
            offsets += [entry.message.offset for entry in session.inbound.entries.values() if entry.message is not None]
        if session.moving is not None:
            offsets += [held.outgoing.message.offset for held in session.moving.held]
        for offset in offsets:
            if offset >= 0:
                self._mark(offset)
                oldest = min(oldest, offset)
        return oldest
