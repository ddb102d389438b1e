"""The ledger is complete, and its checker sees what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conformance.check import held_by, ledger_faults, row_faults
from tests.conformance.clauses import V3, V5
from tests.conformance.ledger import Row, rows, statements

ROOT = Path(__file__).parents[2]


def test_every_statement_is_held() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.conformance.check", "tests/conformance"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, "\n".join(line for line in run.stdout.splitlines() if line.startswith("fault")) or (
        run.stdout + run.stderr
    )


def test_the_counts_are_those_of_appendix_b() -> None:
    every = statements()
    assert len(set(every)) == len(every)
    assert [sum(1 for version, _ in every if version == v) for v in (V3, V5)] == [141, 251]


def test_rows_are_short_and_in_the_order_of_the_specification() -> None:
    assert [row.key for row in rows()] == statements()
    assert [row.id for row in rows() if not 3 <= len(row.rule.split()) <= 20] == []


def test_the_checker_sees_a_missing_row_a_strange_row_and_a_strange_mark() -> None:
    table = [row for row in rows() if row.id != "MQTT-3.1.0-1"] + [Row(V5, "MQTT-9.9.9-1", "client", "r", "b")]
    tests = {key: ["t.py::t"] for key in statements() if key != (V3, "MQTT-7.0.0-1") and key != (V5, "MQTT-3.3.4-5")}
    tests[(V5, "MQTT-0.0.0-1")] = ["t.py::t"]
    assert ledger_faults(table, tests) == [
        "3.1.1 MQTT-3.1.0-1: no row",
        "5.0 MQTT-3.1.0-1: no row",
        "5.0 MQTT-9.9.9-1: no such statement",
        "3.1.1 MQTT-3.1.0-1: carried by t.py::t, but no such statement",
        "5.0 MQTT-3.1.0-1: carried by t.py::t, but no such statement",
        "5.0 MQTT-0.0.0-1: carried by t.py::t, but no such statement",
    ]


def test_the_checker_sees_a_row_that_nothing_holds() -> None:
    assert row_faults(Row(V5, "i", "server", "r"), []) == ["no test holds it"]
    assert row_faults(Row(V5, "i", "both", "r"), []) == ["no test holds it"]
    assert row_faults(Row(V5, "i", "server", "r", unobservable="u"), []) == []
    assert row_faults(Row(V5, "i", "server", "r", unobservable="u"), ["t"]) != []
    assert row_faults(Row(V5, "i", "client", "r", because="b"), []) == []
    assert row_faults(Row(V5, "i", "client", "r"), []) != []
    assert row_faults(Row(V5, "i", "nobody", "r"), ["t"]) != []


def test_tests_are_named_once_however_many_cases_they_have() -> None:
    assert held_by(["tests/conformance/test_a.py::test_x[1]", "tests/conformance/test_a.py::test_x[2]"]) == (
        "test_a:test_x"
    )
    assert held_by(["a/test_a.py::test_x", "a/test_b.py::test_y"]) == "test_a:test_x and 1 more"
