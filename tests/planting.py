"""Planted mistakes: how a test replaces a piece of source text on purpose, and when such a plant does not apply.

A plant that does not apply proves nothing, so it raises ``PlantDoesNotApply``, which no test takes for a mistake that
was found. Plants name their module by the module object: a file that moves costs the edit of one import.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import starlingmq

FAILURES = (AssertionError, LookupError, ValueError)
"""The exceptions by which a world reports a bug."""


class PlantDoesNotApply(Exception):
    """The source has changed: the plant has to be written again, or dropped with its reason."""


def relative_path(module: ModuleType) -> Path:
    """The source file of a module, relative to the folder that holds the package; also for a compiled module."""
    above = Path(starlingmq.__path__[0]).parent
    path = Path(*module.__name__.split("."))
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if (above / found).is_file():
            return found
    raise PlantDoesNotApply(f"{module.__name__} has no source file")


def source_of(module: ModuleType) -> str:
    return (Path(starlingmq.__path__[0]).parent / relative_path(module)).read_text(encoding="utf-8")


def replace(module: ModuleType, source: str, old: str, new: str) -> str:
    """Returns the source with the mistake in it. The old text must occur once, and the code must differ afterwards."""
    count = source.count(old)
    if count != 1:
        raise PlantDoesNotApply(f"{module.__name__} contains {count} times, not once: {old!r}")
    planted = source.replace(old, new)
    try:
        if ast.dump(ast.parse(planted)) == ast.dump(ast.parse(source)):
            raise PlantDoesNotApply(f"in {module.__name__} the code is the same with and without: {old!r}")
    except SyntaxError as error:
        raise PlantDoesNotApply(f"{module.__name__} is not Python ({error}) without: {old!r}") from None
    return planted


def set_in_init(kind: type, attribute: str) -> str:
    """Returns the name of an attribute that ``__init__`` sets, for plants that set it on instances or on the class."""
    if attribute not in kind.__init__.__code__.co_names:  # type: ignore[misc]
        raise PlantDoesNotApply(f"{kind.__name__}.__init__ does not set {attribute}")
    return attribute


def first_to_find(seeds: Iterable[int], planted: Callable[[int], object], sound: Callable[[int], object]) -> int:
    """Returns the first seed whose world finds the mistake and holds without it; -1 if there is none."""
    for seed in seeds:
        try:
            planted(seed)
        except FAILURES:
            sound(seed)
            return seed
    return -1
