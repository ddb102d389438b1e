"""Planted mistakes: how a test changes what the code does on purpose, and which seed finds that.

A plant is a patch, so it works on interpreted code only. One that does not apply proves nothing: it raises
AttributeError or ``PlantDoesNotApply``, which no test takes for a mistake that was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import starlingmq
from starlingmq.core.structures.state_table import Row, StateTable

Plant = AbstractContextManager[Any]
"""A mistake that is there while it is entered. It may be entered again."""

FAILURES = (AssertionError, LookupError, ValueError)
"""The exceptions by which a world reports a bug."""


class PlantDoesNotApply(Exception):
    """The code has changed: the plant has to be written again, or dropped with its reason."""


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


def set_in_init(kind: type, attribute: str) -> str:
    """Returns the name of an attribute that ``__init__`` sets, for plants that set it on instances or on the class."""
    if attribute not in kind.__init__.__code__.co_names:  # type: ignore[misc]
        raise PlantDoesNotApply(f"{kind.__name__}.__init__ does not set {attribute}")
    return attribute


def around(owner: Any, name: str, wrong: Callable[..., Any]) -> Plant:
    """``wrong`` is called in place of a method or function: with that, and then with its arguments."""
    sound = getattr(owner, name)
    return patch.object(owner, name, lambda *arguments, **named: wrong(sound, *arguments, **named))


def during(owner: Any, name: str, inner: Any, inner_name: str, wrong: Any) -> Plant:
    """While ``name`` runs, ``inner_name`` is something else: a mistake in the middle of a function."""
    getattr(inner, inner_name)
    plant = patch.object(inner, inner_name, wrong)

    def planted(sound: Callable[..., Any], *arguments: Any) -> Any:
        with plant:
            return sound(*arguments)

    return around(owner, name, planted)


def row_of(table: StateTable[Any, Any, Any], row: Row[Any, Any, Any]) -> Plant:
    """That row in place of the one that the table has for its state and event."""
    if (row.state, row.event) not in table.rows:
        raise PlantDoesNotApply(f"{table.about}: {row.state.name} on {row.event.name} has no row")
    return patch.dict(table.rows, {(row.state, row.event): row})


class Together(AbstractContextManager[None]):
    """Several plants as one."""

    def __init__(self, *plants: Plant) -> None:
        self.plants = plants

    def __enter__(self) -> None:
        with ExitStack() as entered:
            for plant in self.plants:
                entered.enter_context(plant)
            self._entered = entered.pop_all()

    def __exit__(self, *error: object) -> None:
        self._entered.close()


def nothing(*arguments: object) -> None:
    """In place of a function: a step that is left out."""


def first_to_find(
    seeds: Iterable[int],
    plant: Callable[[], Plant],
    find: Callable[[int], object],
    failures: tuple[type[BaseException], ...] = FAILURES,
) -> int:
    """Returns the first seed whose world finds the mistake and holds without it; -1 if there is none."""
    for seed in seeds:
        try:
            with plant():
                find(seed)
        except failures:
            find(seed)
            return seed
    return -1
