"""The output of a running pipeline: lines, events as JSON, and the health file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from starlingmq.cli.declare import CommandError
from starlingmq.cli.main import main
from starlingmq.cli.pipeline_output import RunOutput, progress_line
from starlingmq.cli.pipeline_running import session
from starlingmq.pipeline.config import PipelineConfig
from starlingmq.pipeline.restarts import Restarts
from starlingmq.pipeline.status import Status

WORKER = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache.spark.api.python"


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Status:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Status(name="hot", file="hot.yaml", pid=7, began=1.0, heard=1.0)


def batch(number: int, rows: int, waiting: int, at: str = "2026-03-02T06:00:00.500Z") -> dict[str, Any]:
    source = {"endOffset": '{"n1": 5}', "latestOffset": f'{{"n1": {5 + waiting}}}'}
    return {
        "batchId": number, "numInputRows": rows, "processedRowsPerSecond": 100.0, "timestamp": at, "sources": [source],
        "durationMs": {"triggerExecution": 250},
    }  # fmt: skip


def test_freshness_is_the_start_of_the_last_batch_that_read_everything(status: Status) -> None:
    assert status.freshness() is None
    status.take(batch(0, 5, 0))
    assert status.fresh == 1772431200.5
    status.take(batch(1, 5, 3, "2026-03-02T06:00:02.000Z"))
    assert (status.fresh, status.lag) == (1772431200.5, 3), "rows that were there at this batch wait"
    found = status.freshness()
    assert found is not None and found == pytest.approx(time.time() - status.fresh, abs=5)
    assert progress_line(status).startswith("hot: 10 rows, 100 rows/s, lag 3, ")


def test_events_are_lines_of_json(status: Status, capsys: pytest.CaptureFixture[str]) -> None:
    output = RunOutput(status, as_json=True)
    output.started()
    output.look()
    status.take(batch(0, 5, 2))
    output.look()
    output.look()
    restarts = Restarts(3)
    wait = restarts.after(WORKER, 0)
    assert wait is not None
    output.restart("hot.yaml: hot", WORKER, wait, restarts)
    status.problem = 'the topic of a row is "null"'
    output.ended()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["started", "batch", "restart", "failed"]
    assert all(line["pipeline"] == "hot" and line["time"].endswith("+00:00") for line in lines)
    assert (lines[0]["pid"], lines[1]["rows"], lines[1]["lag"], lines[1]["freshness"]) == (7, 5, 2, None)
    assert lines[2]["problem"] == "a Python worker of Spark did not start in time" and lines[2]["seconds"] == 1.0
    assert lines[3]["problem"] == status.problem


def test_a_batch_is_one_line_where_there_is_no_terminal(status: Status, capsys: pytest.CaptureFixture[str]) -> None:
    output = RunOutput(status)
    for number in range(3):  # one line in ten seconds
        status.take(batch(number, 5, 0))
        output.look()
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == ["hot: 5 rows"]


def test_the_health_file_says_whether_the_pipeline_runs(
    status: Status, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "health.json"

    def health(*words: str) -> tuple[int, str]:
        code = main(["pipeline", "health", str(file), *words])
        return code, capsys.readouterr().out.strip()

    assert health() == (1, f"{file} cannot be read: No such file or directory")
    output = RunOutput(status, quiet=True, health_file=file)
    output.started()
    assert health() == (0, "healthy")
    assert health("--max-behind", "10s") == (1, "hot: it is not known how far behind")
    status.take(batch(0, 5, 0))
    status.fresh = written = time.time()
    status.fresh -= 60
    output.look()
    assert health("--max-behind", "10m") == (0, "healthy") and health("--max-behind", "10s")[0] == 1
    said = health("--max-age", "0")[1]
    assert any(f" {age} s old" in said for age in range(round(time.time() - written) + 1)), said
    restarts = Restarts(3)
    output.restart("hot.yaml: hot", WORKER, restarts.after(WORKER, 0) or 0.0, restarts)
    assert health() == (1, "hot: a Python worker of Spark did not start in time; it is started again")
    output.started()
    assert health() == (0, "healthy")
    output.ended()
    assert health() == (1, "hot: it has ended")
    file.write_text("{}")
    assert health() == (1, f"{file} is not a health file")
    assert main(["pipeline", "health", str(file), "--max-age", "soon"]) == 2
    assert "--max-age: " in capsys.readouterr().err


def test_metrics_and_health_are_written_together(status: Status, tmp_path: Path) -> None:
    output = RunOutput(status, True, False, tmp_path / "metrics", tmp_path / "health")
    output.started()
    assert 'starlingmq_pipeline_fresh_timestamp_seconds{pipeline="hot"} 0.0' in (tmp_path / "metrics").read_text()
    assert json.loads((tmp_path / "health").read_text())["freshness"] is None


def test_without_spark_the_advice_is_true_for_a_package_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlingmq.pipeline.run", None)
    with pytest.raises(CommandError, match=r"install the extra \[spark\] \(docs/DEPLOY\.md\), and Java 17"):
        session("file", cast(PipelineConfig, None), "", ask=False)
