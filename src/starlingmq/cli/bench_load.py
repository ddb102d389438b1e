"""One load process of ``starlingmq bench``: opens its share of the connections, publishes, and counts.

The generator must not be the bottleneck. ``Client`` opens a connection; after that its frames are encoded
once (only packet id and time stamp are inserted), written in batches, and parsed in place. Every payload begins with
its due time, in nanoseconds of the system's monotonic clock, which all processes of one machine share; at a given rate
that is the planned time, so that the latency includes the wait that a stalled broker causes.

Latencies are counted in buckets, so that millions cost a dictionary of a few hundred entries. A bucket is named by its
lowest value and holds all with the same six leading bits: within 3 % of the true value, from a microsecond to hours.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Final

from starlingmq.client import Client
from starlingmq.client.client_frames import body_start
from starlingmq.client.endpoint import Tls
from starlingmq.client.errors import ClientError, ConnectionLost, reason_name
from starlingmq.client.link import Link
from starlingmq.client.options import QOS, V5, ConnectFields
from starlingmq.wire.mqtt import frame_length, publish_frame
from starlingmq.wire.packets import DISCONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from starlingmq.wire.primitives import decode_varint
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SERVER_KEEP_ALIVE

BITS: Final = 6


def width(value_us: int) -> int:
    """Return the width of the bucket that holds a value of at least 0."""
    return 1 << max(0, value_us.bit_length() - BITS)


def bucket(value_us: int) -> int:
    shift = value_us.bit_length() - BITS  # not by ``width``: this is called for each message
    return value_us >> shift << shift if shift > 0 else value_us


def percentile_ms(buckets: Mapping[int, int], share: float) -> float:
    """Return the milliseconds below which ``share`` (0 to 1) of the values lie; 0.0 if there are none."""
    left = share * sum(buckets.values())
    lowest = 0
    for lowest in sorted(buckets):
        left -= buckets[lowest]
        if left <= 0:
            break
    return (lowest + width(lowest) / 2) / 1000 if buckets else 0.0


STAMP: Final = 8  # first bytes of every payload
BATCH_BYTES: Final = 32 * 1024  # per write if there is no rate limit
TICK: Final = 0.002  # seconds between two rounds of sending due messages
REPORT: Final = 0.25  # seconds between two reports
CONNECTING_MAX: Final = 50  # connections being opened at the same time
PINGREQ: Final = b"\xc0\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work of one process. ``rate`` in messages per second for all its publishers, 0: as fast as possible."""

    url: str
    tls: Tls
    fields: ConnectFields  # of all connections
    publishers: dict[str, str]  # their topics, by the client id
    subscribers: dict[str, str]  # their filters, by the client id
    qos: int
    retain: bool
    size: int
    rate: float
    inflight: int

    def client(self, client_id: str) -> Client:
        return Client(self.url, tls=self.tls, **self.fields | {"client_id": client_id})


@dataclass(slots=True, kw_only=True)
class Report:
    """Counts since the start. ``sent`` is per topic; ``at`` in seconds of the monotonic clock, ``cpu`` in seconds."""

    state: str
    error: str = ""
    at: float = 0.0
    cpu: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    latencies: Counter[int] = field(default_factory=Counter)  # of all received messages, by their buckets


class Peer:
    """One connection: ``Client`` opens it, then ``frame`` handles its input."""

    def __init__(self, client: Client, qos: int, lost: Callable[[Exception], None]) -> None:
        self._client = client
        self._qos = qos
        self._lost = lost
        self._rest = b""
        self._out: list[bytes] = []
        self.link: Link | None = None
        self.modern = client.state.options.version == V5

    async def open(self, filter: str = "") -> None:
        """Connect, and subscribe to ``filter`` if there is one. Raises ClientError, TimeoutError."""
        async with asyncio.timeout(self._client.state.options.connect_timeout):
            await self._client.connect()
            if filter:
                await self._client.subscribe(filter, QOS[self._qos])
        self.link, self._rest = self._client.hand_over(self)

    def told(self, name: int, default: int) -> int:
        """Return a property of the server's CONNACK."""
        value = self._client.state.server.get(name)
        return value if isinstance(value, int) else default

    def link_lost(self, link: Link, error: Exception | None) -> None:
        self._lost(ConnectionLost(f"connection lost{(f': {error}' if error else '')}"))

    def link_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        pos, size = 0, len(data)
        while pos < size:  # in place: ``Frames``, a generator, costs a quarter more for a small message
            length = frame_length(data, pos)
            if length == 0 or pos + length > size:
                break
            self.frame(data, pos)
            pos += length
        self._rest = data[pos:]
        if self._out:
            self.write(b"".join(self._out))
            self._out.clear()

    def frame(self, data: bytes, pos: int) -> None:
        """Handle the whole frame that begins at ``pos``."""
        if data[pos] >> 4 == DISCONNECT:  # without a body its reason is 0
            reason = data[body_start(data, pos)] if data[pos + 1] else 0
            self._lost(ConnectionLost(f"the server closed a connection: {reason_name(reason)}", reason))

    def write(self, data: bytes) -> None:
        if self.link is not None:
            self.link.write(data)


