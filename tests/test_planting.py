"""A planted mistake that does not apply is an error and never counts as found; and today every one of them applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

import starlingmq
from starlingmq.cluster.links import peer_link
from starlingmq.cluster.links.peer_link import PeerLink
from tests.cluster import link_world, planting, route_world, test_link_worlds, test_route_worlds
from tests.planting import FAILURES, PlantDoesNotApply, first_to_find, relative_path, replace, set_in_init, source_of
from tests.sim import planted as sim_planted
from tests.storage import planted as storage_planted

GONE = "this text is in no module"
TEXT_PLANTS = {**test_link_worlds.BUGS, **test_route_worlds.BUGS, "small bounds": list(planting.SMALL)}


def test_a_plant_that_does_not_apply_is_not_a_failure_of_a_world() -> None:
    assert not issubclass(PlantDoesNotApply, FAILURES)


def test_text_that_is_gone_or_there_twice_does_not_apply() -> None:
    source = source_of(peer_link)
    with pytest.raises(PlantDoesNotApply, match="0 times"):
        replace(peer_link, source, GONE, "pass")
    with pytest.raises(PlantDoesNotApply, match="times, not once"):
        replace(peer_link, source, "def ", "async def ")


def test_a_plant_that_leaves_the_code_as_it_is_does_not_apply() -> None:
    with pytest.raises(PlantDoesNotApply, match="the same"):
        replace(peer_link, "a = 1  # one\n", "# one", "# two")


def test_a_plant_that_is_not_python_does_not_apply() -> None:
    with pytest.raises(PlantDoesNotApply, match="not Python"):
        replace(peer_link, "a = 1\n", "1", "")


def test_a_module_without_source_does_not_apply() -> None:
    with pytest.raises(PlantDoesNotApply):
        relative_path(ModuleType("starlingmq.cluster.nowhere"))


@pytest.mark.skipif(starlingmq.compiled(), reason="a compiled class does not show its names")
def test_an_attribute_that_init_does_not_set_does_not_apply() -> None:
    assert set_in_init(PeerLink, "_window") == "_window"
    with pytest.raises(PlantDoesNotApply):
        set_in_init(PeerLink, "nothing")


@pytest.mark.parametrize("module", ["links", "frames", "nowhere"])
def test_a_world_does_not_find_a_plant_that_does_not_apply(module: str) -> None:
    for world in (link_world.run, route_world.run):
        with pytest.raises(PlantDoesNotApply):
            world(0, ((module, GONE, "pass"),))


def test_a_planted_module_must_use_the_planted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a module is loaded before one that it imports."""
    monkeypatch.setattr(planting, "MODULES", dict(reversed(planting.MODULES.items())))
    with pytest.raises(PlantDoesNotApply, match="without the mistakes"):
        planting.load.__wrapped__(())


def test_a_world_of_the_simulator_does_not_find_a_plant_that_does_not_apply() -> None:
    @contextmanager
    def gone() -> Iterator[None]:
        replace(peer_link, source_of(peer_link), GONE, "pass")
        yield

    with pytest.raises(PlantDoesNotApply):
        sim_planted.caught(gone, [0])


def test_a_life_does_not_find_a_plant_that_does_not_apply(tmp_path: Path) -> None:
    tree = storage_planted.copy(tmp_path)
    with pytest.raises(PlantDoesNotApply):
        storage_planted.caught(tree, storage_planted.Bug(peer_link, GONE, "pass", 0))


def test_a_seed_that_fails_without_the_mistake_is_not_a_finding() -> None:
    def fails(seed: int) -> None:
        assert seed < 3, "whatever"

    assert first_to_find(range(9), fails, lambda seed: None) == 3
    with pytest.raises(AssertionError, match="whatever"):
        first_to_find(range(9), fails, fails)


def those_that_do_not_apply(plants: Mapping[str, Callable[[], object]]) -> list[str]:
    found = []
    for name, apply in plants.items():
        try:
            apply()
        except PlantDoesNotApply as error:
            found.append(f"{name}: {error}")
    return found


def test_text_plants_of_links_and_routes_apply() -> None:
    plants = {name: partial(planting.load.__wrapped__, tuple(plant)) for name, plant in TEXT_PLANTS.items()}
    assert those_that_do_not_apply(plants) == []


def test_text_plants_of_core_and_storage_apply() -> None:
    bugs = storage_planted.BUGS
    plants = {name: partial(replace, bug.module, source_of(bug.module), bug.old, bug.new) for name, bug in bugs.items()}
    assert those_that_do_not_apply(plants) == []


@pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled cannot be patched")
def test_mistakes_of_the_simulator_apply() -> None:
    def planted(mistake: sim_planted.Mistake) -> None:
        with mistake():
            pass

    plants = {mistake.__name__: partial(planted, mistake) for mistake in sim_planted.FOUND}
    assert those_that_do_not_apply(plants) == []
