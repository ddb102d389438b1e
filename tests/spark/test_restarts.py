"""A pipeline whose queries fail is restarted, as often as allowed, or ended with the reason."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from starlingmq.cli import pipeline_running
from starlingmq.cli.declare import CommandError
from starlingmq.cli.pipeline_output import RunOutput
from starlingmq.pipeline.restarts import WAIT_SECONDS_MAX, Restarts, transient
from starlingmq.pipeline.run import Pipeline
from starlingmq.pipeline.status import Status

WORKER = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache.spark.api.python"
ROWS = "RowError: the topic of a row is null or empty"


def test_a_failure_that_passes_by_itself_starts_a_pipeline_again_later_each_time() -> None:
    restarts = Restarts(3)
    assert [restarts.after(WORKER, -1) for _ in range(4)] == [1.0, 2.0, 4.0, None]
    assert restarts.after(WORKER, 5) == 1.0, "a batch was done since"
    assert restarts.after(WORKER, 5) == 2.0
    assert restarts.after(ROWS, 9) is None
    patient = Restarts(100)
    assert max(patient.after(WORKER, -1) or 0.0 for _ in range(20)) == WAIT_SECONDS_MAX


@pytest.mark.parametrize(
    ("failure", "meaning"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Topic numbers not present", "Kafka does not answer"),
        ("org.postgresql.util.PSQLException: Connection to 127.0.0.1:5432 refused.", "PostgreSQL does not answer"),
        ("starlingmq.pipeline.jdbc.DatabaseAway: the database of t does not answer", "the database does not answer"),
        ("AnalysisException: [FAILED_JDBC.TABLE_EXISTS] Failed JDBC jdbc:postgresql:**", ""),
        (
            "AnalysisException: [FAILED_JDBC.CONNECTION] Failed JDBC jdbc:postgresql:** password authentication failed",
            "",
        ),
        ("SparkException: ExecutorLostFailure (executor 1 exited)", "an executor of Spark ended"),
        ("org.postgresql.util.PSQLException: ERROR: permission denied for table t", ""),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: denied", ""),
    ],
)
def test_a_failure_of_a_sink_passes_only_if_its_server_may_come_back(failure: str, meaning: str) -> None:
    assert transient(failure) == meaning


class FailedQuery:
    """A query that ended at once; ``failure`` "": by itself."""

    name = "hot"
    isActive = False
    recentProgress: tuple[Any, ...] = ()

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def exception(self) -> Exception | None:
        return Exception(self.failure) if self.failure else None

    def stop(self) -> None:
        pass


def follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, *failures: str) -> int:
    """How often the queries were started again, where they fail so, one time after the other."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    after = Restarts.after
    monkeypatch.setattr(Restarts, "after", lambda *given: None if after(*given) is None else 0.0)
    coming = iter(failures)
    config = SimpleNamespace(restarts=2, trigger=SimpleNamespace(every=1.0))
    pipeline = SimpleNamespace(config=config, repeated=[], start=lambda: [FailedQuery(next(coming))])
    status = Status(name="hot", file="hot.yaml", pid=1, began=1.0, heard=1.0)
    pipeline_running.follow(cast(Pipeline, pipeline), status, "hot.yaml", RunOutput(status, quiet=True))
    return status.restarts


def test_a_python_worker_that_is_late_is_said_in_a_line_and_the_queries_are_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow(monkeypatch, tmp_path, WORKER, WORKER, "") == 2
    told = capsys.readouterr().err.splitlines()
    line = "hot.yaml: hot: a Python worker of Spark did not start in time; the pipeline is started again in 0 s"
    assert told == [f"{line} (1 of 2)", f"{line} (2 of 2)"]


def test_a_failure_that_stays_ends_the_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with pytest.raises(CommandError, match="the topic of a row is null"):
        follow(monkeypatch, tmp_path, ROWS)
    with pytest.raises(CommandError, match="Python worker failed to connect back"):
        follow(monkeypatch, tmp_path, WORKER, WORKER, WORKER)


def test_a_worker_that_reads_loads_no_client() -> None:
    """Spark waits 10 s for a worker that imports this, also on a machine that is busy."""
    code = "import sys, starlingmq.spark; print([m for m in sys.modules if m.startswith('starlingmq.client')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "[]\n"
