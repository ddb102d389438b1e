"""Output of a running pipeline: a table on a terminal, otherwise lines or JSON on stderr, and files for other programs.

With JSON each line of stderr is an object with ``time``, ``event`` and ``pipeline``:

    event     when, and what else it has
    started   the queries run; ``pid``
    batch     a batch was completed: the figures of the status
    repeat    a batch that had begun before is run again; ``query``, ``batch``
    warning   ``problem``: a watermark is far ahead of the clock
    restart   after a transient failure; ``problem``, ``seconds`` (until the start), ``count``, ``most``
    ended     the pipeline was stopped, or has read everything; the figures of the status
    failed    as ``ended``, with ``problem``
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from starlingmq.pipeline.restarts import Restarts, transient
from starlingmq.pipeline.status import Status, metrics_text, replace_file

LINE_SECONDS: Final = 10.0  # between two lines where stderr is no terminal
WRITE_SECONDS: Final = 1.0  # between two writes of the files
FIGURES: Final = ("rows", "rate", "lag", "lost", "again", "restarts", "repeats", "batch", "batch_seconds")
AHEAD_SECONDS: Final = 86_400.0  # of a watermark, from which it is warned of


class Health(msgspec.Struct, frozen=True):
    """``at``: Unix time of the report. ``freshness``: seconds; null if unknown."""

    pipeline: str
    healthy: bool
    reason: str
    at: float
    freshness: float | None
    lag: int


class RunOutput:
    """``quiet``: only files, and restarts."""

    def __init__(
        self,
        status: Status,
        quiet: bool = False,
        as_json: bool = False,
        metrics_file: Path | None = None,
        health_file: Path | None = None,
    ) -> None:
        self.status = status
        self.quiet = quiet
        self.as_json = as_json
        self.metrics_file = metrics_file
        self.health_file = health_file
        self._batch = status.batch
        self._line_at = 0.0
        self._written_at = 0.0
        self._warned = False
        self._live: Live | None = None

    # Events

    def started(self) -> None:
        self._event("started", pid=self.status.pid)
        self.write()

    def repeated(self, query: str, batch: int) -> None:
        """A batch had begun before, and is run again."""
        self.status.repeats += 1
        self._event("repeat", query=query, batch=batch)
        if not self.as_json:
            told = f"batch {batch} had begun and was not completed; it is run again with the same rows"
            print(f"{query}: {told}", file=sys.stderr)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Show the progress during the block."""
        screen = Console(file=sys.stderr, quiet=self.quiet or self.as_json)
        if not screen.is_terminal or screen.quiet:
            yield
            return
        with Live(table_of([self.status]), console=screen, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def look(self) -> None:
        """Tell what has changed since the last look."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(table_of([self.status]), refresh=True)
        if self.status.batch > self._batch:
            self._batch = self.status.batch
            self._event("batch", **self._figures())
            self._written_at = 0.0
            self._warn()
            if not (self.as_json or self.quiet or self._live) and now >= self._line_at + LINE_SECONDS:
                self._line_at = now
                print(progress_line(self.status), file=sys.stderr)
        if now >= self._written_at + WRITE_SECONDS:
            self._written_at = now
            self.write()

    def _warn(self) -> None:
        """Tell once that event times are far ahead of the clock."""
        ahead = self.status.ahead
        if ahead >= AHEAD_SECONDS and not self._warned:
            problem = (
                f"the watermark follows an event time that is {ahead / AHEAD_SECONDS:,.1f} days ahead of the clock; "
                "rows before it count as late, and are left out"
            )
            self._event("warning", problem=problem)
            if not self.as_json:
                print(f"{self.status.name}: {problem}", file=sys.stderr)
        self._warned = ahead >= AHEAD_SECONDS

    def restart(self, what: str, failure: str, wait: float, restarts: Restarts) -> None:
        meaning = transient(failure)
        self._event("restart", problem=meaning, seconds=wait, count=restarts.count, most=restarts.most)
        if not self.as_json:
            again = f"the pipeline is started again in {wait:g} s ({restarts.count} of {restarts.most})"
            print(f"{what}: {meaning}; {again}", file=sys.stderr)
        self.write(f"{meaning}; it is started again")

    def ended(self) -> None:
        """The status says why."""
        problem = self.status.problem
        if problem:
            self._event("failed", problem=problem, **self._figures())
        else:
            self._event("ended", **self._figures())
        self.write(problem or "it has ended")

    # Files

    def write(self, reason: str = "") -> None:
        """Write the status, and the files of the options. ``reason``: why it is not healthy."""
        status = self.status
        status.write()
        if self.metrics_file is not None:
            replace_file(self.metrics_file, metrics_text(status).encode())
        if self.health_file is not None:
            health = Health(status.name, not reason, reason, time.time(), status.freshness(), status.lag)
            replace_file(self.health_file, msgspec.json.encode(health))

    def _figures(self) -> dict[str, Any]:
        return {name: getattr(self.status, name) for name in FIGURES} | {"freshness": self.status.freshness()}

    def _event(self, event: str, **more: Any) -> None:
        if self.as_json:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            print(json.dumps({"time": at, "event": event, "pipeline": self.status.name, **more}), file=sys.stderr)


def progress_line(status: Status) -> str:
    fresh = status.freshness()
    told = "" if fresh is None else f", {fresh:,.1f} s behind"
    return f"{status.name}: {status.rows:,} rows, {status.rate:,.0f} rows/s, lag {status.lag:,}{told}"


def table_of(statuses: list[Status]) -> Table:
    table = Table("pipeline", "state", "rows in", "rows/s", "lag", "behind", "last batch", "took", box=None)
    for one in statuses:
        fresh = one.freshness() if one.state == "running" else None
        table.add_row(
            one.name,
            one.state if not one.problem else "failed",
            f"{one.rows:,}",
            f"{one.rate:,.0f}",
            f"{one.lag:,}",
            "" if fresh is None else f"{fresh:,.1f} s",
            str(one.batch) if one.batch >= 0 else "",
            f"{one.batch_seconds:.1f} s" if one.batch >= 0 else "",
        )
    return table


def unhealthy(file: Path, age_max: float, behind_max: float) -> str:
    """Return why the pipeline that writes this file is not healthy; "" if it is."""
    try:
        health = msgspec.json.decode(file.read_bytes(), type=Health)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    except msgspec.MsgspecError:
        return f"{file} is not a health file"
    age = time.time() - health.at
    if not health.healthy:
        return f"{health.pipeline}: {health.reason}"
    if age > age_max:
        return f"{health.pipeline}: its last report is {age:,.0f} s old"
    behind = None if health.freshness is None else health.freshness + age
    if behind_max and (behind is None or behind > behind_max):
        return f"{health.pipeline}: it is {'not known how far' if behind is None else f'{behind:,.0f} s'} behind"
    return ""
