"""The rows of one task, published: a connection for each QoS, pipelined; made again while ``patience`` lasts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from typing import Final

from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Endpoint, Tls
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.link import Link
from starlingmq.client.producer import NotAccepted, ProducerError, ProducerState
from starlingmq.spark.sink_options import SinkOptions
from starlingmq.wire.reasons import MqttError

AGAIN_SECONDS: Final = 0.25
CONNECT_SECONDS: Final = 10.0
FLUSH_ROWS: Final = 500  # offered before they are written

Message = tuple[bytes, bytes, int, bool, bytes]  # topic, payload, QoS, retain, properties


class PublishError(Exception):
    """Why rows can not be published; one line for who runs the query."""


class Lane:
    """One connection that is made again when it is lost."""

    def __init__(self, state: ProducerState, endpoint: Endpoint, tls: Tls, patience: float) -> None:
        self.state = state
        self._endpoint = endpoint
        self._tls = tls
        self._patience = patience
        self._link: Link | None = None
        self._changed = asyncio.Event()
        self._failure: Exception | None = None  # what ended the connection

    async def connected(self) -> None:
        """Wait until it is known what the broker has. Raises PublishError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while not self.state.connected:
            try:
                await self._connect()
            except (ConnectFailed, NotAccepted, MqttError, TimeoutError) as error:
                self._lose()
                if loop.time() >= until:
                    why = str(error) or "no answer"
                    raise PublishError(f"{self._endpoint}: {why} (for {self._patience:g} s, option patience)") from None
                await asyncio.sleep(AGAIN_SECONDS)
            except ProducerError as error:
                raise PublishError(f"{self._endpoint}: {error}") from None

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            self._failure = None
            self._link = await open_link(self._endpoint, self._tls, self)
            self.state.connection_made()
            self._flush()
            while not self.state.connected:
                await self._change()

    async def _change(self) -> None:
        """Wait until something comes. Raises what ended the connection."""
        if self._failure is None:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._patience):
                    await self._changed.wait()
            except TimeoutError:
                self._failure = NotAccepted("no answer")
        if self._failure is not None:
            raise self._failure

    def _flush(self) -> None:
        data = self.state.take()
        if data and self._link is not None:
            self._link.write(data)

    def _lose(self) -> None:
        if self._link is not None:
            self._link.abort()
            self._link = None
        self.state.connection_lost()

    async def push(self) -> None:
        """Send what there is, and wait until there is room for more. Raises PublishError."""
        await self._until(lambda: self.state.room)

    async def finish(self) -> None:
        """Wait until everything is acknowledged. Raises PublishError."""
        self.state.finish()
        await self._until(lambda: self.state.done)
        self.close()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    async def _until(self, there: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        acknowledged, deadline = self.state.published, loop.time() + self._patience
        while True:
            try:
                self.state.pump()
                self._flush()
                if self._link is not None:
                    await self._link.drained()
                await asyncio.sleep(0)  # what has come is taken
                while not there():
                    await self._change()
                if self._failure is not None:
                    raise self._failure
                return
            except (NotAccepted, MqttError) as error:
                self._lose()
                if self.state.published > acknowledged:
                    acknowledged, deadline = self.state.published, loop.time() + self._patience
                elif loop.time() >= deadline:
                    raise PublishError(
                        f"{self._endpoint}: {error} (for {self._patience:g} s, option patience)"
                    ) from None
                await asyncio.sleep(AGAIN_SECONDS)
                await self.connected()
            except ProducerError as error:
                raise PublishError(f"{self._endpoint}: {error}") from None

    # The link's side

    def link_received(self, data: bytes) -> None:
        try:
            self.state.receive(data)
        except (NotAccepted, ProducerError, MqttError) as error:
            self._failure = self._failure or error
        self._flush()
        self._changed.set()

    def link_lost(self, link: Link, error: Exception | None) -> None:
        if link is self._link:
            self._failure = self._failure or NotAccepted(f"the connection was lost{f': {error}' if error else ''}")
            self._changed.set()


async def publish(options: SinkOptions, endpoint: Endpoint, name: str, epoch: int, rows: Iterator[Message]) -> int:
    """Publish the rows of a partition; how many were new to the broker. Raises PublishError."""
    lanes: dict[int, Lane] = {}
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as ca:
        ca.write(options.ca)
        ca.flush()
        tls = Tls(ca=ca.name if options.ca else "")
        count = 0
        try:
            for topic, payload, qos, retain, properties in rows:
                lane = lanes.get(qos)
                if lane is None:
                    user = options.user or endpoint.username
                    password = options.password or endpoint.password or ""
                    state = ProducerState(
                        f"{name}/{qos}", epoch, qos, user, password.encode() if user else None, options.window
                    )
                    lane = lanes[qos] = Lane(state, endpoint, tls, options.patience)
                    await lane.connected()
                try:
                    lane.state.offer(topic, payload, retain, properties)
                except ProducerError as error:
                    raise PublishError(f"{endpoint}: {error}") from None
                count += 1
                if count % FLUSH_ROWS == 0:
                    await lane.push()
            for lane in lanes.values():
                await lane.finish()
        finally:
            for lane in lanes.values():
                lane.close()
    return sum(lane.state.published for lane in lanes.values())
