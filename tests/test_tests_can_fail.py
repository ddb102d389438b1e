"""Patterns that make a test pass whatever happens, found in the source of all tests; each rule can fail itself."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

import pytest

from tests.source_tree import cached_until_let_go, tree, walk, written

Function = ast.FunctionDef | ast.AsyncFunctionDef
ANYTHING: Final = ("Exception", "BaseException")
FAILS: Final = ("raises", "warns", "fail", "check_returncode", "wait_for", "timeout", "raise_for_status")
"""Calls that may end a test without an assertion in its own code; so may ``check=True`` of a process."""
SAYS_ALL: Final = {
    "test_client_certificates_count_as_authentication": "settings that contradict each other raise",
    "test_the_example_passes": "the outcomes of a pytest in it are asserted by pytester",
    "test_options_come_from_the_module_and_the_nearest_marker": "the same",
}
"""Tests that assert nothing in which a rule can see it, and what fails instead."""


below: Final = cached_until_let_go(walk)
"""The nodes of a function, which several rules read."""


def called(node: ast.AST) -> str:
    """The name of what is called, without where it is from; empty if the node is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def asserts(nodes: Iterable[ast.AST]) -> bool:
    return any(isinstance(each, ast.Assert) for node in nodes for each in walk(node))


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether it catches what an assertion raises, and neither raises nor asserts nor keeps it."""
    caught = "BaseException" if handler.type is None else ast.unparse(handler.type)
    if not any(each in caught for each in (*ANYTHING, "AssertionError")):
        return False
    return not any(isinstance(each, ast.Raise | ast.Assert | ast.Return) for each in walk(handler)) and not (
        handler.name and any(isinstance(each, ast.Name) and each.id == handler.name for each in walk(handler))
    )


def always_true(test: ast.expr) -> bool:
    if isinstance(test, ast.Tuple | ast.GeneratorExp | ast.Lambda | ast.JoinedStr):
        return True
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(always_true(value) for value in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        same = ast.dump(test.left) == ast.dump(test.comparators[0])
        return same and not any(isinstance(each, ast.Call | ast.Await) for each in walk(test))
    return False


def weak_points(source: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and what is weak in it."""
    for node in walk(source):
        if isinstance(node, ast.Assert) and always_true(node.test):
            yield node.lineno, "is always true"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare):
            yield node.lineno, "compares and does not assert"
        elif isinstance(node, ast.Try) and asserts(node.body) and any(swallows(each) for each in node.handlers):
            yield node.lineno, "swallows its own assertions"
        elif isinstance(node, ast.With | ast.AsyncWith):
            yield from _weak_with(node)


def _weak_with(node: ast.With | ast.AsyncWith) -> Iterator[tuple[int, str]]:
    for item in node.items:
        call = item.context_expr
        if not isinstance(call, ast.Call):
            continue
        kinds = [ast.unparse(argument) for argument in call.args]
        if called(call) == "suppress" and asserts(node.body) and {*ANYTHING, "AssertionError"} & set(kinds):
            yield node.lineno, "swallows its own assertions"
        if called(call) != "raises":
            continue
        if kinds and kinds[0] in ANYTHING and not any(each.arg in ("match", "check") for each in call.keywords):
            yield node.lineno, "takes any error for the one that it expects"
        if asserts(node.body[1:]) and "AssertionError" not in "".join(kinds):
            yield node.lineno, "asserts behind what has to raise"


def functions(source: ast.AST) -> Iterator[Function]:
    return (node for node in walk(source) if isinstance(node, Function))


def may_fail(function: Function) -> bool:
    """By what stands in it."""
    return any(
        isinstance(node, ast.Assert | ast.Raise)
        or called(node) in FAILS
        or (isinstance(node, ast.keyword) and node.arg == "check")
        for node in below(function)
    )


@cache
def helpers_that_may_fail() -> frozenset[str]:
    """Names of functions, methods and classes of the tests that assert, or call what asserts."""
    uses: dict[str, set[str]] = defaultdict(set)
    found: set[str] = set()
    for module in written("tests"):
        for node in walk(tree(module)):
            methods = [node] if isinstance(node, Function) else []
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, Function)]
            for function in methods:
                name = node.name if isinstance(node, ast.ClassDef) else function.name
                if may_fail(function):
                    found.add(name)
                names = (getattr(each, "id", getattr(each, "attr", "")) for each in below(function))
                uses[name] |= set(names)
    while new := {name for name, used in uses.items() if name not in found and used & found}:
        found |= new
    return frozenset(found)


def test_no_test_has_a_weak_point() -> None:
    found = [f"{module}:{line} {what}" for module in written("tests") for line, what in weak_points(tree(module))]
    assert not found, "\n".join(found)


def test_every_test_asserts_something() -> None:
    """Itself, by a helper, by a fixture, or in a scene that it is given. Helpers are known by their names alone, so a
    test may hide behind one that is called like another; none is accused that asserts."""
    silent, names = [], set()
    for module in written("tests"):
        for function in functions(tree(module)):
            if not function.name.startswith("test_"):
                continue
            names.add(function.name)
            given = {each.arg for each in function.args.args}
            used = {getattr(each, "id", getattr(each, "attr", "")) for each in below(function)}
            calls_what_it_is_given = any(called(each) in given for each in below(function))
            if not (may_fail(function) or (used | given) & helpers_that_may_fail() or calls_what_it_is_given):
                silent.append(function.name)
    assert [name for name in silent if name not in SAYS_ALL] == [], "these assert nothing"
    assert [name for name in SAYS_ALL if name not in names] == [], "strike these from SAYS_ALL"


WEAK: Final = (
    "assert (a == b, 'told')",
    "assert (x for x in found)",
    "assert a or 'told'",
    "assert a.b == a.b",
    "a == b",
    "try:\n    assert a\nexcept Exception:\n    pass",
    "try:\n    assert a\nexcept (ValueError, AssertionError):\n    b = 1",
    "with suppress(Exception):\n    assert a",
    "with pytest.raises(Exception):\n    a()",
    "with pytest.raises(ValueError):\n    a()\n    assert b",
)
SOUND: Final = (
    "assert a == b, 'told'",
    "assert [x for x in found]",
    "assert a or b",
    "assert run(1) == run(1)",
    "a = b == c",
    "try:\n    assert a\nexcept ValueError:\n    pass",
    "try:\n    assert a\nexcept AssertionError as error:\n    assert 'told' in str(error)",
    "try:\n    assert a\nexcept AssertionError:\n    return",
    "try:\n    a()\nexcept Exception:\n    pass",
    "with suppress(OSError):\n    assert a",
    "with pytest.raises(Exception, match='told'):\n    a()",
    "with pytest.raises(ValueError):\n    assert a()",
    "with pytest.raises(AssertionError):\n    a()\n    assert b",
)


@pytest.mark.parametrize("source", WEAK)
def test_weak_points_are_found(source: str) -> None:
    assert len(list(weak_points(ast.parse(source)))) == 1


@pytest.mark.parametrize("source", SOUND)
def test_sound_tests_are_left_alone(source: str) -> None:
    assert list(weak_points(ast.parse(source))) == []
