"""The broker of ``tests.lake.killing``: one node, or a cluster of three of which one at a time is killed.

With copies 2 the killed node loses its disk as well, and the next one is killed once all are in step again.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from starlingmq.cli.local_cluster import free_ports
from tests.cluster.chaos_copies import is_copied
from tests.cluster.real import Cluster
from tests.spark.brokers import TOKEN, StreamBroker, published, rows_of

DEFINED: Final = [{"name": "all", "topics": ["in/#"]}, {"name": "out", "topics": ["out/#"]}]
SECONDS: Final = 180.0


class OneNode:
    def __init__(self, directory: Path) -> None:
        self._broker = StreamBroker(directory / "n1", "n1", f"streams.define={DEFINED}".replace("'", '"'))
        self.servers = [self._broker.address]
        self.urls = [self._broker.url]

    def publish(self, payloads: list[bytes]) -> None:
        self._broker.publish(payloads, "in/a")

    def kill(self) -> str:
        self._broker.kill()
        self._broker.start()
        return "killed"

    def written(self) -> Counter[int]:
        return Counter(int(value) for _, value in rows_of(self._broker.options | {"stream": "out"}))

    def stop(self) -> None:
        self._broker.stop()


class ThreeNodes:
    """``copies``: ``cluster.copies``."""

    def __init__(self, directory: Path, copies: int, chance: random.Random) -> None:
        self._copies = copies
        self._chance = chance
        self._next = 0
        self._cluster = Cluster(directory, 3, {"copies": copies}, proxies=False)
        ports = free_ports(3)
        for node, port in zip(self._cluster.nodes, ports, strict=True):

            def change(settings: dict[str, Any], port: int = port) -> None:
                settings["streams"] = {"listen": f"127.0.0.1:{port}", "token": TOKEN, "define": DEFINED}

            node.configure(change)
        self.servers = [f"127.0.0.1:{port}" for port in ports]
        self.urls = [node.url for node in self._cluster.nodes]
        self._stack = ExitStack()
        self._stack.enter_context(self._cluster)
        try:
            asyncio.run(self._whole())
        except BaseException:
            self.stop()
            raise

    async def _whole(self) -> None:
        await self._cluster.whole()
        if self._copies > 1:
            nodes = self._cluster.nodes
            in_step = "all nodes are in step"
            await self._cluster.until(lambda: all(is_copied(node, self._copies) for node in nodes), in_step, SECONDS)

    def publish(self, payloads: list[bytes]) -> None:
        """At one node after the other. All of them serve: no message has to be sent again."""
        node = self._cluster.nodes[self._next % 3]
        self._next += 1
        asyncio.run(published(node.url, payloads, "in/a"))

    def kill(self) -> str:
        node = self._chance.choice(self._cluster.nodes)
        node.kill()
        if self._copies > 1:
            shutil.rmtree(node.data_dir)
        node.start()
        asyncio.run(self._whole())
        return f"{node.name} killed, its disk {'lost' if self._copies > 1 else 'kept'}"

    def written(self) -> Counter[int]:
        options = {"servers": ",".join(self.servers), "stream": "out", "token": TOKEN, "nodeTimeout": "60"}
        return Counter(int(value) for _, value in rows_of(options))

    def stop(self) -> None:
        self._stack.close()
