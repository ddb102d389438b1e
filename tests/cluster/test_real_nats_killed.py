"""A node is killed while NATS requests go over a queue group on three nodes: what is lost, and for how long.

python -m pytest -s tests/cluster/test_real_nats_killed.py
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.cluster.real import Cluster
from tests.cluster.test_real_nats import address
from tests.patience import slowness

import nats

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/nats/test_killed.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

PER_SECOND = 200
SECONDS = 10
KILLED_AFTER = 3.0
REPLY_SECONDS = 4.0
LATE_SECONDS = 0.5
LOST_MAX = PER_SECOND // 5  # 80 were lost when its members were given requests until heartbeats told


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("killed"), 3, proxies=False)
    for node in cluster.nodes:
        node.configure(speak_nats)
    with cluster:
        asyncio.run(cluster.whole())
        yield cluster


def speak_nats(settings: dict[str, Any]) -> None:
    settings["listeners"].append("nats://127.0.0.1:0")


async def worker(own: str, others: list[str]) -> Client:
    """Answers with the number that it was sent; goes to another node when its own is gone."""
    client = Client()

    async def answer(message: Msg) -> None:
        await message.respond(message.data)

    await client.connect(
        [f"nats://{each}" for each in (own, *others)], dont_randomize=True, reconnect_time_wait=0, connect_timeout=1
    )
    await client.subscribe("svc", "crew", answer)
    await client.flush()
    return client


@pytest.mark.parametrize("place", [0, 2], ids=["primary", "other"])
async def test_few_requests_are_lost_when_a_node_of_workers_is_killed(three: Cluster, place: int) -> None:
    addresses = [address(node) for node in three.nodes]
    workers = []
    for node in range(3):
        for _ in range(2):
            others = addresses[node + 1 :] + addresses[:node]
            workers.append(await worker(addresses[node], others))
    killed = three.nodes[place]
    asking = [await nats.connect(f"nats://{each}") for each in addresses if each != addresses[place]]
    lost: list[float] = []
    answered: list[int] = []
    late: list[float] = []  # how long those took that took more than ``LATE_SECONDS``

    async def ask(number: int, at: float) -> None:
        try:
            answer = await asking[number % 2].request("svc", b"%d" % number, timeout=REPLY_SECONDS)
            answered.append(int(answer.data))
            took = time.monotonic() - began - at
            if took > LATE_SECONDS:
                late.append(took)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            lost.append(at)

    async def served_elsewhere() -> float:
        """When all workers are connected to a node that lives, and its PONG said that all nodes know of them."""
        gone = f"nats://{addresses[place]}"
        while any(each.connected_url is None or each.connected_url.geturl() == gone for each in workers):
            await asyncio.sleep(0.01)
        for each in workers:
            await each.flush(20)
        return time.monotonic()

    began = time.monotonic()
    requests = []
    killed_at = 0.0
    moved: asyncio.Task[float] | None = None
    for number in range(PER_SECOND * SECONDS):
        at = time.monotonic() - began
        if moved is None and at >= KILLED_AFTER:
            killed.kill()
            killed_at = time.monotonic() - began
            moved = asyncio.create_task(served_elsewhere())
        requests.append(asyncio.create_task(ask(number, at)))
        await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
    assert moved is not None
    moved_after = await moved - began - killed_at
    await asyncio.gather(*requests)
    when = f" from {min(lost) - killed_at:.2f} to {max(lost) - killed_at:.2f} s" if lost else ""
    print(
        f"\n{len(lost)} of {len(requests)} requests lost{when}, {len(late)} late (at most {max(late, default=0):.2f} s)"
    )
    print(f"the clients of the node are served elsewhere after {moved_after:.2f} s")
    assert not [at for at in lost if at < killed_at - REPLY_SECONDS]
    assert len(answered) == len(set(answered)) == len(requests) - len(lost)
    assert len(lost) < LOST_MAX * slowness()
    for each in (*workers, *asking):
        await each.close()
