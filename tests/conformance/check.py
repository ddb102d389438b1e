"""``python -m tests.conformance.check``: print the conformance ledger; exit 1 when a row is not held.

A row is held by tests that carry its id (see clauses.py) and that really run: skipped and expected failures do not
count. Arguments: the directories to collect tests from (default: tests).
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections import defaultdict

import pytest

from tests.conformance.ledger import Key, Row, rows, statements

BINDS = ("server", "client", "both")


class Collector:
    """A pytest plugin that notes which collected test carries which statement."""

    def __init__(self) -> None:
        self.tests: dict[Key, list[str]] = defaultdict(list)
        self.failures: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if any(item.iter_markers("skip")) or any(item.iter_markers("xfail")):
                continue
            for mark in item.iter_markers("clause"):
                for key in mark.args:
                    self.tests[key].append(item.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures.append(report.nodeid)


def collect(paths: list[str]) -> Collector:
    """Which tests there are, found as pytest finds them."""
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *paths], plugins=[collector])
    return collector


def row_faults(row: Row, tests: list[str]) -> list[str]:
    """The faults of one row."""
    faults = []
    if row.binds not in BINDS:
        faults.append(f"binds {row.binds!r}, which is none of {', '.join(BINDS)}")
    if row.binds == "client" and not row.because:
        faults.append("binds the client, without saying why the server has no part in it")
    if row.binds != "client" and not tests and not row.unobservable:
        faults.append("no test holds it")
    if row.unobservable and tests:
        faults.append("called unobservable, and yet a test holds it")
    return faults


def ledger_faults(table: list[Row], tests: dict[Key, list[str]]) -> list[str]:
    """The faults of the ledger as a whole and of each of its rows; empty when all is well."""
    known = {row.key for row in table}
    expected = statements()
    faults = [f"{version} {id}: no row" for version, id in expected if (version, id) not in known]
    faults += [f"{row.version} {row.id}: no such statement" for row in table if row.key not in set(expected)]
    faults += [f"{version} {id}: carried by {names[0]}, but no such statement" for (version, id), names in tests.items()
               if (version, id) not in known]  # fmt: skip
    for row in table:
        faults += [f"{row.version} {row.id}: {fault}" for fault in row_faults(row, tests.get(row.key, []))]
    return faults


def held_by(tests: list[str]) -> str:
    """Short names of the tests: each function once, without its cases."""
    names = list(dict.fromkeys(test.split("/")[-1].split("[")[0].replace(".py::", ":") for test in tests))
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def line(row: Row, tests: list[str]) -> str:
    if tests:
        state = held_by(tests)
    elif row.unobservable:
        state = f"unobservable: {row.unobservable}"
    else:
        state = f"client: {row.because}" if row.binds == "client" else "NOT HELD"
    return f"{row.version:5}  {row.id:14}  {row.binds:6}  {row.rule:88}  {state}"


def summary(table: list[Row], tests: dict[Key, list[str]]) -> str:
    """The counts, in all and by version."""
    lines = []
    for version in (*dict.fromkeys(row.version for row in table), ""):
        part = [row for row in table if not version or row.version == version]
        ours = [row for row in part if row.binds != "client"]
        held = sum(1 for row in ours if tests.get(row.key))
        hidden = sum(1 for row in ours if row.unobservable)
        watched = sum(1 for row in part if row.binds == "client" and tests.get(row.key))
        lines.append(
            f"{version or 'all':5}  {len(part)} statements: {held} held, {hidden} unobservable, "
            f"{len(ours) - held - hidden} not held, {len(part) - len(ours)} bind the client alone "
            f"(of these {watched} with a test of what the broker does about a breach)"
        )
    return "\n".join(lines)


def main(paths: list[str]) -> int:
    collector = collect(paths or ["tests"])
    table = rows()
    for row in table:
        print(line(row, collector.tests.get(row.key, [])))
    faults = [f"{name}: could not be collected" for name in collector.failures]
    faults += ledger_faults(table, collector.tests)
    print()
    print(summary(table, collector.tests))
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
