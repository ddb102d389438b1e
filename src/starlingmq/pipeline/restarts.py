"""Decides whether and when a failed pipeline is restarted.

    the failure                                      consequence
    transient (in TRANSIENT)                         a start from the checkpoint, after 1, 2, 4, ... seconds
    ... as often as allowed, with no batch between   the pipeline ends with it
    any other                                        the pipeline ends with it

A batch completed since the last failure resets the count.
"""

from __future__ import annotations

from typing import Final

WAIT_SECONDS_MAX: Final = 60.0

TRANSIENT: Final = (
    ("Python worker failed to connect back", "a Python worker of Spark did not start in time"),
    ("Accept timed out", "a Python worker of Spark did not start in time"),
    ("SocketTimeoutException", "a Python worker of Spark did not answer in time"),
    ("Python worker exited unexpectedly", "a Python worker of Spark ended"),
    ("option nodeTimeout)", "a node does not answer"),
    ("became unreachable while stream", "a node became unreachable"),
    ("the schema registry does not answer", "the schema registry does not answer"),
    ("ExecutorLostFailure", "an executor of Spark ended"),
    ("org.apache.kafka.common.errors.TimeoutException", "Kafka does not answer"),
    ("org.apache.kafka.common.errors.DisconnectException", "Kafka ended a connection"),
    ("starlingmq.pipeline.jdbc.DatabaseAway", "the database does not answer"),
    ("starlingmq.pipeline.iceberg.CatalogAway", "the catalog of the table does not answer"),
    ("starlingmq.pipeline.iceberg.CommitConflict", "other programs write to the table at the same time"),
    ("org.postgresql.util.PSQLException: FATAL: terminating connection", "PostgreSQL ended a connection"),
    ("org.postgresql.util.PSQLException: Connection to", "PostgreSQL does not answer"),
    ("org.postgresql.util.PSQLException: An I/O error", "PostgreSQL ended a connection"),
    ("org.postgresql.util.PSQLException: This connection has been closed", "PostgreSQL ended a connection"),
    ("org.postgresql.util.PSQLException: FATAL: the database system is", "PostgreSQL is starting or stopping"),
)
"""Parts of Spark's messages, and their meaning. A busy machine causes the first ones, because Spark has fixed
time-outs.
"""


def transient(failure: str) -> str:
    """Return a description of a transient failure; "" for any other."""
    return next((words for part, words in TRANSIENT if part in failure), "")


class Restarts:
    """``most``: starts after failures with no batch between."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self._batch = -1

    def after(self, failure: str, batch: int) -> float | None:
        """Return the seconds before the next start; None: no restart. ``batch``: the last completed one."""
        if batch > self._batch:
            self._batch = batch
            self.count = 0
        if not transient(failure) or self.count >= self.most:
            return None
        self.count += 1
        return float(min(WAIT_SECONDS_MAX, 2.0 ** (self.count - 1)))
