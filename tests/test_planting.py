"""A planted mistake that does not apply is an error and never counts as found."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from starlingmq.cluster.links import peer_link
from starlingmq.cluster.links.peer_link import PeerLink
from tests.cluster import test_filter_summaries, test_link_worlds, test_route_worlds
from tests.planting import (
    FAILURES,
    PlantDoesNotApply,
    Together,
    around,
    during,
    first_to_find,
    nothing,
    relative_path,
    set_in_init,
    source_of,
)
from tests.sim import planted as sim_planted
from tests.storage import test_planted


class Whole:
    """A class for the plants of these tests."""

    def part(self, number: int) -> int:
        return number

    def sum(self) -> int:
        return self.part(1) + self.part(2)


def sums_to_three(seed: int) -> None:
    assert Whole().sum() == 3


def test_a_plant_that_does_not_apply_is_not_a_failure_of_a_world() -> None:
    assert not issubclass(PlantDoesNotApply, FAILURES) and not issubclass(AttributeError, FAILURES)


def test_a_plant_whose_place_is_gone_does_not_apply() -> None:
    for places in ((Whole, "gone", Whole, "part"), (Whole, "sum", Whole, "gone")):
        with pytest.raises(AttributeError, match="gone"):
            during(*places, nothing)
    with pytest.raises(AttributeError, match="gone"):
        first_to_find(range(9), lambda: Together(patch.object(Whole, "gone", nothing)), sums_to_three)


def test_plants_are_there_while_they_are_entered() -> None:
    def half(sound: Any, whole: Whole, number: int) -> Any:
        return sound(whole, number) / 2

    inner = during(Whole, "sum", Whole, "part", lambda whole, number: 7)
    for plant, found in ((around(Whole, "part", half), (1.5, 1)), (Together(inner), (14, 2))):
        for _ in range(2):
            with plant:
                assert (Whole().sum(), Whole().part(2)) == found
            assert (Whole().sum(), Whole().part(2)) == (3, 2)
        assert first_to_find(range(3, 9), lambda plant=plant: plant, sums_to_three) == 3  # type: ignore[misc]


@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_all_plants_apply_today() -> None:
    for plants in (test_link_worlds.BUGS, test_route_worlds.BUGS, test_filter_summaries.MISTAKES):
        for plant in plants.values():
            with plant:
                pass
    for mistake in test_planted.MISTAKES.values():
        with mistake.plant:
            pass
    for begin in sim_planted.MISTAKES.values():
        with begin():
            pass


def test_a_module_without_source_has_none() -> None:
    assert "class PeerLink" in source_of(peer_link)
    with pytest.raises(PlantDoesNotApply):
        relative_path(ModuleType("starlingmq.cluster.nowhere"))


@pytest.mark.interpreted_only("a compiled class does not show its names")
def test_an_attribute_that_init_does_not_set_does_not_apply() -> None:
    assert set_in_init(PeerLink, "_window") == "_window"
    with pytest.raises(PlantDoesNotApply):
        set_in_init(PeerLink, "nothing")


def test_a_seed_that_fails_without_the_mistake_is_not_a_finding() -> None:
    def fails(seed: int) -> None:
        assert seed < 3, "whatever"

    with pytest.raises(AssertionError, match="whatever"):
        first_to_find(range(9), Together, fails)
    assert first_to_find(range(3), Together, fails) == -1
