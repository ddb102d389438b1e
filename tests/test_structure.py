"""Rules of structure, each with today's exceptions. The lists can only shrink: an exception that is not needed fails.

To move or rename something that is listed, edit the list; to add to one, mend the code instead.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import pytest

from tests.source_tree import ABOVE, PACKAGE, cached_until_let_go, cycles, modules, ours, text, tree, walk, written

FILE_MAX: Final = 900
FUNCTION_MAX: Final = 60  # without its docstring
REASON: Final = re.compile(r"^ *Long(?= because|:)", re.MULTILINE)  # in a docstring, before why it is not cut

CONTEXT: Final = re.compile(r"(^|[._])ctx\.(cluster\.|storage\.)?\w+$")
"""A field of it, or of its parts. Counters are not: what is counted outside is counted there."""

LONG_FILES: Final[dict[str, int]] = {}
"""And the length that each must not exceed."""
LONG_FUNCTIONS: Final[dict[str, int]] = {}
IN_CYCLES: Final = {
    "starlingmq": "",
    "bench": "",
    "tests": """
        cluster.keepsakes cluster.roamer cluster.roaming sim.checkers sim.node
        sim.faults sim.groups sim.plan sim.themes sim.world storage.people storage.seeds
        """,
}
LAYERS: Final = {
    "core": """
        structures turn topics limits messages session groups observe context router streams delivery retained publish
        subscribe connect peers nats jetstream conditions reports intake broker
        """,
    "cluster": """
        etcd links copies membership routes view qos2 groups takeover wills shares retained streams peers
        balance cluster_state
        """,
}
"""The packages in a part, each of which imports only those before it, and the module that puts them together."""
TWO_SIDES: Final = {
    "Client": "the library's, and a client as the broker knows it",
    "Message": "the library's, and the broker's",
    "Subscription": "the library's, and the broker's",
    "Outgoing": "in the library's window, and in the broker's",
    "Will": "on the wire, and of a session",
}
"""Names that two classes share for the same thing at two ends."""


class Definition(NamedTuple):
    module: str
    name: str  # with that of the classes and functions around it
    length: int
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _defined(module: str, node: ast.AST, around: str = "") -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{around}{child.name}"
            assert child.end_lineno is not None
            yield Definition(module, name, child.end_lineno - child.lineno + 1, child)
            yield from _defined(module, child, f"{name}.")
        elif not isinstance(child, ast.expr):  # in which nothing is defined
            yield from _defined(module, child, around)


@cached_until_let_go
def defined(top: str) -> list[Definition]:
    return [each for module in written(top) for each in _defined(module, tree(module))]


def classes(top: str) -> list[Definition]:
    return [each for each in defined(top) if isinstance(each.node, ast.ClassDef)]


def without_docstring(each: Definition) -> int:
    first = each.node.body[0]
    assert first.end_lineno is not None
    has = isinstance(first, ast.Expr) and ast.get_docstring(each.node) is not None
    return each.length - (first.end_lineno - first.lineno + 1 if has else 0)


def check(what: str, limit: int, lengths: Mapping[str, int], allowed: Mapping[str, int]) -> None:
    """Each length is at most the limit, or at most what is allowed for it; and what is allowed is needed."""
    complaints = []
    for name, length in sorted(lengths.items()):
        if length > allowed.get(name, limit):
            complaints.append(f"{what} {name} has {length} lines, at most {allowed.get(name, limit)} are allowed")
    for name in allowed:
        if lengths.get(name, 0) <= limit:
            complaints.append(f"{what} {name} is no exception any more: strike it from the list")
    assert not complaints, "\n".join(complaints)


def test_files_are_short() -> None:
    lengths = {module: len(text(module).splitlines()) for top in ABOVE for module in written(top)}
    check("file", FILE_MAX, lengths, LONG_FILES)


def longest(found: Iterator[tuple[str, int]]) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for name, length in found:
        lengths[name] = max(length, lengths.get(name, 0))
    return lengths


def test_functions_are_short_or_say_why_not() -> None:
    found = (
        (each.name, without_docstring(each))
        for top in ABOVE
        for each in defined(top)
        if not isinstance(each.node, ast.ClassDef) and not REASON.search(ast.get_docstring(each.node) or "")
    )
    check("function", FUNCTION_MAX, longest(found), LONG_FUNCTIONS)


@pytest.mark.parametrize("top", ABOVE)
def test_no_module_imports_itself_by_way_of_others(top: str) -> None:
    """Imports for type checkers count."""
    circles = cycles({module: ours(module) for module in modules(top)})
    listed = {f"{top}.{name}" for name in IN_CYCLES[top].split()}
    found = {module for circle in circles for module in circle}
    new = [circle for circle in circles if not listed.issuperset(circle)]
    assert not new, f"these import each other in a circle: {new}"
    assert sorted(listed - found) == [], "in no circle any more: strike them from the list"


def test_no_import_at_run_time_is_circular() -> None:
    assert cycles({module: ours(module, at_runtime=True) for module in modules()}) == []


def layer_of(module: str, layers: list[str]) -> int:
    """``module``: below its part. Raises ValueError for a package, or a module in none, that is not listed."""
    return layers.index(module.partition(".")[0])


@pytest.mark.parametrize("part", LAYERS)
def test_packages_import_only_those_below_them(part: str) -> None:
    """Imports for type checkers count."""
    layers = LAYERS[part].split()
    here = f"{PACKAGE}.{part}."
    layer = {each: layer_of(each.removeprefix(here), layers) for each in modules() if each.startswith(here)}
    upwards = [
        f"{module} imports {each}" for module in layer for each in ours(module) if layer.get(each, 0) > layer[module]
    ]
    assert not upwards, "\n".join(upwards)


def shared(names: Mapping[str, set[str]]) -> dict[str, list[str]]:
    return {name: sorted(where) for name, where in sorted(names.items()) if len(where) > 1}


def test_unrelated_classes_have_names_of_their_own() -> None:
    names = defaultdict(set)
    for each in classes(PACKAGE):
        names[each.name.rpartition(".")[2]].add(each.module)
    found = shared(names)
    new = {name: where for name, where in found.items() if name not in TWO_SIDES}
    assert not new, f"say in the name what it is of: {new}"
    assert [name for name in TWO_SIDES if name not in found] == [], "strike these from the list"


def test_modules_have_names_of_their_own() -> None:
    names = defaultdict(set)
    for module, path in written().items():
        if path.stem not in ("__init__", "__main__"):
            names[path.stem].add(module)
    assert shared(names) == {}, "say in the name of the file what it is of"


def outside_writes(source: ast.Module) -> Iterator[str]:
    """Fields of the core's Context, or of what it keeps for a store and a cluster, that are assigned or deleted."""
    for node in walk(source):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value if isinstance(node, ast.Subscript) else node
            if CONTEXT.search(ast.unparse(target)):
                yield ast.unparse(node)


