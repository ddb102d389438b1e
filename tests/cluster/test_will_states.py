"""The table of the states of a will, and mistakes in its rows, each with the scene that shows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Final

import pytest
from tests.cluster import test_armed_wills, test_presence, test_wills
from tests.cluster.test_given_up_wills import (
    test_a_claim_that_comes_late_does_not_bring_the_will_of_a_connect_that_was_given_up,
)
from tests.cluster.test_taken_away import Settling
from tests.cluster.will_world import run
from tests.few import few
from tests.planting import Plant, first_to_find, row_of

from starlingmq.cluster.wills.will_records import ARMED, FIRING, SETTLED, RegisteredWill
from starlingmq.cluster.wills.will_states import WILL_TABLE, WillAction, WillEvent, WillState, state_of
from starlingmq.core.structures.state_table import Row, goes, ignores

S = WillState
E = WillEvent
A = WillAction


@pytest.mark.parametrize(("state", "event"), list(product(WillState, WillEvent)))
def test_each_event_in_each_state_has_an_effect_or_a_reason(state: WillState, event: WillEvent) -> None:
    row = WILL_TABLE.step(state, event)
    assert bool(row.actions) != bool(row.ignored)
    if event not in (E.CLAIMED, E.GIVEN_UP, E.WANTED, E.FIRES, E.OVER):
        assert row.next in (state, S.SETTLED), "only its own node, or its own CONNECT, does more than to settle a will"


def test_a_record_of_a_later_version_is_left_alone() -> None:
    values = [None, *[RegisteredWill(number, 7) for number in (ARMED, FIRING, SETTLED, 3)]]
    assert [state_of(value) for value in values] == [*WillState, S.FIRING]


def test_a_will_that_replaces_the_one_of_the_record_is_waited_for() -> None:
    """Its node has reported the next one as due."""
    world = Settling(2)
    world.put(b"2/c", RegisteredWill(ARMED, 7, epoch=3))
    assert not world.is_settled(8)
    world.pass_time(1.0)
    assert world.store.changes == []


# Mistakes

MISTAKES: Final[dict[str, tuple[Row[WillState, WillEvent, WillAction], Callable[[], None]]]] = {
    "a claim does not register its will": (
        ignores(S.NONE, E.CLAIMED, "planted"),
        partial(test_armed_wills.test_a_connect_with_a_will_asks_the_leader_of_its_share_once, 0),
    ),
    "a claim arms a will that was settled": (
        goes(S.SETTLED, E.CLAIMED, S.ARMED, A.WRITE),
        partial(
            test_armed_wills.test_a_claim_replaces_no_record_of_an_earlier_will_and_none_that_is_settled, SETTLED, 7
        ),
    ),
    "the will of a CONNECT that is given up stays armed": (
        ignores(S.ARMED, E.GIVEN_UP, "planted"),
        test_a_claim_that_comes_late_does_not_bring_the_will_of_a_connect_that_was_given_up,
    ),
    "the client's next node does not settle its will": (
        goes(S.ARMED, E.CANCELLED, S.ARMED, A.CONCLUDE),
        test_wills.test_a_client_that_reconnects_before_its_dead_node_is_missed_cancels_its_will,
    ),
    "the client's next node publishes a will that is cancelled": (
        goes(S.ARMED, E.CANCELLED, S.SETTLED, A.TAKE),
        test_wills.test_a_client_that_reconnects_before_its_dead_node_is_missed_cancels_its_will,
    ),
    "the client's next node cancels a will that is due": (
        goes(S.ARMED, E.DUE, S.SETTLED, A.SETTLE),
        test_presence.killed,
    ),
    "an earlier will is taken for the one that is due": (
        goes(S.ARMED, E.EXPECTED, S.SETTLED, A.TAKE),
        test_a_will_that_replaces_the_one_of_the_record_is_waited_for,
    ),
    "the leader does not publish the wills of a node that is gone": (
        ignores(S.ARMED, E.LOST, "planted"),
        test_wills.test_the_leader_publishes_the_wills_of_a_dead_node,
    ),
}


def planted(name: str) -> Plant:
    return row_of(WILL_TABLE, MISTAKES[name][0])


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.interpreted_only("the scenes patch what is compiled")
def test_each_mistake_is_found(name: str) -> None:
    _, scene = MISTAKES[name]
    with planted(name), pytest.raises(AssertionError):
        scene()


@pytest.mark.parametrize(
    "name",
    few(
        [
            "the client's next node publishes a will that is cancelled",
            "the client's next node cancels a will that is due",
        ],
        "the client's next node publishes a will that is cancelled",
    ),
)
@pytest.mark.interpreted_only("the plants patch what is compiled")
def test_a_world_finds_the_mistake(name: str) -> None:
    assert first_to_find(range(8), partial(planted, name), run) >= 0
