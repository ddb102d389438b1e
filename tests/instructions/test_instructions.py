"""A message takes no more instructions than it did: the counts of bounds.json, and 5 %.

Counts are compared only with those of the same toolchain. With another one the test is skipped, and says so.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.instructions.bounds import grown, load
from tests.instructions.callgrind import count, missing, toolchain
from tests.instructions.cells import CELLS, PLANTED, WITHOUT_BOUNDS
from tests.instructions.counted import WITH_A_FLAW


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    if lacking := missing():
        pytest.skip(lacking)
    if toolchain() not in load():
        pytest.skip(f"no counts with {toolchain()}: make instructions adds them")
    return count([*CELLS, WITH_A_FLAW], tmp_path_factory.mktemp("callgrind"))


@pytest.mark.slow
@pytest.mark.compiled_only
@pytest.mark.timeout(300)  # 15 s on a quiet machine
def test_no_cell_takes_5_percent_more_instructions_than_its_bound(counts: dict[str, float]) -> None:
    lines = grown(load()[toolchain()], {cell: counts[cell] for cell in CELLS})
    assert not lines, "\n".join([*lines, "if that is meant: make instructions writes new bounds"])


@pytest.mark.slow
@pytest.mark.compiled_only
@pytest.mark.timeout(300)
def test_a_loop_more_in_each_turn_is_found_and_its_cell_named(counts: dict[str, float]) -> None:
    (line,) = grown(load()[toolchain()], {PLANTED: counts[WITH_A_FLAW]})
    assert re.fullmatch(rf"{PLANTED}: \d+ instructions a message instead of \d+: \+\d+\.\d%", line)


def test_a_cell_at_its_bound_passes_and_one_without_a_bound_does_not() -> None:
    assert grown({"a": 100.0, "b": 100.0}, {"a": 105.0, "b": 105.1}) == [
        "b: 105 instructions a message instead of 100: +5.1%"
    ]
    assert grown({}, {"a": 1.0}) == ["a: there is no bound for it"]


def test_a_cell_delivers_every_message_it_counts() -> None:
    for name, cell in (CELLS | WITHOUT_BOUNDS).items():
        times = 0

        def toggle() -> None:
            nonlocal times
            times += 1

        made = cell()
        made.run(toggle)  # checks the deliveries itself
        assert times == 2 * made.counted > 0, name


def test_the_bounds_are_those_of_the_cells() -> None:
    for bounds in load().values():
        assert list(bounds) == list(CELLS)


def test_a_missing_counter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing() == "valgrind is not installed: apt-get install valgrind"
