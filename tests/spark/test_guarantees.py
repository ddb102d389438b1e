"""Each row of the table of guarantees names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_tests_that_hold_the_guarantees_are_there() -> None:
    table = (ROOT / "docs" / "SPARK.md").read_text().partition("## Guarantees")[2].partition("\n\nHow it reads")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 5
    for row in rows:
        held_by = re.findall(r"`(tests/\S+\.py)::(\w+)`", row)
        assert held_by, row
        for file, name in held_by:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
