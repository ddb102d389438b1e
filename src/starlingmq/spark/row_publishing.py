"""Publishes the rows of one task: one pipelined connection per QoS, reconnected for up to the node timeout."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Endpoint, Tls
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.link import Link
from starlingmq.client.producer import LaterEpoch, NotAccepted, ProducerError, ProducerState
from starlingmq.spark.placing import AssignedNode
from starlingmq.spark.secret_reference import secret_text
from starlingmq.spark.sink_options import SinkOptions
from starlingmq.wire.reasons import MqttError

log = logging.getLogger("starlingmq.spark")

AGAIN_SECONDS: Final = 0.25
CONNECT_SECONDS: Final = 10.0
PROBE: Final = "who-is-there"  # a producer that publishes nothing
PROBE_SECONDS: Final = 3.0
FLUSH_ROWS: Final = 500  # offered per write

EVERY_QOS: Final = (0, 1, 2)
LATER_BATCH: Final = (
    "a checkpoint was deleted, or an older copy of it restored, batchId is lower than before, or two writes have the "
    "same idempotencyKey: use a new key, or, without one, a new checkpoint"
)

Message = tuple[bytes, bytes, int, bool, bytes]  # topic, payload, QoS, retain, properties


class PartitionRows(msgspec.Struct, frozen=True, kw_only=True):
    """``published``: rows that were new to the broker. ``repeated``: it had some from an earlier attempt. ``met``: the
    node name reported at each URL.
    """

    published: int
    repeated: bool
    met: dict[str, str]


class PublishError(Exception):
    """Rows cannot be published; one line for the user of the query."""


class Lane:
    """One connection that is restored when it is lost."""

    def __init__(self, state: ProducerState, endpoints: Sequence[Endpoint], tls: Tls, node_timeout: float) -> None:
        """``endpoints``: possible addresses of the state's node, tried in turn."""
        self.state = state
        self._endpoints = deque(endpoints)
        self._why: dict[str, str] = {}  # by endpoint, its last error
        self._tls = tls
        self._node_timeout = node_timeout
        self._link: Link | None = None
        self._changed = asyncio.Event()
        self.refused = False  # by what the broker said, which another attempt does not change
        self._failure: Exception | None = None  # the error that ended the connection

    async def connected(self) -> None:
        """Wait until the broker has reported its progress. Raises PublishError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._node_timeout
        while not self.state.connected:
            try:
                await self._connect()
            except (ConnectFailed, NotAccepted, MqttError, TimeoutError) as error:
                self._lose()
                self._why[str(self.endpoint)] = str(error) or "no answer"
                if loop.time() >= until:
                    raise self._given_up() from None
                self._endpoints.rotate(-1)
                await asyncio.sleep(AGAIN_SECONDS)
            except ProducerError as error:
                raise self._failed(error) from None

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoints[0]

    def _failed(self, error: ProducerError) -> PublishError:
        self.refused = True
        hint = f"; {LATER_BATCH}" if isinstance(error, LaterEpoch) else ""
        return PublishError(f"{self.endpoint}: {error}{hint}")

    def offer(self, topic: bytes, payload: bytes, retain: bool, properties: bytes) -> None:
        """Raises PublishError."""
        try:
            self.state.offer(topic, payload, retain, properties)
        except ProducerError as error:
            raise self._failed(error) from None

    def _given_up(self) -> PublishError:
        node = self.state.node
        waiting = f"rows wait for node {node}, which stores their sequence numbers: " if node else ""
        why = "; ".join(f"{endpoint}: {why}" for endpoint, why in self._why.items())
        return PublishError(f"{waiting}{why} (for {self._node_timeout:g} s, option nodeTimeout)")

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            self._failure = None
            self._link = await open_link(self.endpoint, self._tls, self)
            self.state.connection_made()
            self._flush()
            while not self.state.connected:
                await self._change()

    async def _change(self) -> None:
        """Wait for input. Raises the error that ended the connection."""
        if self._failure is None:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._node_timeout):
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
        """Send the offered rows, and wait until there is room for more. Raises PublishError."""
        await self._until(lambda: self.state.room)

    async def finish(self) -> None:
        """Wait until everything is acknowledged. Raises PublishError."""
        try:
            self.state.finish()
        except ProducerError as error:
            raise self._failed(error) from None
        await self._until(lambda: self.state.done)
        self.close()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    async def _until(self, there: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        acknowledged, deadline = self.state.published, loop.time() + self._node_timeout
        while True:
            try:
                self.state.pump()
                self._flush()
                if self._link is not None:
                    await self._link.drained()
                await asyncio.sleep(0)  # received bytes are handled
                while not there():
                    await self._change()
                if self._failure is not None:
                    raise self._failure
                return
            except (NotAccepted, MqttError) as error:
                self._lose()
                self._why = {str(self.endpoint): str(error)}
                if self.state.published > acknowledged:
                    acknowledged, deadline = self.state.published, loop.time() + self._node_timeout
                elif loop.time() >= deadline:
                    raise self._given_up() from None
                await asyncio.sleep(AGAIN_SECONDS)
                await self.connected()
            except ProducerError as error:
                raise self._failed(error) from None

    # Calls from the link

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


@contextmanager
def trusting(options: SinkOptions) -> Iterator[Tls]:
    """Provide the CA certificate as a file, as TLS needs it."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as ca:
        ca.write(options.ca)
        ca.flush()
        yield Tls(ca=ca.name if options.ca else "")


