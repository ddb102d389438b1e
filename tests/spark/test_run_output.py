"""``pipeline run`` as a process: its events, its health file, and how far it is behind while nothing arrives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.spark.brokers import TOKEN, StreamBroker

SECONDS = 200.0


@pytest.mark.slow
@pytest.mark.long(
    kept="tests/spark/test_pipeline.py::test_a_watermark_far_ahead_of_the_clock_and_repeated_batches_are_told"
)
@pytest.mark.timeout(400)
def test_a_running_pipeline_reports_events_and_is_not_behind_while_nothing_arrives(
    broker: StreamBroker, tmp_path: Path
) -> None:
    broker.publish([b'{"id": "a"}'] * 5)
    file, health = tmp_path / "hot.yaml", tmp_path / "health.json"
    tree = {
        "name": "hot", "source": {"servers": [broker.address], "stream": "all", "token": TOKEN},
        "sink": {"path": str(tmp_path / "out")}, "checkpoint": str(tmp_path / "checkpoint"), "trigger": {"every": "1s"},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(tree))
    words = ["run", str(file), "--log-json", "--health-file", str(health)]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    line = [sys.executable, "-m", "starlingmq", "pipeline", *words]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(line, stderr=log, env=environment) as running:
        try:
            until = time.monotonic() + SECONDS
            end, idle = 0.0, False
            while not idle and time.monotonic() < until and running.poll() is None:
                time.sleep(0.1)
                found = json.loads(health.read_bytes()) if health.exists() else {"freshness": None}
                if found["freshness"] is not None:
                    end = end or found["at"] - found["freshness"]
                    idle = found["at"] - found["freshness"] > end + 3  # moves on without rows
            assert idle and found["healthy"] and found["lag"] == 0
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0
    events = [json.loads(each) for each in (tmp_path / "log").read_text().splitlines() if each.startswith("{")]
    first, *batches, last = events
    assert (first["event"], last["event"], {event["event"] for event in batches}) == ("started", "ended", {"batch"})
    numbers = [event["batch"] for event in batches]
    assert numbers == sorted(set(numbers)), events
    assert (batches[-1]["rows"], last["rows"], last["lag"]) == (5, 5, 0), events
    assert json.loads(health.read_bytes())["reason"] == "it has ended"
