"""One of each kind of test and of its parameters stays in ``make test``; the others are ``long``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def few(parameters: Iterable[Any], *stay: Any) -> list[Any]:
    """For ``parametrize``, with a single name: all parameters. Those that are not in ``stay`` are ``long``."""
    found = list(parameters)
    assert all(each in found for each in stay), "a parameter that was to stay is not there any more"
    return [each if each in stay else pytest.param(each, marks=pytest.mark.long) for each in found]


def drawn(few: int, many: int) -> pytest.MarkDecorator:
    """``examples`` as a parameter: how many are drawn or made from seeds; ``many`` are ``long``."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.long)])


def live(machine: type[RuleBasedStateMachine], examples: int, **more: Any) -> None:
    """Draw the steps of a state machine, in so many examples. ``more``: settings of hypothesis."""
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, deadline=None, **more))


KEPT: Final = re.compile(r'\bkept="([^"]+)"')


def check_long(items: list[pytest.Item], root: Path, left_out: Iterable[Path] = ()) -> None:
    """Raises UsageError for a test that ``make test`` leaves out although no test named by it stays there.

    ``long(kept="tests/FILE.py::TEST")`` names one that fails for the same break. Without a name it is the same function
    with other parameters. ``long(alone="WHY")``: nothing else needs what this test needs. ``left_out``: files without
    items, of which the text is searched for names of tests that do not stay.
    """
    staying: dict[str, bool] = {}
    for item in items:
        file, _, name = item.nodeid.partition("[")[0].partition("::")
        stays = item.get_closest_marker("long") is None
        for key in (file, f"{file}::{name}"):
            staying[key] = staying.get(key, False) or stays
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None or mark.kwargs.get("alone"):
            continue
        kept = mark.kwargs.get("kept", item.nodeid.partition("[")[0])
        file, _, name = kept.partition("::")
        path = root / file
        named = f"def {name.rpartition('::')[2]}(" if name else ""
        if not path.is_file() or named not in path.read_text() or not staying.get(kept, True):
            raise pytest.UsageError(
                f"{item.nodeid} is long, and {kept} does not stay in make test: name one that does, long(kept=...)"
            )
    for path in left_out:
        for kept in KEPT.findall(path.read_text()):
            if not staying.get(kept, True):
                raise pytest.UsageError(f"{kept} does not stay in make test, as {path} says: name one that does")
