"""Times of tests are recorded by file and way, and the longest lots come first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import durations
from tests.durations import COMPILED, PURE, Duration

ROOT = Path(__file__).parents[1]

RECORDING = """
from pathlib import Path
from tests import durations

def pytest_configure(config):
    config.pluginmanager.register(durations.Recorder(Path(__file__).with_name("durations.tsv")))
"""
TESTS = """
import subprocess, sys

def test_nothing():
    pass

def test_computes():
    subprocess.run([sys.executable, "-c", "for _ in range(5_000_000): pass"], check=True)
"""


class Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_the_longest_lots_come_first_and_tests_with_spark_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {
        "tests/spark/test_a.py": 3.0,
        "tests/test_b.py": 5.0,
        "tests/spark/test_c.py": 4.0,
        "tests/test_d.py": 1.0,
    }
    monkeypatch.setattr(durations, "expected", lambda: seconds)
    monkeypatch.setattr(durations, "average", lambda: 2.0)
    names = [*seconds, "tests/test_new.py"]
    for collected in (names, names[::-1]):  # processes of one run go through the files in both orders
        items: list[Any] = [Item(f"{name}::test_{number}") for name in collected for number in range(2)]
        durations.sort_longest_first(items)
        found = ["spark/test_a.py", "spark/test_c.py", "test_b.py", "test_new.py", "test_d.py"]
        assert [item.nodeid for item in items] == [f"tests/{name}::test_{n}" for name in found for n in range(2)]


def test_files_that_read_all_sources_are_one_lot() -> None:
    assert all((durations.FILE.parent.parent / file).exists() for file in durations.SOURCES), "a test has moved"
    assert {durations.lot(file) for file in durations.SOURCES} == {durations.SOURCES[0]}
    assert durations.lot("tests/test_flaky.py") == "tests/test_flaky.py"


def test_a_run_is_recorded_beside_other_files_and_without_those_that_are_gone(tmp_path: Path) -> None:
    """With two processes of pytest-xdist, as in make test."""
    file = tmp_path / "durations.tsv"
    (tmp_path / "conftest.py").write_text(RECORDING)
    for name in ("test_this.py", "test_other.py"):
        (tmp_path / name).write_text(TESTS)
    earlier = {("test_other.py", COMPILED): Duration(9.0, 8.0, 7), ("test_gone.py", PURE): Duration(1.0, 1.0, 1)}
    durations.write(earlier, file)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--rootdir", str(tmp_path)]
    environment = os.environ | {"STARLINGMQ_PURE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*words, "-c", os.devnull, "test_this.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = durations.read(file)
    assert set(found) == {("test_other.py", COMPILED), ("test_this.py", PURE)}
    assert found["test_other.py", COMPILED] == Duration(9.0, 8.0, 7)
    this = found["test_this.py", PURE]
    assert this.tests == 2 and this.seconds > 0 and this.cpu_seconds > 0.05, "the child's time counts"


def test_the_quickest_files_are_those_that_fit_into_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {
        ("tests/test_a.py", PURE): Duration(3.0, 3.0, 9),
        ("tests/test_a.py", COMPILED): Duration(1.0, 1.0, 9),
        ("tests/test_b.py", COMPILED): Duration(2.0, 2.0, 9),
        ("tests/test_c.py", PURE): Duration(4.0, 4.0, 9),
    }
    monkeypatch.setattr(durations, "read", lambda: recorded)
    durations.slower_than.cache_clear()
    try:
        assert durations.slower_than(5.5) == {"tests/test_c.py"}
        assert durations.slower_than(2.5) == {"tests/test_a.py", "tests/test_c.py"}
        assert not durations.slower_than(9.0)
    finally:
        durations.slower_than.cache_clear()


def test_files_that_are_not_among_the_quickest_are_not_loaded() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--quickest", "0.5", "tests/core", "tests/wire"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    collected = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert collected and collected.isdisjoint(durations.slower_than(0.5))
