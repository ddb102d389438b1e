"""Status of the pipelines on this machine: each running one writes it to a file, which other commands read."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from starlingmq.bulk.positions import PositionError, StreamPosition, position_of

STATE_HOME: Final = "XDG_STATE_HOME"


class Status(msgspec.Struct, kw_only=True):
    """Times in Unix seconds, rates in rows a second, ``lag`` in rows that wait at the nodes. Since the checkpoint was
    created, ``lost`` rows had been deleted before they were read, and ``again`` times a stream was replaced by another
    one of the same name. ``problem``: why it ended, "" if it was stopped or is running. ``restarts``: of its queries,
    after transient failures; ``repeats``: batches that had begun before, and were run again. ``fresh``: all messages
    published before that time have been processed; 0 if unknown. ``ahead``: seconds by which the watermark, or the
    latest event time that it follows, was ahead of the clock at the last batch; 0 if it was not.
    """

    name: str
    file: str
    pid: int
    began: float
    heard: float
    state: str = "running"  # or ended
    rows: int = 0
    rate: float = 0.0
    lag: int = 0
    lost: int = 0
    again: int = 0
    restarts: int = 0
    repeats: int = 0
    batch: int = -1
    batch_seconds: float = 0.0
    problem: str = ""
    fresh: float = 0.0
    ahead: float = 0.0

    def freshness(self) -> float | None:
        """Return for how many seconds messages may wait to be processed by now; None if unknown."""
        return round(max(0.0, time.time() - self.fresh), 3) if self.fresh else None

    def take(self, progress: Any) -> None:
        """Record Spark's report of a completed batch."""
        self.heard = time.time()
        if progress["batchId"] == self.batch:
            return
        self.batch = progress["batchId"]
        self.rows += progress["numInputRows"]
        self.rate = float(progress["processedRowsPerSecond"] or 0.0)
        self.batch_seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        self.lag = sum(_lag(source) for source in progress["sources"])
        if self.lag == 0:
            self.fresh = _seconds(progress["timestamp"])  # of the start of the batch
        times = progress.get("eventTime") or {}
        marks = [_seconds(times[name]) for name in ("watermark", "max") if name in times]
        self.ahead = max([0.0, *(mark - _seconds(progress["timestamp"]) for mark in marks)])
        ends = [_position(source["endOffset"]) for source in progress["sources"]]
        self.lost = sum(end.lost for end in ends)
        self.again = sum(end.again for end in ends)

    def write(self) -> None:
        """Write it atomically: readers find this status or the previous one, complete."""
        replace_file(status_path(self.name), msgspec.json.encode(self))


def replace_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)


METRICS: Final = (
    ("running", "gauge", "1 until the pipeline ends. A pipeline that was killed keeps 1: see heard_timestamp_seconds."),
    ("rows_total", "counter", "Rows read since it was started."),
    ("rows_per_second", "gauge", "Rows per second of the last batch."),
    ("lag_rows", "gauge", "Rows that wait at the nodes."),
    (
        "lost_rows_total",
        "counter",
        "Rows that had been deleted before they were read, since the checkpoint was created.",
    ),
    ("restarts_total", "counter", "Starts of its queries after transient failures."),
    ("repeats_total", "counter", "Batches that had begun before, and were run again."),
    ("last_batch", "gauge", "Number of the last completed batch; -1 if there is none."),
    ("last_batch_seconds", "gauge", "Duration of the last batch."),
    ("fresh_timestamp_seconds", "gauge", "Time up to which all messages have been processed; 0 if unknown."),
    ("heard_timestamp_seconds", "gauge", "Time of the last sign of life, each second while it runs."),
)


def metrics_text(one: Status) -> str:
    """Return the status in the text format of Prometheus."""
    values = (
        int(one.state == "running"), one.rows, one.rate, one.lag, one.lost, one.restarts, one.repeats, one.batch,
        one.batch_seconds, one.fresh, one.heard,
    )  # fmt: skip
    lines: list[str] = []
    for (name, kind, help), value in zip(METRICS, values, strict=True):
        full = f"starlingmq_pipeline_{name}"
        lines += [f"# HELP {full} {help}", f"# TYPE {full} {kind}", f'{full}{{pipeline="{one.name}"}} {value}']
    return "\n".join(lines) + "\n"


def _seconds(time: str) -> float:
    """Parse a time of Spark."""
    return datetime.fromisoformat(time).timestamp()


def _lag(source: Any) -> int:
    """Return the rows between the end of a batch and the end of the stream at that time."""
    end, latest = _position(source["endOffset"]).offsets, _position(source["latestOffset"]).offsets
    return sum(max(0, offset - end[node]) for node, offset in latest.items() if node in end)


def _position(told: object) -> StreamPosition:
    """Parse a position; empty if Spark reports none."""
    try:
        return position_of(msgspec.json.decode(str(told).encode(), type=dict[str, Any]))
    except (msgspec.MsgspecError, PositionError):
        return StreamPosition()


def status_path(name: str) -> Path:
    home = os.environ.get(STATE_HOME) or str(Path.home() / ".local" / "state")
    return Path(home) / "starlingmq" / "pipelines" / f"{name}.json"


def read_status(name: str) -> Status | None:
    """Return a pipeline's status; None if it never ran here. If its process no longer exists, it has died."""
    try:
        found = msgspec.json.decode(status_path(name).read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        return None
    if found.state == "running" and not _alive(found.pid):
        found.state, found.problem = "ended", "its process no longer exists"
    return found


def all_statuses() -> list[Status]:
    names = sorted(path.stem for path in status_path("x").parent.glob("*.json"))
    return [found for name in names if (found := read_status(name)) is not None]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
