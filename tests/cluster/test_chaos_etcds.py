"""The fault of chaos runs that stops all etcds (``tests.cluster.chaos_etcds``)."""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import Any, cast

import pytest
from tests.cluster import chaos_etcds
from tests.cluster.chaos_etcds import FAULT, EtcdsAway
from tests.cluster.real import Cluster
from tests.cluster.trouble import Trouble

SHARE = 0.5


class FakeEtcd:
    def __init__(self, pid: int, fates: list[str]) -> None:
        self.pid = pid
        self._fates = fates

    def suspend(self) -> None:
        self._fates.append(f"{self.pid} stands still")

    def resume(self) -> None:
        self._fates.append(f"{self.pid} runs")

    def kill(self) -> None:
        self._fates.append(f"{self.pid} is killed")


class FakeNode:
    """Starts another etcd in the place of one that is killed."""

    def __init__(self, number: int, fates: list[str]) -> None:
        self._number = number
        self._fates = fates
        self.no_etcd = Trouble()

    def etcd(self) -> FakeEtcd:
        killed = sum(fate == f"{pid} is killed" for fate in self._fates for pid in range(self._number, 100, 10))
        return FakeEtcd(self._number + 10 * killed, self._fates)


class Trial:
    """``faults``: those that were told."""

    def __init__(self, share: float, killed: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chaos_etcds, "AWAY_SECONDS", (0.02, 0.04))
        monkeypatch.setattr(chaos_etcds, "LOOK_SECONDS", 0.001)
        monkeypatch.setattr(chaos_etcds, "KILLED", killed)
        self.fates: list[str] = []
        self.faults: list[str] = []
        self.told = asyncio.Event()
        cluster: Any = type("FakeCluster", (), {"nodes": [FakeNode(number, self.fates) for number in (1, 2, 3)]})()
        self.etcds = EtcdsAway(cast(Cluster, cluster), share, 7, self._tell)

    def _tell(self, since: float, what: str, whom: str) -> None:
        self.faults.append(f"{what}: {whom}")
        self.told.set()

    async def next(self) -> None:
        self.told.clear()
        await self.told.wait()


async def stopped(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_all_etcds_stand_still_for_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(SHARE, 0.0, monkeypatch)
    running = asyncio.create_task(trial.etcds.run())
    for _ in range(3):
        await trial.next()
    assert trial.fates[:6] == [f"{number} {how}" for how in ("stands still", "runs") for number in (1, 2, 3)]
    assert trial.faults[0] == f"{FAULT}: 3 processes" and trial.etcds.count >= 3
    await stopped(running)
    assert trial.etcds.away_share() > SHARE / 2


async def test_an_etcd_that_a_node_starts_for_a_killed_one_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(SHARE, 1.0, monkeypatch)
    running = asyncio.create_task(trial.etcds.run())
    await trial.next()
    await stopped(running)
    assert trial.fates[:6] == [
        "1 is killed",
        "2 is killed",
        "3 is killed",
        "11 stands still",
        "12 stands still",
        "13 stands still",
    ]


async def test_none_is_stopped_while_etcd_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(SHARE, 0.0, monkeypatch)
    running = asyncio.create_task(trial.etcds.run())
    await trial.next()
    async with trial.etcds.present():
        before = list(trial.fates)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await trial.next()
        assert trial.fates == before and before[-1] == "3 runs"
    await trial.next()
    await stopped(running)


async def test_a_run_that_ends_leaves_none_standing_still(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(SHARE, 0.0, monkeypatch)
    monkeypatch.setattr(chaos_etcds, "AWAY_SECONDS", (60.0, 60.0))
    running = asyncio.create_task(trial.etcds.run())
    while len(trial.fates) < 3:
        await asyncio.sleep(0)
    await stopped(running)
    assert trial.fates[3:] == ["1 runs", "2 runs", "3 runs"]
    now = time.monotonic()
    assert trial.etcds._cluster.nodes[0].no_etcd.met(0.0, now) and not trial.etcds._cluster.nodes[0].no_etcd.met(
        now, inf
    )


async def test_without_a_share_of_the_time_they_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(0.0, 0.0, monkeypatch)
    await trial.etcds.run()
    assert trial.fates == trial.faults == []