def test_the_context_of_the_core_is_written_in_the_core_alone() -> None:
    """Everybody else calls a method that says what has happened. Tests and benchmarks may set a scene."""
    outside = [module for module in modules() if not module.startswith(f"{PACKAGE}.core.")]
    found = {module: writes for module in outside if (writes := list(outside_writes(tree(module))))}
    assert not found


# The rules themselves can fail


def test_a_field_of_the_context_that_is_assigned_is_found() -> None:
    for line in (
        "ctx.now = 1",
        "a.ctx.work -= 1",
        "self._ctx.cluster.reset_confirmed = []",
        "b.ctx.sessions[n] = s",
        "del ctx.audit",
    ):
        assert list(outside_writes(ast.parse(line))), line
    for line in ("ctx = broker.ctx", "self._ctx = ctx", "x = ctx.now", "ctx.at(1)", "ctx.counters.bytes_sent += 1"):
        assert not list(outside_writes(ast.parse(line))), line


def test_excess_length_and_needless_exceptions_are_reported() -> None:
    check("file", 10, {"short": 10, "listed": 15}, {"listed": 15})
    for lengths, allowed in (({"a": 11}, {}), ({"a": 16}, {"a": 15}), ({"a": 10}, {"a": 15}), ({}, {"a": 15})):
        with pytest.raises(AssertionError, match="file a"):
            check("file", 10, lengths, allowed)


def test_a_layer_is_that_of_the_package_and_each_package_and_loose_module_must_be_listed() -> None:
    assert [layer_of(name, ["a", "b", "loose"]) for name in ("a", "a.x", "b.x.y", "loose")] == [0, 0, 1, 2]
    for name in ("unlisted.x", "unlisted"):
        with pytest.raises(ValueError, match="is not in list"):
            layer_of(name, ["a", "b", "loose"])


def test_circles_are_found() -> None:
    graph: dict[str, tuple[str, ...]] = {"a": ("b",), "b": ("c", "d"), "c": ("a",), "d": ("e",), "e": (), "f": ("a",)}
    assert cycles(graph) == [["a", "b", "c"]]
    assert cycles({**graph, "c": ()}) == []


def test_a_reason_is_a_sentence_of_the_docstring() -> None:
    assert REASON.search("Does it.\n\n    Long because one table is made of it.") and REASON.search("Long: a table.")
    assert not REASON.search("Longest prefix. For as long as it takes.")


def test_definitions_are_found_where_they_are() -> None:
    source = (
        "class A:\n    def f(self):\n        '''One.\n\n        Two.'''\n        return 1\nif x:\n    def g(): pass\n"
    )
    found = [(each.name, each.length, without_docstring(each)) for each in _defined("m", ast.parse(source))]
    assert found == [("A", 6, 6), ("A.f", 5, 2), ("g", 1, 1)]
