"""Whether a pipeline that has failed is started again, and when.

    the failure                                      what follows
    passes by itself, as TRANSIENT has it            a start from the checkpoint, after 1, 2, 4, ... seconds
    ... as often as allowed, with no batch between   the pipeline ends with it
    any other                                        the pipeline ends with it

A batch that is done since the last failure lets the count begin at 0.
"""

from __future__ import annotations

from typing import Final

WAIT_SECONDS_MAX: Final = 60.0

TRANSIENT: Final = (
    ("Python worker failed to connect back", "a Python worker of Spark did not start in time"),
    ("Accept timed out", "a Python worker of Spark did not start in time"),
    ("SocketTimeoutException", "a Python worker of Spark did not answer in time"),
    ("Python worker exited unexpectedly", "a Python worker of Spark ended"),
    ("option patience)", "a node does not answer"),
    ("became unreachable while stream", "a node became unreachable"),
)
"""Part of what Spark says, and what it means. A busy machine causes the first ones, since Spark waits for a fixed
time."""


def transient(failure: str) -> str:
    """What has failed, in words, if it may pass by itself; otherwise ""."""
    return next((words for part, words in TRANSIENT if part in failure), "")


class Restarts:
    """``most``: starts after failures with no batch between."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self._batch = -1

    def after(self, failure: str, batch: int) -> float | None:
        """Seconds to wait before the next start; None: there is none. ``batch``: the last one that is done."""
        if batch > self._batch:
            self._batch = batch
            self.count = 0
        if not transient(failure) or self.count >= self.most:
            return None
        self.count += 1
        return float(min(WAIT_SECONDS_MAX, 2.0 ** (self.count - 1)))
