"""Each test is run by ``make test-all``, and not only in a way in which it is skipped."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import MARKED_BY, Way, may_select

HERE: Final = Path(__file__).parent
KINDS: Final = "and not compiled_suffices"  # as make test has it
MARKS: Final = ("slow", "long", "hot", "compiled_suffices", "compiled_only", "interpreted_only")


def selections(target: str) -> Iterator[tuple[bool, str]]:
    """(Whether interpreted, the expression of -m) of each pytest that the target runs."""
    _, _, rest = (HERE.parent / "Makefile").read_text().partition(f"\n{target}: ")
    for line in rest.partition("\n\n")[0].splitlines()[1:]:
        expression = re.search(r'-m "([^"]+)"', line)
        assert expression is not None, line
        yield "STARLINGMQ_PURE=1" in line, expression[1].replace("$(KINDS)", KINDS)


def chosen(expression: str, marks: dict[str, bool]) -> bool:
    words = re.findall(r"\w+|[()]", expression)
    known = {**{name: str(there) for name, there in marks.items()}, "shipped": "False"}
    return bool(eval(" ".join(known.get(word, word) for word in words), {"__builtins__": {}}))


def possible(marks: dict[str, bool]) -> bool:
    if marks["interpreted_only"]:
        return not marks["compiled_only"] and not marks["compiled_suffices"]
    return marks["hot"] or not marks["compiled_suffices"]


@pytest.mark.parametrize("target", ["test-pure", "test-compiled", "test-long"])
def test_the_expressions_are_found(target: str) -> None:
    assert list(selections(target))


def test_every_kind_of_test_is_run_where_it_is_not_skipped() -> None:
    runs = [run for target in ("test-pure", "test-compiled", "test-long") for run in selections(target)]
    kinds = [dict(zip(MARKS, there, strict=True)) for there in product((False, True), repeat=len(MARKS))]
    for marks in filter(possible, kinds):
        skipped = "compiled_only", "interpreted_only"  # where it is interpreted, where it is compiled
        assert any(
            chosen(expression, marks) and not marks[skipped[not interpreted]] for interpreted, expression in runs
        ), [name for name, there in marks.items() if there]


def test_no_file_with_a_test_that_is_selected_is_left_out() -> None:
    runs = [run for target in ("test-pure", "test-compiled", "test-long") for run in selections(target)]
    kinds = [dict(zip(MARKS, there, strict=True)) for there in product((False, True), repeat=len(MARKS))]
    for marks, both in product(kinds, (False, True)):
        way = Way(marks["hot"], both)
        if marks["compiled_suffices"] is (way.hot and not way.both and not marks["interpreted_only"]):
            there = frozenset(mark for mark in MARKED_BY if marks[mark])
            for _, expression in runs:
                assert may_select(expression, way, there) or not chosen(expression, marks), (marks, expression)


def test_files_without_a_test_that_is_selected_are_left_out() -> None:
    _, interpreted = next(selections("test-pure"))
    _, compiled = next(selections("test-compiled"))
    assert not may_select(interpreted, Way(hot=True, both=False), frozenset())
    assert may_select(interpreted, Way(hot=True, both=False), frozenset({"interpreted_only"}))
    assert not may_select(compiled, Way(hot=False, both=False), frozenset())
    assert may_select("security and not slow", Way(hot=True, both=False), frozenset())


def test_a_test_that_compiled_code_does_not_let_run_is_marked_as_interpreted_only() -> None:
    """``make test-long`` chooses by the mark: a condition of ``skipif`` is not seen where nothing is compiled."""
    asks = re.compile(r"skipif\(\s*(starlingmq\.)?compiled\(")
    assert [str(path) for path in HERE.rglob("*.py") if asks.search(path.read_text())] == []


class PollerCompletionQueue:
    """Named as the queue of gRPC."""

    def _handle_events(self) -> None:
        raise RuntimeError("Event loop is closed")

    def _other(self) -> None:
        raise RuntimeError("Event loop is closed")


@pytest.mark.parametrize(("callback", "lines"), [("_handle_events", 0), ("_other", 1)])
def test_only_the_late_end_of_a_call_leaves_no_line(
    callback: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def called() -> None:
        asyncio.get_running_loop().call_soon(getattr(PollerCompletionQueue(), callback))
        await asyncio.sleep(0)

    asyncio.run(called())
    assert len(caplog.records) == lines
