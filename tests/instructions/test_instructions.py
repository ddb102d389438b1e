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

FEW = (
    *("QoS 0, 1:1", "QoS 1, 1:1, stored", "QoS 2, 1:1", "QoS 0, 1:50", "NATS, 1:1", "QoS 0, 1:1, events kept"),
    *("QoS 1, one message a turn, over sockets", "QoS 1, bridged to MQTT 5.0", PLANTED),
)
"""Those that make test counts: every QoS, both protocols, a store, a bridge; make test-all counts all cells."""
AGAIN = 2  # times


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    refuse_unknown_tools()
    return count([*FEW, WITH_A_FLAW], tmp_path_factory.mktemp("callgrind"))


def refuse_unknown_tools() -> None:
    if lacking := missing():
        pytest.skip(lacking)
    if toolchain() not in load():
        pytest.skip(f"no counts with {toolchain()}: make instructions adds them")


def check(counts: dict[str, float], directory: Path) -> None:
    """On a busy machine a message over sockets takes more turns than one: what is above its bound is counted again."""
    bounds = load()[toolchain()]
    for number in range(AGAIN):
        if above := [cell for cell in counts if grown(bounds, {cell: counts[cell]})]:
            (place := directory / str(number)).mkdir()
            again = count(above, place)
            counts |= {cell: min(counts[cell], again[cell]) for cell in above}
    lines = grown(bounds, counts)
    assert not lines, "\n".join([*lines, "if that is meant: make instructions writes new bounds"])


@pytest.mark.slow
@pytest.mark.compiled_only
@pytest.mark.timeout(300)  # 15 s on a quiet machine
def test_no_cell_takes_5_percent_more_instructions_than_its_bound(counts: dict[str, float], tmp_path: Path) -> None:
    check({cell: counts[cell] for cell in FEW}, tmp_path)


@pytest.mark.slow
@pytest.mark.long(
    kept="tests/instructions/test_instructions.py::test_no_cell_takes_5_percent_more_instructions_than_its_bound"
)
@pytest.mark.compiled_only
@pytest.mark.timeout(600)
def test_no_other_cell_takes_more_either(tmp_path: Path) -> None:
    refuse_unknown_tools()
    check(count([cell for cell in CELLS if cell not in FEW], tmp_path), tmp_path)


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
