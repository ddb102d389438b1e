"""Mistakes made on purpose are found: the checkers can fail."""

from __future__ import annotations

import pytest
from tests.cluster import test_state
from tests.few import few
from tests.sim import planted, test_sim
from tests.sim.recording import FOLDER, SHIFTS, RecordedWorld, found, read

pytestmark = pytest.mark.interpreted_only("what is compiled can not be patched")

RECORDED = sorted(path.stem for path in FOLDER.glob("*.txt"))
"""Those that are not named after a mistake are regressions: they hold."""
BY_HAND = {
    "nothing_is_passed_on",
    "suback_ignores_the_nodes_that_others_reach",
    "qos_2_is_forwarded_before_it_is_committed",
    "deletions_are_forgotten_in_a_crash",
    "what_was_not_read_again_stays",
    "a_payload_is_asked_of_one_node_only",
    "copies_ignore_messages_published_here",
    "marks_count_before_all_is_read",
}
"""The first three here, the others in tests/cluster/test_retained.py."""


def test_each_mistake_has_a_world_that_finds_it() -> None:
    assert {*planted.MISTAKES} == BY_HAND | {*planted.MISTAKES} & {*RECORDED}


def test_a_node_that_passes_nothing_on_is_found() -> None:
    with planted.nothing_is_passed_on(), pytest.raises(AssertionError):
        test_sim.test_two_nodes_without_a_connection_continue_through_the_third([("n1", "n2"), ("n2", "n1")])


def test_a_suback_for_those_connected_alone_is_found() -> None:
    with planted.suback_ignores_the_nodes_that_others_reach(), pytest.raises(AssertionError):
        test_sim.test_a_suback_waits_for_nodes_that_others_reach()


def test_qos_2_that_leaves_before_its_commit_is_found() -> None:
    with planted.qos_2_is_forwarded_before_it_is_committed(), pytest.raises(AssertionError):
        test_state.test_qos_2_leaves_for_another_node_with_its_commit_and_qos_1_at_once()


@pytest.mark.parametrize("name", [name for name in RECORDED if name in planted.MISTAKES])
@pytest.mark.parametrize("shift", few(SHIFTS, SHIFTS[0]), ids=str)
def test_a_recording_finds_its_mistake(name: str, shift: tuple[float, float]) -> None:
    assert found(RecordedWorld(read(name), *shift), planted.MISTAKES[name])


@pytest.mark.parametrize("name", few(RECORDED, *RECORDED[::5]))
@pytest.mark.parametrize("shift", few(SHIFTS, SHIFTS[0]), ids=str)
def test_a_recording_holds_without_its_mistake(name: str, shift: tuple[float, float]) -> None:
    RecordedWorld(read(name), *shift).live()
