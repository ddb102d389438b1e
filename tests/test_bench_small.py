"""The benchmark cannot rot: make test starts every program, make test-all runs every section small."""

from __future__ import annotations

import importlib
import json
import runpy
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

ROOT = Path(__file__).parent.parent
PNG = b"\x89PNG"


NO_LINE = 3


def measured(seconds: float, module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.compiled_only
def test_every_program_says_how_it_is_used() -> None:
    """The modules of all programs can be imported, and their options be read."""
    programs = [path for path in sorted((ROOT / "bench").rglob("*.py")) if '__name__ == "__main__"' in path.read_text()]
    assert len(programs) > 25
    for path in programs:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if "ArgumentParser" in path.read_text():
            imported = sys.modules.pop(name, None)
            with (
                pytest.raises(SystemExit) as end,
                mock.patch("sys.argv", [name, "--help"]),
                redirect_stdout(StringIO()),
            ):
                runpy.run_module(name, run_name="__main__")
            if imported is not None:
                sys.modules[name] = imported
            assert end.value.code == 0, name
        else:
            importlib.import_module(name)


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(150)  # 30 s on a quiet machine
def test_the_quick_benchmark_measures_every_section(tmp_path: Path) -> None:
    measured(140, "bench", "--quick", "--peers", "starlingmq", "--out", str(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["throughput"] and all(results[name] for name in ("paced", "memory", "subscriptions", "wildcards"))
    for cell in results["throughput"]:
        assert cell["errors"] == {}
        assert cell["capacity"]["delivered_per_s"] > 0
        (run,) = cell["runs"]["starlingmq"]
        assert run["delivered"] > 0
        assert run["missing"] == 0 or not run["drained"]
    for section in ("paced", "memory", "subscriptions", "wildcards"):
        for place in results[section]:
            assert place["errors"] == {}
            assert len(place["runs"]["starlingmq"]) == 1
    check_persistence(results)
    check_nats(results)
    check_handshakes(results["handshakes"])
    check_auth(results)
    assert (tmp_path / "handshakes.png").read_bytes().startswith(PNG)
    assert results["wildcards"][0]["runs"]["starlingmq"][0]["replayed"] == [200]
    assert results["wildcards"][0]["runs"]["starlingmq"][0]["stall_max_ms"] is not None
    assert (tmp_path / "results.png").read_bytes().startswith(PNG)


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(200)  # 30 s on a quiet machine
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_the_benchmark_of_copies_measures_what_they_cost(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    measured(190, "bench.copies", "--rate", "50", "--seconds", "2", "--messages", "40", "--out", str(out))
    results = json.loads(out.read_text())
    assert [run["copies"] for run in results["paced"]] == [1, 2]
    for run in results["paced"]:
        assert run["sent"] == run["delivered"] == 100 and 0 < run["p50_ms"] <= run["p99_ms"] and run["cpu_us"] > 0
    assert results["bytes_per_second"] > 0 and results["seconds_to_session"] > 0


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(300)  # 40 s on a quiet machine
def test_the_benchmark_of_pipelines_tells_its_goals() -> None:
    pytest.importorskip("pyspark")
    command = [sys.executable, "-m", "bench.pipeline", "--rows", "8000", "--rounds", "1", "--samples", "9"]
    command += ["--seconds", "1", "--rate", "2000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith(("met ", "MISSED "))]
    assert len(told) == 12, done.stdout
    found = {
        name: figures
        for line in done.stdout.splitlines()
        if line[:1] == "{"
        for name, figures in json.loads(line).items()
    }
    assert found["baseline"]["stream"]["lost"] == found["baseline"]["stream"]["doubled"] == 0
    assert found["source"]["rows"] == 8000 and found["fresh"]["samples"] > 0


def check_persistence(results: dict[str, Any]) -> None:
    for section in ("persistent", "away", "recovery", "kept"):
        for place in results[section]:
            assert place["errors"] == {}
    assert list(results["persistent"][0]["runs"]) == ["starlingmq", "starlingmq-process", "starlingmq-power"]
    assert all(run["stored"] > 0 for place in results["away"] for runs in place["runs"].values() for run in runs)
    recovery = results["recovery"][0]["runs"]["starlingmq-process"]
    for how in ("killed", "stopped"):
        assert recovery[how]["sampled"] == recovery[how]["expected"] == 30
    kept = results["kept"][0]
    (drained,) = kept["drains"]["starlingmq-process"]
    assert drained["delivered"] == kept["messages"]
    assert drained["stall_max_ms"] is not None
    assert 1.0 < kept["disk"]["starlingmq-process"] < 2.0


def check_handshakes(results: dict[str, Any]) -> None:
    assert results["errors"] == []
    assert len(results["local"][0]["clustered_us"]) == 2
    for run in results["modelled"]:
        assert 0 < run["calls"] <= run["bound"]
        assert run["one_by_one"] >= run["clients"]


def check_nats(results: dict[str, Any]) -> None:
    names = {cell["name"]: list(cell["runs"]) for cell in results["nats"]}
    assert names == {
        "pairs": ["starlingmq-nats"],
        "group": ["starlingmq-nats"],
        "kept group": ["starlingmq-nats-process"],
    }
    for cell in results["nats"]:
        assert cell["errors"] == {}
        for runs in cell["runs"].values():
            assert all(run["delivered"] > 0 and run["missing"] == 0 for run in runs)
    assert results["nats"][1]["shares"]["starlingmq-nats"][0] >= 1.0
    (hops,) = results["group_hops"]
    assert hops["errors"] == []
    assert hops["grouped"][0]["delivered"] > 0


def check_auth(results: dict[str, Any]) -> None:
    (cell,) = results["auth"]["cells"]
    assert cell["errors"] == {} and list(cell["runs"]) == ["starlingmq", "starlingmq-auth"]
    known, hashed = results["auth"]["logins"]
    assert known["errors"] == hashed["errors"] == {}
    assert known["runs"]["starlingmq-auth"][0]["let_in"] > 0
    assert hashed["runs"]["starlingmq-auth-forgets"][0]["sent"] > 0
    assert results["http"]["errors"] == []
    (watched,) = results["http"]["runs"]
    assert watched["connections"] == 100 and 0 < watched["first_page_bytes"] < 300_000


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(90)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_connects_in_a_cluster_and_at_a_node_alone_are_measured(tmp_path: Path) -> None:
    measured(80, "bench.owners", "--rounds", "3", "--out", str(tmp_path))
    found = json.loads((tmp_path / "owners.json").read_text())
    assert [each["name"] for each in found] == ["alone", "cluster"]
    assert all(each["new"]["p50"] > 0.0 and each["back"]["p50"] > 0.0 for each in found)


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(90)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_clients_that_come_back_at_once_are_measured(tmp_path: Path) -> None:
    measured(80, "bench.comeback", "--clients", "90", "--out", str(tmp_path))
    found = json.loads((tmp_path / "comeback.json").read_text())
    assert (found["back"], found["present"]) == (90, 90) and 0 < found["moved"] < 90


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(90)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_sessions_that_move_are_measured(tmp_path: Path) -> None:
    measured(80, "bench.sessions", "--clients", "100", "--rounds", "2", "--out", str(tmp_path))
    storm = json.loads((tmp_path / "sessions.json").read_text())["storm"]
    assert (storm["found"], storm["messages"], storm["doubled"]) == (100, 100, 0)
    assert (tmp_path / "sessions.png").read_bytes().startswith(PNG)


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(90)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_many_groups_are_measured(tmp_path: Path) -> None:
    measured(80, "bench.many_groups", "--groups", "60", "--seconds", "0.2", "--out", str(tmp_path))
    found = json.loads((tmp_path / "many_groups.json").read_text())
    assert (found["groups"], found["missing"], found["doubled"]) == (60, 0, 0)


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(90)
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_bridges_are_measured() -> None:
    measured(80, "bench.bridges", "--rounds", "1", "--seconds", "0.2", "--waiting", "500")


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(150)
def test_a_line_that_flaps_loses_nothing_and_causes_no_storm() -> None:
    """Cut for half of every five seconds: QoS 2 comes once, and connections are not opened again and again."""
    command = [sys.executable, "-m", "bench.links", "--flap", "--compressed", "--qos", "2", "--seconds", "15"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=140, check=False)
    if done.returncode == NO_LINE:
        pytest.skip(done.stderr)  # no namespaces, or no TUN, for this user
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["sent"] > 10_000
    assert (found["missing"], found["twice"]) == (0, 0)
    assert found["connections"] <= 5
    assert found["line_bytes_per_message"] < 100  # of 100: nothing is sent twice that often


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(150)
def test_the_cost_of_events_is_measured() -> None:
    measured(140, "bench.events", "--rounds", "1", "--seconds", "0.2")


@pytest.mark.slow
@pytest.mark.long(kept="tests/test_bench_small.py::test_every_program_says_how_it_is_used")
@pytest.mark.timeout(150)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_the_cost_of_workers_is_measured() -> None:
    measured(140, "bench.workers", "--rounds", "1", "--seconds", "0.2", "--rate", "200")