def lane_of(options: SinkOptions, node: AssignedNode, tls: Tls, name: str, epoch: int, qos: int) -> Lane:
    endpoints = [options.endpoint(url) for url in node.urls]
    user = options.user or endpoints[0].username
    password = (secret_text(options.password) or endpoints[0].password or "").encode() if user else None
    others = [f"{name}/{other}" for other in EVERY_QOS if other != qos]
    state = ProducerState(f"{name}/{qos}", epoch, qos, user, password, options.window, node.name, others)
    return Lane(state, endpoints, tls, options.node_timeout)


async def names_at(options: SinkOptions, urls: Sequence[str]) -> dict[str, str]:
    """Return the names of the nodes that answer at these URLs now."""
    brief = msgspec.structs.replace(options, node_timeout=PROBE_SECONDS)

    async def ask(tls: Tls, url: str) -> str:
        lane = lane_of(brief, AssignedNode(urls=(url,)), tls, PROBE, 0, 0)
        try:
            await lane.connected()
        except PublishError:
            return ""
        finally:
            lane.close()
        return lane.state.node

    with trusting(options) as tls:
        found = await asyncio.gather(*(ask(tls, url) for url in urls))
    return {url: name for url, name in zip(urls, found, strict=True) if name}


def refuse_other_qos(lanes: Mapping[int, Lane], name: str) -> None:
    """Raises PublishError: an earlier attempt at this batch had rows with a QoS that none of these rows has. So it was
    another batch, or its rows had another QoS and would be published again.
    """
    for lane in lanes.values():
        for qos in EVERY_QOS:
            if qos not in lanes and f"{name}/{qos}" in lane.state.others:
                mine = ", ".join(str(each) for each in sorted(lanes))
                raise PublishError(
                    f"{lane.endpoint}: {name}: an earlier attempt published rows with QoS {qos}, and this one has rows "
                    f"with QoS {mine} only; a retry must publish the same rows with the same QoS, other rows need "
                    "another idempotencyKey"
                )


async def refuse_rows_of_before(options: SinkOptions, node: AssignedNode, tls: Tls, name: str, epoch: int) -> None:
    """Raises PublishError: an earlier attempt at this batch had rows in this partition, which now has none. A node that
    does not answer is not waited for, since nothing is published to it.
    """
    brief = msgspec.structs.replace(options, node_timeout=PROBE_SECONDS)
    lane = lane_of(brief, node, tls, name, epoch, options.qos)
    try:
        await lane.connected()
    except PublishError as error:
        if lane.refused:
            raise
        log.warning("whether %s had rows at an earlier attempt is not known: %s", name, error)
        return
    finally:
        lane.close()
    if lane.state.known or lane.state.others:
        raise PublishError(
            f"{lane.endpoint}: {name}: an earlier attempt published rows of this partition, which has none now; a "
            "retry must have the same rows in the same partitions, other rows need another idempotencyKey"
        )


def check_partition(options: SinkOptions, node: AssignedNode, name: str, epoch: int) -> None:
    """Check that a partition which a repeated batch does not have had no rows at an earlier attempt. Raises
    PublishError.
    """

    async def check() -> None:
        with trusting(options) as tls:
            await refuse_rows_of_before(options, node, tls, name, epoch)

    asyncio.run(check())


async def publish(
    options: SinkOptions, node: AssignedNode, name: str, epoch: int, rows: Iterator[Message]
) -> PartitionRows:
    """Publish the rows of a partition. Raises PublishError."""
    lanes: dict[int, Lane] = {}
    with trusting(options) as tls:
        count = 0
        try:
            for topic, payload, qos, retain, properties in rows:
                lane = lanes.get(qos)
                if lane is None:
                    lane = lanes[qos] = lane_of(options, node, tls, name, epoch, qos)
                    await lane.connected()
                    if options.one_qos:
                        refuse_other_qos(lanes, name)
                lane.offer(topic, payload, retain, properties)
                count += 1
                if count % FLUSH_ROWS == 0:
                    await lane.push()
            for lane in lanes.values():
                await lane.finish()
            refuse_other_qos(lanes, name)
            if not lanes and options.repeatable:
                await refuse_rows_of_before(options, node, tls, name, epoch)
        finally:
            for lane in lanes.values():
                lane.close()
    met = {str(lane.endpoint): lane.state.node for lane in lanes.values() if lane.state.node}
    return PartitionRows(
        published=sum(lane.state.published for lane in lanes.values()),
        repeated=any(lane.state.skipped for lane in lanes.values()),
        met=met,
    )
