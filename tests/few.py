"""Parameters of tests with many of them: one of each kind stays in ``make test``, the others are ``long``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
