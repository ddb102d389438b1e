"""The source as data, for the rules that are tests: modules, their syntax trees, and the imports between them.

The imports are read from the source, so that those inside functions count as well, and those for type checkers.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
PACKAGE: Final = "starlingmq"
ABOVE: Final = {PACKAGE: SOURCE, "bench": ROOT, "tests": ROOT}
GENERATED: Final = "_pb2"

K = TypeVar("K")
R = TypeVar("R")


_caches: list[Callable[[], None]] = []


def cached_until_let_go(function: Callable[[K], R]) -> Callable[[K], R]:
    """As ``functools.cache``, for what has syntax trees in it."""
    cached = cache(function)
    _caches.append(cached.cache_clear)
    return cached


def let_go() -> None:
    """Free the trees. A process that keeps them needs seconds for each full garbage collection of later tests."""
    for clear in _caches:
        clear()
    gc.enable()


@cache
def modules(top: str = PACKAGE) -> dict[str, Path]:
    """Every module of a package by its full name, in order; with all that is below it."""
    found = {}
    for path in sorted((ABOVE[top] / top).rglob("*.py")):
        if "node_modules" not in path.parts:
            parts = list(path.relative_to(ABOVE[top]).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def written(top: str = PACKAGE) -> dict[str, Path]:
    """Those of them that people write."""
    return {name: path for name, path in modules(top).items() if not name.endswith(GENERATED)}


def path_of(module: str) -> Path:
    return modules(module.partition(".")[0])[module]


@cache
def text(module: str) -> str:
    return path_of(module).read_text(encoding="utf-8")


@cached_until_let_go
def parsed(path: Path) -> ast.Module:
    """The garbage collector would look at millions of nodes again and again: it rests until they are let go."""
    gc.disable()
    return ast.parse(path.read_text(encoding="utf-8"))


def tree(module: str) -> ast.Module:
    return parsed(path_of(module))


def walk(node: ast.AST) -> list[ast.AST]:
    """As ``ast.walk``, in a third of the time."""
    found = [node]
    for each in found:
        for value in vars(each).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
    return found


@cached_until_let_go
def statements(module: str) -> tuple[ast.AST, ...]:
    """All nodes but expressions, which are most of them and in which nothing is imported or defined."""
    found: list[ast.AST] = [tree(module)]
    for node in found:
        found += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
    return tuple(found)


def for_type_checkers(module: str) -> set[ast.AST]:
    """The nodes below ``if TYPE_CHECKING:``."""
    blocks = (node for node in statements(module) if isinstance(node, ast.If))
    named = ((block, getattr(block.test, "id", getattr(block.test, "attr", ""))) for block in blocks)
    guarded = (block for block, name in named if name == "TYPE_CHECKING")
    return {node for block in guarded for statement in block.body for node in walk(statement)}


def imported(module: str, at_runtime: bool = False) -> Iterator[str]:
    """Full names of the module's imports, of this package and of others; ``from a import b`` gives ``a.b``."""
    is_package = path_of(module).name == "__init__.py"
    skipped = for_type_checkers(module) if at_runtime else set()
    for node in statements(module):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            above = base[: len(base) - node.level + is_package] if node.level else []
            origin = ".".join(above + ([node.module] if node.module else []))
            yield from (f"{origin}.{alias.name}" for alias in node.names)


@cache
def ours(module: str, at_runtime: bool = False) -> tuple[str, ...]:
    """The modules of the same package that this one imports, each once, in order."""
    known = modules(module.partition(".")[0])
    names = (name if name in known else name.rpartition(".")[0] for name in imported(module, at_runtime))
    return tuple(dict.fromkeys(name for name in names if name in known and name != module))


def part(module: str) -> str:
    """The package or file directly below the top package that the module belongs to; empty for the top
    package itself.
    """
    return module.partition(".")[2].partition(".")[0]


def cycles(graph: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    """The largest sets of nodes in which each leads to each other; nodes of their own left out. (Tarjan.)"""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], index[other])
        if lowest[node] == index[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in graph:
        if node not in index:
            visit(node)
    return found
