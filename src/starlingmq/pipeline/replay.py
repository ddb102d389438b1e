"""Publishes an archive again: in the original order, at the original or another speed.

There is one connection per QoS, with numbered messages (``client.producer``), so that messages left open by a broken
connection are published once. The order of a topic is kept: before its QoS changes, all earlier messages must be
acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from starlingmq.client.endpoint import Tls, parse_url
from starlingmq.client.producer import ProducerState
from starlingmq.core.topics.topics import valid_topic
from starlingmq.spark.row_publishing import Lane, PublishError
from starlingmq.spark.sink import properties_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

ROWS: Final = 2000  # fetched while as many are published
FLUSH_ROWS: Final = 500
EARLY_SECONDS: Final = 0.002  # messages due within this time are sent now
COLUMNS: Final = ("topic", "payload", "qos", "retain", "properties", "timestamp", "node", "offset")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The target and its options: ``speed`` is a factor of the original speed, 0.0 for maximum speed; ``prefix`` is
    prepended to each topic.
    """

    url: str
    user: str = ""
    password: str = ""
    ca: str = ""  # path
    speed: float = 1.0
    prefix: str = ""
    window: int = 10_000
    node_timeout: float = 30.0


def in_order(rows: DataFrame) -> DataFrame:
    """Return rows in the order of publication, as far as the clocks of the nodes agree."""
    return rows.select(*COLUMNS).orderBy("timestamp", "node", "offset")


class Replay:
    def __init__(self, target: Target, told: Callable[[int], None]) -> None:
        self.target = target
        self.published = 0
        self._told = told
        self._endpoint = parse_url(target.url)
        self._name = f"replay-{os.urandom(8).hex()}"
        self._epoch = 0
        self._lanes: dict[int, Lane] = {}
        self._qos: dict[bytes, int] = {}  # of each topic, since the last settling
        self._began = self._first = 0.0

    async def run(self, rows: Iterator[Row]) -> None:
        """Publish all rows. Raises PublishError."""
        coming = asyncio.create_task(asyncio.to_thread(_some, rows))
        try:
            while some := await coming:
                coming = asyncio.create_task(asyncio.to_thread(_some, rows))
                for row in some:
                    await self._publish(row)
                self._told(self.published)
            await self._settle()
            self._told(self.published)
        finally:
            coming.cancel()
            for lane in self._lanes.values():
                lane.close()

    async def _publish(self, row: Any) -> None:
        topic = (self.target.prefix + row.topic).encode()
        if not valid_topic(topic):
            raise PublishError(f"{topic.decode()!r} is not a valid topic to publish to; check the prefix")
        await self._wait_for(row.timestamp.timestamp())
        if self._qos.setdefault(topic, row.qos) != row.qos:
            await self._settle()
            self._qos[topic] = row.qos
        lane = self._lanes.get(row.qos)
        if lane is None:
            lane = self._lanes[row.qos] = await self._open(row.qos)
        pairs = [{"name": pair.name, "value": pair.value} for pair in row.properties]
        lane.offer(topic, bytes(row.payload), row.retain, properties_of(pairs, None))
        self.published += 1
        if self.published % FLUSH_ROWS == 0:
            await lane.push()

    async def _open(self, qos: int) -> Lane:
        target = self.target
        user = target.user or self._endpoint.username or ""
        password = target.password or self._endpoint.password or ""
        state = ProducerState(
            f"{self._name}/{qos}", self._epoch, qos, user, password.encode() if user else None, target.window
        )
        lane = Lane(state, [self._endpoint], Tls(ca=target.ca), target.node_timeout)
        await lane.connected()
        return lane

    async def _wait_for(self, when: float) -> None:
        """Wait until a message of that time is due; all earlier ones have then been sent."""
        if self.target.speed == 0.0:
            return
        now = time.monotonic()
        if not self._began:
            self._began, self._first = now, when
        left = self._began + (when - self._first) / self.target.speed - now
        if left > EARLY_SECONDS:
            for lane in self._lanes.values():
                await lane.push()
            self._told(self.published)
            await asyncio.sleep(max(0.0, left - (time.monotonic() - now)))

    async def _settle(self) -> None:
        """Wait until everything is acknowledged."""
        for lane in self._lanes.values():
            await lane.finish()
        self._lanes.clear()
        self._qos.clear()
        self._epoch += 1


def _some(rows: Iterator[Row]) -> list[Row]:
    return list(islice(rows, ROWS))
