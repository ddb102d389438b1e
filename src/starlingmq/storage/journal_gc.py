"""Deletes the journal segments that no session refers to, after each checkpoint.

The sessions are scanned over several turns, so references can be added meanwhile: ``keep`` marks those. The offsets of
deleted segments are remembered, since a retained message in memory may still know one of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from starlingmq.core.broker import BrokerState
from starlingmq.core.session.session import Session
from starlingmq.storage.journal import Journal
from starlingmq.storage.storage_thread import StorageThread


class JournalGc:
    """``careful``: a power failure must not restore a reference to a deleted segment. ``piece``: sessions per turn."""

    def __init__(self, journal: Journal, thread: StorageThread, careful: bool, piece: int) -> None:
        self.journal = journal
        self.thread = thread
        self.careful = careful
        self.piece = piece
        self._marked: set[int] | None = None  # first offsets of the segments that are needed, during a scan
        self._oldest = 0  # the lowest offset that is needed, as far as the scan has come
        self._firsts: list[int] = []
        self._given = [0, journal.first]  # bounds of the deleted ranges: begin, end, begin, end ..., rising

    def keep(self, offset: int) -> bool:
        """Whether the record still exists. If so, it is kept: a new reference prevents its deletion."""
        if offset < self._given[-1] and bisect_right(self._given, offset) % 2:
            return False
        if self._marked is not None:
            self._mark(offset)
            self._oldest = min(self._oldest, offset)
        return True

    def give_back(self, state: BrokerState, checkpoint: int) -> Iterator[None]:
        """Find the segments with a message that a session still needs, and delete the others.

        ``keep`` marks references that are added meanwhile; records that are appended meanwhile are after
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
            if self.careful:  # a power failure must not restore a reference to a segment that is deleted now
                yield from self.thread.run(self.journal.sync)
            needed = self._marked
        finally:
            self._marked = None
        oldest = self._oldest
        doomed = [segment for segment in segments if segment.next <= checkpoint and segment.first not in needed]
        self._withdraw_offsets(0, oldest)
        for segment in doomed:
            self._withdraw_offsets(segment.first, segment.next)
        self.journal.trim(oldest)
        for segment in doomed:
            grown = (
                segment is segments[-1] and self.journal.next != end
            )  # it was created during the scan, and the scan has not covered it
            if segment.first >= oldest and not grown:
                self.journal.drop(segment.first)
                yield

    def _withdraw_offsets(self, first: int, next: int) -> None:
        """From now on no message may refer to these offsets. A retained message in memory may still know one of
        them."""
        begin, end = bisect_left(self._given, first), bisect_right(self._given, next)
        self._given[begin:end] = [first] * (begin % 2 == 0) + [next] * (end % 2 == 0)

    def _mark(self, offset: int) -> None:
        assert self._marked is not None
        index = bisect_right(self._firsts, offset) - 1
        if index >= 0:
            self._marked.add(self._firsts[index])

    def _mark_session(self, session: Session) -> int:
        """Mark the offsets that a session refers to. Returns the lowest of them, or the lowest so far."""
        offsets: list[int] = []
        oldest = self._oldest
        if session.expiry == 0:
            return oldest  # the holdings of this session are not stored
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
