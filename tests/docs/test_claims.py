"""Tests and messages that pages name are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT

NAMED = re.compile(r"`(tests/[\w/.]+)(?:::(\w+))?`")


@cache
def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("page", [pytest.param(path, id=path.name) for path in PAGES])
def test_every_test_that_is_named_exists(page: Path) -> None:
    for file, function in NAMED.findall(page.read_text(encoding="utf-8")):
        path = ROOT / file
        assert path.exists(), f"{page.name}: {file}"
        if function:
            assert function in functions(path), f"{page.name}: {file}::{function}"


@pytest.mark.parametrize("name", ["GUARANTEES.md", "HAZARDS.md"])
def test_every_row_names_what_holds_it(name: str) -> None:
    rows = [line for line in (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.endswith((" held by |", " where it happens |"))]
    assert len(rows) > 20
    assert [row for row in rows if "`tests/" not in row.rpartition(" | ")[2]] == []
