"""Nodes with copies that were removed and are started again, and copies that are of no use any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.cluster.return_world import run, run_with_copies
from tests.few import few
from tests.patience import slowness
from tests.sim.world import World

from starlingmq.net.copies.copy_place import COPIES, CopyPlaces
from starlingmq.net.peers.copy_link import NO_COPY
from starlingmq.storage.copies.copy_facts import CopyFacts, read_facts, write_facts
from starlingmq.storage.copies.copy_frames import ASKS, Hello
from starlingmq.storage.data_dir import ASIDE_PREFIX, DataDir, set_aside


@pytest.mark.parametrize("seed", few(range(2), 0))
def test_a_node_with_copies_that_was_removed_brings_nothing_back(seed: int) -> None:
    """Worlds with copies are not the same in each process: in a few no node returns."""
    assert sum(run_with_copies(each).returns for each in range(3 * seed, 3 * seed + 3))


def test_a_node_that_leaves_loses_nothing_that_waits_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "copies", 2)
    assert sum(run(seed).returns for seed in range(4))


def test_data_that_is_set_aside_is_kept_and_what_was_interrupted_is_completed(tmp_path: Path) -> None:
    assert set_aside(tmp_path) is None
    for number in (1, 2):
        for name in ("kv", "journal"):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"of life {number}").touch()
        (tmp_path / "COPY").write_text("facts")
        if number == 2:  # it was interrupted before
            (tmp_path / f"{ASIDE_PREFIX}2").mkdir()
            (tmp_path / "COPY").rename(tmp_path / f"{ASIDE_PREFIX}2" / "COPY")
        aside = set_aside(tmp_path)
        assert aside == tmp_path / f"{ASIDE_PREFIX}{number}"
        assert (aside / "COPY").exists() and (aside / "journal" / f"of life {number}").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{ASIDE_PREFIX}1", f"{ASIDE_PREFIX}2"]


async def test_a_copy_that_knows_a_newer_generation_than_etcd_is_kept_and_another_one_begins(tmp_path: Path) -> None:
    places = CopyPlaces(tmp_path, "n1", "process")
    place = places.place("n2")
    place.path.mkdir(parents=True)
    DataDir(place.path, {"journal": "segment"}).close()
    write_facts(place.path, CopyFacts(owner="n2", generation=9, whole=True))
    asked = Hello("n2", ASKS, "segment", 1 << 20, ())
    assert (await place.look(asked) or NO_COPY).generation == 9
    receiver = await place.open(msgspec.structs.replace(asked, generation=9), "process", lambda: True)
    assert receiver.look().generation == 9
    await place.release()
    receiver = await place.open(msgspec.structs.replace(asked, generation=3), "process", lambda: True)
    assert receiver.look().generation == 0
    kept = read_facts(place.path / f"{ASIDE_PREFIX}1")
    assert kept is not None and kept.generation == 9
    await places.close()


async def test_a_copy_in_use_as_data_is_not_deleted(tmp_path: Path) -> None:
    copy = tmp_path / COPIES / "n2"
    copy.mkdir(parents=True)
    places = CopyPlaces(tmp_path, "n1", "process")
    assert places.find() == ["n2"]
    place = places.place("n2")
    place.taken = True
    assert not await place.delete() and copy.exists()
    place.taken = False
    assert await place.delete() and not copy.exists()
    await asyncio.wait_for(places.close(), 10 * slowness())
