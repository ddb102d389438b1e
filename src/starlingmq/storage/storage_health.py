"""The state of the storage: ok, a full disk, a failing disk, or too few copies; since when, and why. For the log and
for operators.

There are two kinds of failures. If the journal fails, nothing can be accepted that has to be stored (``refusing``). If
checkpoints fail, all clients are served, but the journal grows and is not freed.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

from starlingmq.storage.store import TooFewCopies

log = logging.getLogger("starlingmq.storage")

State = Literal["ok", "full", "failing", "uncopied"]

FULL: Final = frozenset([errno.ENOSPC, errno.EDQUOT])
ADVICE: Final[dict[State, str]] = {
    "full": "free some space in the file system of the data directory",
    "failing": "check the kernel log and the disk of the data directory",
    "uncopied": "start the missing nodes, or set a lower cluster.min_copies",
    "ok": "",
}
CAUSES: Final[dict[State, str]] = {
    "full": "the disk is full",
    "failing": "the disk fails",
    "uncopied": "too few nodes store copies",
    "ok": "",
}


class StorageHealth:
    """``since`` is Unix seconds; ``failures`` counts the times that ``state`` left "ok"."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.state: State = "ok"
        self.reason = ""
        self.since = clock()
        self.refusing = False
        self.failures = 0

    def __str__(self) -> str:
        if self.state == "ok":
            return "ok"
        since = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="seconds")
        return f"{self.state} since {since}: {self.reason}"

    def fails(self, error: OSError, refusing: bool) -> bool:
        """Record a failure. Returns whether the state changed, which is then logged. ``refusing``: the journal
        failed."""
        state: State = "full" if error.errno in FULL else "failing"
        if isinstance(error, TooFewCopies):
            state = "uncopied"
        if (self.state == state and self.refusing == refusing) or (self.refusing and not refusing):
            return False
        if self.state != state:
            self.since = self._clock()
        if self.state == "ok":
            self.failures += 1
        self.state, self.reason, self.refusing = state, str(error), refusing
        if state == "uncopied":
            then = "everything that must be stored is refused until enough nodes are in step"
        elif refusing:
            then = "everything that must be stored is refused until the disk works again"
        else:
            then = "no checkpoint can be written, so the journal grows; clients are served"
        log.error("%s (%s): %s; %s", CAUSES[state], self.reason, then, ADVICE[state])
        return True

    def works(self) -> bool:
        """Record that storing works. Returns whether the state changed, which is then logged."""
        if self.state == "ok":
            return False
        log.warning("the storage works again after %.0f s; everything is accepted", self._clock() - self.since)
        self.state, self.reason, self.refusing, self.since = "ok", "", False, self._clock()
        return True
