"""The named scenarios and the many idle connections run small here; an idle connection has a bound for its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from bench.suite import SCENARIOS

import starlingmq

CONNECTIONS: Final = 2_000
BYTES_MAX: Final = 3_300 if starlingmq.compiled() else 6_200  # of a connection with session and filter: 2,920 and 5,470

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def ran(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STARLINGMQ_") or "PURE" in name}
    done = subprocess.run(
        command, env={**kept, **environment}, capture_output=True, text=True, timeout=140, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_an_idle_connection_takes_little_memory(tmp_path: Path) -> None:
    ran("bench.million", "--connections", str(CONNECTIONS), "--out", str(tmp_path))
    found = json.loads((tmp_path / "starlingmq.json").read_text())
    assert found["connections"] == CONNECTIONS
    assert len(found["steps"]) == 10
    assert 500 < found["broker_bytes"] < BYTES_MAX
    assert found["idle_ms"][0] > 0


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_connections_stop_where_memory_would_run_out(tmp_path: Path) -> None:
    said = ran("bench.million", "--connections", "3000", "--memory", "1", "--out", str(tmp_path)).stdout
    found = json.loads((tmp_path / "starlingmq.json").read_text())
    assert found["connections"] < 3000
    assert "1 MiB of memory" in said


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(150)
def test_every_scenario_delivers_all_messages(tmp_path: Path) -> None:
    ran("bench.suite", "--peers", "starlingmq", "--scale", "0.03", "--seconds", "0.5", "--out", str(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())
    assert [each["scenario"]["name"] for each in results] == [each.name for each in SCENARIOS]
    for each in results:
        assert each["error"] == ""
        assert each["outcome"]["done"] > 0
        assert each["outcome"]["missing"] == 0
        assert each["outcome"]["latency_us"][0] > 0


def test_a_peer_that_cannot_be_had_is_skipped_with_a_line(tmp_path: Path) -> None:
    done = ran("bench.suite", "--peers", "flashmq", "--out", str(tmp_path), FLASHMQ="")
    assert done.stderr == "flashmq: skipped: no registry has it; set FLASHMQ= to the path of its program\n"
    assert json.loads((tmp_path / "results.json").read_text()) == []


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(150)
def test_every_transport_is_measured(tmp_path: Path) -> None:
    ran("bench.transports", "--peers", "starlingmq", "--scale", "0.1", "--out", str(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())
    assert [each["scheme"] for each in results] == ["mqtt", "mqtts", "ws", "wss"]
    for each in results:
        assert each["error"] == ""
        assert each["outcome"]["missing"] == 0
        assert each["outcome"]["idle_bytes"] > 500
        assert each["outcome"]["latency_us"][0] > 0
