"""A driver with a store whose commits finish when the test decides, and connections that record what they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from tests.harness import body_start

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Deliveries, Write
from starlingmq.net.driver import Driver
from starlingmq.storage.store import NoStore
from starlingmq.wire.mqtt import (
    Connack,
    Connect,
    Packet,
    Suback,
    Subscribe,
    SubscribeRequest,
    decode,
    encode,
    frame_length,
)
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties

EIO = OSError(5, "Input/output error")


async def turns(count: int = 12) -> None:
    """Run turns of the event loop; the driver needs two or three."""
    for _ in range(count):
        await asyncio.sleep(0)


class Commit:
    def __init__(self, writes: list[Write]) -> None:
        self.writes = writes
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def kinds(self) -> list[int]:
        found: list[int] = []
        for write in self.writes:
            found += write.kinds if isinstance(write, Deliveries) else [write.kind]
        return found

    def payloads(self) -> set[bytes]:
        """Return the payloads of messages that were queued, put into a window, or are held."""
        messages = [write.message for write in self.writes]
        for write in self.writes:
            messages += [one.message for one in write.outgoings] if isinstance(write, Deliveries) else []
        return {message.payload for message in messages if message is not None}

    def stored(self) -> bool:
        return self.future.done() and self.future.exception() is None


class SlowStore(NoStore):
    """``at_once``: None is returned and everything is stored; an exception: it is raised."""

    keeps = True

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.at_once: bool | OSError = False

    def commit(self, writes: list[Write]) -> Awaitable[None] | None:
        if isinstance(self.at_once, OSError):
            raise self.at_once
        commit = Commit(writes)
        self.commits.append(commit)
        if self.at_once:
            commit.future.set_result(None)
            return None
        return commit.future

    def open(self) -> list[Commit]:
        return [commit for commit in self.commits if not commit.future.done()]

    async def finish(self, *commits: Commit, error: OSError | None = None) -> None:
        """Finish all open commits, or the given ones, in that order."""
        for commit in commits or self.open():
            if error is None:
                commit.future.set_result(None)
            else:
                commit.future.set_exception(error)
        await turns()


class Wire:
    """A transport that records written bytes."""

    def __init__(self) -> None:
        self.output = b""
        self.closed = False
        self.reading = True
        self.on_write: Any = None

    def write(self, data: bytes) -> None:
        self.output += data
        if self.on_write is not None:
            self.on_write()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Peer:
    """A client of the driver."""

    def __init__(self, bench: Bench, client_id: str, version: int) -> None:
        self.bench = bench
        self.client_id = client_id
        self.version = version
        self.wire = Wire()
        self.client = bench.driver.opened(self.wire, "mqtt://test", client_id)
        self._seen = 0

    def send(self, *packets: Packet) -> None:
        self.bench.driver.received(self.client, b"".join(encode(packet, self.version) for packet in packets))

    def got(self) -> list[Packet]:
        """Return the packets written since the last call."""
        packets: list[Packet] = []
        data = self.wire.output
        while self._seen < len(data):
            end = self._seen + frame_length(data, self._seen)
            frame = data[self._seen : end]
            packets.append(decode(frame[0], frame, body_start(frame), len(frame), self.version))
            self._seen = end
        return packets

    def lost(self) -> None:
        self.bench.driver.lost(self.client)


class Bench:
    def __init__(self, **limits: Any) -> None:
        self.store = SlowStore()
        self.state = BrokerState(MqttConfig(sys_interval=0.0), LimitsConfig(**limits), 1000.0, b"s" * 32)
        self.driver = Driver(self.state, self.store, clock=lambda: 1000.0)

    def open(self, client_id: str, *, lasting: bool, version: int = 5) -> Peer:
        """Return a peer that has sent CONNECT."""
        peer = Peer(self, client_id, version)
        properties: Properties = {SESSION_EXPIRY_INTERVAL: 3600} if lasting and version == 5 else {}
        peer.send(Connect(version, client_id, not lasting, properties=properties))
        return peer

    async def connect(self, client_id: str, *, lasting: bool = False, filter: bytes = b"") -> Peer:
        """Return a peer that is connected, and subscribed at QoS 2."""
        peer = self.open(client_id, lasting=lasting)
        if filter:
            peer.send(Subscribe(1, [SubscribeRequest(filter, 2)]))
        await turns()
        await self.store.finish()
        assert [type(packet) for packet in peer.got()] == ([Connack, Suback] if filter else [Connack])
        return peer

    async def away(self, filter: bytes) -> None:
        """Create a disconnected session that queues messages."""
        peer = await self.connect(f"away {filter.decode()}", lasting=True, filter=filter)
        peer.lost()
        await turns()
        await self.store.finish()
