"""Beside the faults of ``tests.cluster.chaos``: no etcd answers, for a share of the time, whatever else breaks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import psutil
from tests.cluster.real import Cluster

FAULT: Final = "stop all etcds"
AWAY_SECONDS: Final = (5.0, 25.0)
KILLED: Final = (
    0.3  # share of the times that they end in place of standing still; nodes start others, which are stopped
)
LOOK_SECONDS: Final = 0.05


class EtcdsAway:
    """``share`` of the time all etcds stand still, also those that nodes start in the place of one that does not
    answer. ``on_fault`` is told when that began (``time.monotonic``), what it is, and whom it met.

    Times in which etcd is needed (``present``) count: the next times away are closer to each other then.
    """

    def __init__(self, cluster: Cluster, share: float, seed: int, on_fault: Callable[[float, str, str], None]) -> None:
        assert 0.0 <= share < 1.0
        self.share = share
        self.count = 0
        self._cluster = cluster
        self._draw = random.Random(f"etcds {seed}")
        self._on_fault = on_fault
        self._began = time.monotonic()
        self._away = 0.0  # seconds, without the time that has not ended
        self._free = asyncio.Lock()  # held while they are away, and while they have to be there

    def away_share(self) -> float:
        """The share of the time so far."""
        return self._away / max(time.monotonic() - self._began, 1e-9)

    async def run(self) -> None:
        """Until it is cancelled."""
        while self.share:
            await asyncio.sleep(LOOK_SECONDS)
            if self.away_share() < self.share:
                async with self._free:
                    await self._stop_all(self._draw.uniform(*AWAY_SECONDS))

    @asynccontextmanager
    async def present(self) -> AsyncIterator[None]:
        """They are not stopped within."""
        async with self._free:
            yield

    async def _stop_all(self, seconds: float) -> None:
        began = time.monotonic()
        stopped: dict[int, psutil.Process] = {}
        kill = self._draw.random() < KILLED
        self.count += 1
        for node in self._cluster.nodes:
            node.no_etcd.begins()
        try:
            while time.monotonic() < began + seconds:
                self._stop_new(stopped, kill)
                kill = False
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for etcd in stopped.values():
                with suppress(psutil.NoSuchProcess):
                    etcd.resume()
            for node in self._cluster.nodes:
                node.no_etcd.ends()
            self._away += time.monotonic() - began
            self._on_fault(began, FAULT, f"{len(stopped)} processes")

    def _stop_new(self, stopped: dict[int, psutil.Process], kill: bool) -> None:
        for node in self._cluster.nodes:
            etcd = node.etcd()
            if etcd is None or etcd.pid in stopped:
                continue
            with suppress(psutil.NoSuchProcess):
                if kill:
                    etcd.kill()
                else:
                    etcd.suspend()
                    stopped[etcd.pid] = etcd
