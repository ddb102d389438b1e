"""Rules for the sources, beside those of ruff's S rules (``make style``) and bandit (``make security``)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

from tests.source_tree import parsed, walk

SOURCE: Final = Path(__file__).parents[2] / "src" / "starlingmq"


def narrows(test: ast.expr) -> bool:
    """Whether an assertion only tells a type checker the type of a value: ``isinstance`` or ``is not None``."""
    if isinstance(test, ast.BoolOp):
        return all(narrows(part) for part in test.values)
    if isinstance(test, ast.Compare):
        constant = test.comparators[0]
        is_none = isinstance(constant, ast.Constant) and constant.value is None
        return len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot) and is_none
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("isinstance(a, int) and b is not None", True),
        ("a is None or isinstance(a, tuple)", True),
        ("a == 3", False),
        ("a is not None and allowed(a)", False),
        ("a.isinstance(b)", False),
    ],
)
def test_an_assertion_that_decides_is_told_from_one_that_narrows(text: str, expected: bool) -> None:
    assert narrows(ast.parse(text, mode="eval").body) == expected


def test_no_assertion_of_the_package_decides_anything() -> None:
    """``python -O`` leaves them out: an assertion that guards something would guard nothing."""
    deciding = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in walk(parsed(path)):
            if isinstance(node, ast.Assert) and not narrows(node.test):
                deciding.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node.test)}")
    assert deciding == []
