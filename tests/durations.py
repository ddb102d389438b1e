"""How long the tests of each file take, and the schedule that follows from it: the longest files first.

``make durations`` runs all tests and writes ``tests/durations.tsv``, one line for each file and each of its ways:

    file            path from the root of the project
    way             pure (interpreted) or compiled
    seconds         sum of the durations of its tests, with their set-up and tear-down
    cpu_seconds     of the test process and of the processes that it started and has waited for
    tests           how many were run

A file without a line is new: it is taken for one of average length.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import Any, Final

import msgspec
import pytest

FILE: Final = Path(__file__).with_suffix(".tsv")
HEAD: Final = "file\tway\tseconds\tcpu_seconds\ttests"
PURE: Final = "pure"
COMPILED: Final = "compiled"
SPARK: Final = ("tests/spark/",)
BROWSER: Final = ("tests/api/test_accessibility.py", "tests/api/test_dashboard_", "tests/api/test_dashboard.py")
SOURCES: Final = (
    "tests/docs/test_claims.py",
    "tests/docs/test_language.py",
    "tests/docs/test_messages.py",
    "tests/security/test_sources.py",
    "tests/test_project_rules.py",
    "tests/test_structure.py",
    "tests/test_tests_can_fail.py",
)
"""These look at the syntax trees of all sources."""


class Duration(msgspec.Struct):
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    tests: int = 0


Durations = dict[tuple[str, str], Duration]
"""By (file, way)."""


def way() -> str:
    return COMPILED if os.environ.get("STARLINGMQ_PURE", "") in ("", "0") else PURE


def read(path: Path = FILE) -> Durations:
    if not path.exists():
        return {}
    found: Durations = {}
    for line in path.read_text().splitlines()[1:]:
        file, its_way, seconds, cpu_seconds, tests = line.split("\t")
        found[file, its_way] = Duration(float(seconds), float(cpu_seconds), int(tests))
    return found


def write(durations: Durations, path: Path = FILE) -> None:
    lines = [
        f"{file}\t{its_way}\t{each.seconds:.1f}\t{each.cpu_seconds:.1f}\t{each.tests}"
        for (file, its_way), each in sorted(durations.items())
    ]
    path.write_text("\n".join([HEAD, *lines]) + "\n")


@cache
def expected() -> dict[str, float]:
    """By file: the seconds that its tests take this way, as recorded."""
    return {file: each.seconds for (file, its_way), each in read().items() if its_way == way()}


@cache
def average() -> float:
    return mean(expected().values()) if expected() else 0.0


def lot(file: str) -> str:
    """The tests that pytest-xdist gives to one process: those of a file, all with Spark or with a browser, which start
    once there, or all of SOURCES, for which all sources are read once.
    """
    return next((shared[0] for shared in (SPARK, BROWSER, SOURCES) if file.startswith(shared)), file)


def sort_longest_first(items: list[pytest.Item]) -> None:
    """So that no long lot is left at the end. The order in which files were collected does not matter."""
    lots: dict[str, float] = {}
    for file in {file_of(item) for item in items}:
        lots[lot(file)] = lots.get(lot(file), 0.0) + expected().get(file, average())
    items.sort(key=lambda item: (-lots[lot(file_of(item))], file_of(item)))


@cache
def slower_than(seconds: float) -> frozenset[str]:
    """The files other than the quickest ones, which take these seconds together. A new file is among the quickest."""
    recorded: dict[str, float] = {}
    for (file, _), each in sorted(read().items()):  # interpreted, where that is recorded
        recorded[file] = each.seconds
    ordered = sorted(recorded, key=lambda file: (recorded[file], file))
    sums = accumulate(recorded[file] for file in ordered)
    return frozenset(file for file, total in zip(ordered, sums, strict=True) if total > seconds)


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def cpu_now() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class Recorder:
    """A pytest plug-in: adds up the times of the tests of a run, of all its processes, and writes them at the end."""

    def __init__(self, path: Path = FILE) -> None:
        self._path = path
        self._found: Durations = {}
        self._cpu = cpu_now()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu_now()
        report.cpu_seconds = now - self._cpu  # type: ignore[attr-defined]  # it goes with the report to the first process
        self._cpu = now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        each = self._found.setdefault((report.nodeid.partition("::")[0], way()), Duration())
        each.seconds += report.duration
        each.cpu_seconds += report.cpu_seconds
        each.tests += report.when == "call"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return  # one of the processes of pytest-xdist
        durations = {**read(self._path), **self._found}
        root = session.config.rootpath
        write({key: each for key, each in durations.items() if each.tests and (root / key[0]).exists()}, self._path)
