"""Drops queued messages that ``storage.retention_time`` or ``storage.retention_size`` no longer keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from starlingmq.core.broker import BrokerState
from starlingmq.storage.journal import Journal
from starlingmq.storage.segment.retention import Retention

RETIRE_SECONDS: Final = 10.0  # between two searches for messages that have waited too long
RETIRE_PIECE: Final = 1000  # messages of one session per turn
FOR_EVER: Final = Retention(0.0, 0)


class RetentionSweep:
    """``piece``: sessions per turn."""

    def __init__(self, journal: Journal, retention: Retention, clock: Callable[[], float], piece: int) -> None:
        self.journal = journal
        self.retention = retention
        self.clock = clock
        self.piece = piece
        self._retired = 0  # below this offset no message waits
        self._retired_at = clock()

    def _keeps_all(self) -> bool:
        return self.retention.seconds == 0.0 and self.retention.size == 0

    def due(self) -> bool:
        """Whether a message has waited for too long, or too much waits."""
        if self._keeps_all():
            return False
        now = self.clock()
        if now - self._retired_at < RETIRE_SECONDS:
            return False
        self._retired_at = now
        return self.retention.cutoff(self.journal.segments(), now) > self._retired

    def run(self, state: BrokerState) -> Iterator[None]:
        """Drop messages that have waited for too long. The next checkpoint begins when that is in the journal."""
        if self._keeps_all():
            return
        cutoff = self.retention.cutoff(self.journal.segments(), self.clock())
        if cutoff <= self._retired:
            return
        self._retired = cutoff
        for number, session in enumerate(list(state.ctx.sessions.values())):
            while state.delivery.retire(session, cutoff, RETIRE_PIECE):
                yield
            if number % self.piece == self.piece - 1:
                yield
        yield
