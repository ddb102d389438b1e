"""A fault of ``tests.cluster.chaos``: no etcd answers."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import Final

import psutil
from tests.cluster.real import Cluster

AWAY_SECONDS: Final = (5.0, 25.0)


async def freeze_all_etcds(cluster: Cluster, draw: random.Random) -> str:
    """All etcds stand still, also those that nodes start in the place of one that does not answer."""
    end = time.monotonic() + draw.uniform(*AWAY_SECONDS)
    frozen: dict[int, psutil.Process] = {}
    while time.monotonic() < end:
        for node in cluster.nodes:
            etcd = node.etcd()
            if etcd is not None and etcd.pid not in frozen:
                with suppress(psutil.NoSuchProcess):
                    etcd.suspend()
                frozen[etcd.pid] = etcd
        await asyncio.sleep(0.05)
    for etcd in frozen.values():
        with suppress(psutil.NoSuchProcess):
            etcd.resume()
    return f"{len(frozen)} processes"