class Publisher(Peer):
    """Sends time-stamped messages to one topic, at most ``inflight`` of them unacknowledged."""

    def __init__(self, client: Client, lost: Callable[[Exception], None], load: Load, topic: str) -> None:
        super().__init__(client, load.qos, lost)
        self.topic = topic
        self.sent = 0
        self.acknowledged = 0
        self.running = False
        self._paced = load.rate > 0
        self.due: deque[int] = deque()  # planned times of messages that could not be sent yet
        self._free: deque[bytes] = deque()
        self._inflight = load.inflight
        payload = bytes(max(load.size, STAMP))
        version = client.state.options.version
        whole = publish_frame(topic.encode(), payload, load.qos, load.retain, False, 1, version, b"")
        head = len(whole) - len(payload)
        # before the packet id, between packet id and stamp (the empty property section), after the stamp
        gap = (3 if self.modern else 2) if load.qos else 0
        self._head = whole[: head - gap]
        self._middle = whole[head - gap + 2 : head] if load.qos else b""
        self._tail = payload[STAMP:]
        self._per_batch = max(1, BATCH_BYTES // len(whole))

    def start(self) -> None:
        window = min(self._inflight, self.told(RECEIVE_MAXIMUM, 65_535))
        self._free.extend(number.to_bytes(2) for number in range(1, window + 1))
        self.running = True
        assert self.link is not None
        self.link.on_writable = self.pump
        self.pump()

    def pump(self) -> None:
        """Send as far as the inflight window allows: the messages that are due, or without a rate any number."""
        if not self.running or self.link is None or not self.link.writable:
            return
        frames: list[bytes] = []
        if self._paced:
            while self.due and (self._free or not self._qos):
                packet_id = self._free.popleft() if self._qos else b""
                stamp = self.due.popleft().to_bytes(STAMP)
                frames.append(b"%b%b%b%b%b" % (self._head, packet_id, self._middle, stamp, self._tail))
        else:
            rest = self._middle + time.monotonic_ns().to_bytes(STAMP) + self._tail
            if self._qos:
                frames = [self._head + packet_id + rest for packet_id in self._free]
                self._free.clear()
            else:
                frames = [self._head + rest] * self._per_batch
        if frames:
            self.sent += len(frames)
            self.link.write(b"".join(frames))
        if not self._paced and not self._qos and self.link.writable:  # in the next turn: other connections have theirs
            asyncio.get_running_loop().call_soon(self.pump)

    def frame(self, data: bytes, pos: int) -> None:
        kind = data[pos] >> 4
        if kind in (PUBACK, PUBCOMP):
            at = body_start(data, pos)
            self._free.append(data[at : at + 2])
            self.acknowledged += 1
        elif kind == PUBREC:
            at = body_start(data, pos)
            self._out.append(b"\x62\x02" + data[at : at + 2])  # PUBREL
        else:
            super().frame(data, pos)

    def link_received(self, data: bytes) -> None:
        super().link_received(data)
        if self._qos:
            self.pump()


class BenchSubscriber(Peer):
    """Acknowledges received messages and counts them by their latency."""

    def __init__(self, client: Client, lost: Callable[[Exception], None], load: Load, latencies: Counter[int]) -> None:
        super().__init__(client, load.qos, lost)
        self._latencies = latencies
        self._now = 0

    def link_received(self, data: bytes) -> None:
        self._now = time.monotonic_ns()
        super().link_received(data)

    def frame(self, data: bytes, pos: int) -> None:
        first = data[pos]
        if first >> 4 == PUBLISH:
            at = body_start(data, pos)
            at += 2 + (data[at] << 8 | data[at + 1])
            qos = first >> 1 & 3
            if qos:  # PUBACK, PUBREC
                self._out.append((b"\x40\x02" if qos == 1 else b"\x50\x02") + data[at : at + 2])
                at += 2
            if self.modern:
                length, at = decode_varint(data, at, len(data))
                at += length
            stamp = int.from_bytes(data[at : at + STAMP])
            self._latencies[bucket(max(0, (self._now - stamp) // 1000))] += 1
        elif first >> 4 == PUBREL:
            at = body_start(data, pos)
            self._out.append(b"\x70\x02" + data[at : at + 2])  # PUBCOMP
        else:
            super().frame(data, pos)


class BenchWorker:
    """All connections of this process. The parent sends ``go``, ``stop`` (publishing) and ``end`` through the pipe."""

    def __init__(self, load: Load, pipe: Pipe) -> None:
        self._load = load
        self._pipe = pipe
        self._failed: Exception | None = None
        self._phase = "running"
        self._orders: asyncio.Queue[str] = asyncio.Queue()
        self._latencies: Counter[int] = Counter()
        self._publishers = [
            Publisher(load.client(name), self._fail, load, topic) for name, topic in load.publishers.items()
        ]
        self._subscribers = [
            BenchSubscriber(load.client(name), self._fail, load, self._latencies) for name in load.subscribers
        ]
        self._peers: list[Peer] = [*self._publishers, *self._subscribers]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._order)
        try:
            await self._open_all()
            self._pipe.send(self._report("ready"))
            if await self._orders.get() == "go":
                await self._publish()
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            self._pipe.send(Report(state="failed", error=str(error) or "the server did not answer in time"))
        finally:
            loop.remove_reader(self._pipe.fileno())

    def _order(self) -> None:
        try:
            self._orders.put_nowait(self._pipe.recv())
        except EOFError:  # the parent has ended
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._orders.put_nowait("end")
            self._orders.put_nowait("end")

    def _fail(self, error: Exception) -> None:
        self._failed = self._failed or error

    async def _open_all(self) -> None:
        gate = asyncio.Semaphore(CONNECTING_MAX)

        async def open_one(peer: Peer, filter: str) -> None:
            async with gate:
                await peer.open(filter)

        # Subscribers first: messages published before they subscribe would count as lost.
        subscribers = zip(self._subscribers, self._load.subscribers.values(), strict=True)
        await asyncio.gather(*[open_one(peer, filter) for peer, filter in subscribers])
        await asyncio.gather(*[open_one(peer, "") for peer in self._publishers])

    async def _publish(self) -> None:
        for publisher in self._publishers:
            publisher.start()
        tasks = [asyncio.create_task(self._report_often()), asyncio.create_task(self._ping())]
        if self._load.rate > 0 and self._publishers:
            tasks.append(asyncio.create_task(self._keep_pace()))
        while (order := await self._orders.get()) != "end":
            if order == "stop":
                self._phase = "stopped"
                for publisher in self._publishers:
                    publisher.running = False
                self._pipe.send(self._report(self._phase))
        for task in tasks:
            task.cancel()
        for peer in self._peers:
            peer.write(b"\xe0\x00")  # DISCONNECT
            if peer.link is not None:
                peer.link.close()
        self._pipe.send(self._report("ended"))

    async def _keep_pace(self) -> None:
        """Assign the planned times to the publishers, round-robin."""
        started = time.monotonic_ns()
        step = 1e9 / self._load.rate
        planned = 0
        while self._publishers[0].running:
            until = int((time.monotonic_ns() - started) / step) + 1  # the first message is due at the start
            for number in range(planned, until):
                self._publishers[number % len(self._publishers)].due.append(started + int(number * step))
            planned = max(planned, until)
            for publisher in self._publishers:
                publisher.pump()
            await asyncio.sleep(TICK)

    async def _ping(self) -> None:
        """Send PINGREQ: a server may require a keep-alive although the client requests none."""
        limits = [limit for peer in self._peers if (limit := peer.told(SERVER_KEEP_ALIVE, 0))]
        while limits:
            await asyncio.sleep(min(limits) * 0.7)
            for peer in self._peers:
                peer.write(PINGREQ)

    async def _report_often(self) -> None:
        while True:
            self._pipe.send(self._report(self._phase))
            await asyncio.sleep(REPORT)

    def _report(self, state: str) -> Report:
        report = Report(state=state, at=time.monotonic(), cpu=time.process_time(), latencies=self._latencies)
        if self._failed is not None:
            report.state, report.error = "failed", str(self._failed)
        for publisher in self._publishers:
            report.sent[publisher.topic] += publisher.sent
            report.acknowledged += publisher.acknowledged
        return report


def work(load: Load, pipe: Pipe) -> None:
    """The main function of a load process."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    # Ctrl-C reaches the parent too, which reports it; a parent that has ended cannot receive a report.
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(BenchWorker(load, pipe).run())
    pipe.close()
