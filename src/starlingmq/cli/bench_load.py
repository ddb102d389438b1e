"""One load process of ``starlingmq bench``: opens its share of the connections, publishes, and counts.

The generator must not be the bottleneck. The client state machine opens a connection; after that its frames are encoded
once (only packet id and time stamp are inserted), written in batches, and parsed in place. Every payload begins with
its due time, in nanoseconds of the system's monotonic clock, which all processes of one machine share; at a given rate
that is the planned time, so that the latency includes the wait that a stalled broker causes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Final

from starlingmq.cli.bench_stats import bucket
from starlingmq.client.client_frames import body_start
from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Tls, parse_url
from starlingmq.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    SubscribeFailed,
    reason_name,
)
from starlingmq.client.events import Completed, Connected, Ended, Event, Refused
from starlingmq.client.link import Link
from starlingmq.client.options import QOS, ConnectOptions, Subscription
from starlingmq.client.state import ClientState
from starlingmq.wire.mqtt import frame_length, publish_frame
from starlingmq.wire.primitives import decode_varint
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SERVER_KEEP_ALIVE

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
    options: list[ConnectOptions]  # one per connection, publishers first
    publish_to: list[str]  # one topic per publisher
    subscribe_to: list[str]  # one filter per subscriber
    qos: int
    retain: bool
    size: int
    rate: float
    inflight: int


@dataclass(slots=True, kw_only=True)
class Report:
    """Counts since the start. ``sent`` is per topic; ``at`` in seconds of the monotonic clock, ``cpu`` in seconds."""

    state: str
    error: str = ""
    at: float = 0.0
    cpu: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    received: int = 0
    latencies: dict[int, int] = field(default_factory=dict)


class Peer:
    """One connection: the client state machine opens it, then ``frame`` handles its input."""

    def __init__(self, options: ConnectOptions, lost: Callable[[Exception], None]) -> None:
        self._state = ClientState(options)
        self._lost = lost
        self._opening: asyncio.Future[None] | None = None
        self._rest = b""
        self._out: list[bytes] = []
        self.link: Link | None = None
        self.modern = options.version == 5
        self.receive_maximum = 65_535
        self.keep_alive = 0

    async def open(self, load: Load, filter: str = "") -> None:
        """Connect, and subscribe to ``filter`` if there is one. Raises ClientError."""
        loop = asyncio.get_running_loop()
        self._opening = loop.create_future()
        async with asyncio.timeout(self._state.options.connect_timeout):
            self.link = await open_link(parse_url(load.url), load.tls, self)
            self._state.connection_made(loop.time())
            if filter:
                self._state.subscribe([Subscription(filter=filter, qos=QOS[load.qos])])
            self.link.write(self._state.take(loop.time()))
            await self._opening
        self._opening = None

    def link_lost(self, link: Link, error: Exception | None) -> None:
        why = ConnectionLost(f"connection lost{(f': {error}' if error else '')}")
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(why)
        elif self._opening is None:
            self._lost(why)

    def link_received(self, data: bytes) -> None:
        if self._opening is not None and not self._opening.done():
            self._greet(data)
            return
        if self._rest:
            data = self._rest + data
        pos, size = 0, len(data)
        while pos < size:
            length = frame_length(data, pos)
            if length == 0 or pos + length > size:
                break
            self.frame(data, pos)
            pos += length
        self._rest = data[pos:]
        self.turn_over()

    def _greet(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        for event in self._state.receive(data, loop.time()):
            self._on_event(event)
        reply = self._state.take(loop.time())
        if reply and self.link is not None:
            self.link.write(reply)
        if self._opening is not None and not self._opening.done() and not self._state.unanswered:
            self._opening.set_result(None)

    def _on_event(self, event: Event) -> None:
        assert self._opening is not None
        problem: ClientError | None = None
        if isinstance(event, Connected):
            self.receive_maximum = _number(event.properties.get(RECEIVE_MAXIMUM), 65_535)
            self.keep_alive = _number(event.properties.get(SERVER_KEEP_ALIVE), self._state.options.keep_alive)
        elif isinstance(event, Refused):
            problem = ConnectRefused(event.reason, event.properties)
        elif isinstance(event, Ended):
            problem = ConnectFailed(event.detail, event.reason)
        elif isinstance(event, Completed) and event.reasons[0] >= 0x80:
            problem = SubscribeFailed(["the bench topic"], event.reasons)
        if problem is not None and not self._opening.done():
            self._opening.set_exception(problem)

    def frame(self, data: bytes, pos: int) -> None:
        """Handle the whole frame that begins at ``pos``."""
        if data[pos] >> 4 == 14:  # without a body its reason is 0
            reason = data[body_start(data, pos)] if data[pos + 1] else 0
            self._lost(ConnectionLost(f"the server closed a connection: {reason_name(reason)}", reason))

    def turn_over(self) -> None:
        """Called after all frames of one read."""

    def write(self, data: bytes) -> None:
        if self.link is not None:
            self.link.write(data)


class Publisher(Peer):
    """Sends time-stamped messages to one topic, at most ``inflight`` of them unacknowledged."""

    def __init__(self, options: ConnectOptions, lost: Callable[[Exception], None], load: Load, topic: str) -> None:
        super().__init__(options, lost)
        self.topic = topic
        self.sent = 0
        self.acknowledged = 0
        self.running = False
        self._qos = load.qos
        self._paced = load.rate > 0
        self._due: deque[int] = deque()  # planned times of messages that could not be sent yet
        self._free: deque[bytes] = deque()
        self._inflight = load.inflight
        payload = bytes(max(load.size, STAMP))
        whole = publish_frame(topic.encode(), payload, load.qos, load.retain, False, 1, options.version, b"")
        head = len(whole) - len(payload)
        # before the packet id, between packet id and stamp (the empty property section), after the stamp
        gap = (3 if self.modern else 2) if load.qos else 0
        self._head = whole[: head - gap]
        self._middle = whole[head - gap + 2 : head] if load.qos else b""
        self._tail = payload[STAMP:]
        self._per_batch = max(1, BATCH_BYTES // len(whole))

    def start(self) -> None:
        self._free.extend(number.to_bytes(2) for number in range(1, min(self._inflight, self.receive_maximum) + 1))
        self.running = True
        if not self._paced:
            self.pump()

    def due(self, stamp: int) -> None:
        """Add a message that is due at ``stamp``."""
        self._due.append(stamp)

    def pump(self) -> None:
        """Send due messages as far as the inflight window allows."""
        if not self.running or self.link is None or not self.link.writable:
            return
        if self._paced:
            self._pump_due()
        elif self._qos:
            self._pump_window()
        else:
            self._pump_freely()

    def _pump_freely(self) -> None:
        """QoS 0: write one batch per turn of the loop while the socket accepts it, so that other connections get their
        turn.
        """
        frame = self._head + time.monotonic_ns().to_bytes(STAMP) + self._tail
        self.write(frame * self._per_batch)
        self.sent += self._per_batch
        assert self.link is not None
        if self.link.writable:
            asyncio.get_running_loop().call_soon(self.pump)

    def _pump_window(self) -> None:
        if not self._free:
            return
        stamp = time.monotonic_ns().to_bytes(STAMP)
        rest = self._middle + stamp + self._tail
        self.write(b"".join([self._head + packet_id + rest for packet_id in self._free]))
        self.sent += len(self._free)
        self._free.clear()

    def _pump_due(self) -> None:
        frames: list[bytes] = []
        while self._due and (self._free or not self._qos):
            packet_id = self._free.popleft() if self._qos else b""
            stamp = self._due.popleft().to_bytes(STAMP)
            frames.append(b"%b%b%b%b%b" % (self._head, packet_id, self._middle, stamp, self._tail))
        if frames:
            self.sent += len(frames)
            self.write(b"".join(frames))

    def frame(self, data: bytes, pos: int) -> None:
        kind = data[pos] >> 4
        if kind == 5:  # PUBREC
            at = body_start(data, pos)
            self._out.append(b"\x62\x02" + data[at : at + 2])
        elif kind in (4, 7):  # PUBACK, PUBCOMP
            at = body_start(data, pos)
            self._free.append(data[at : at + 2])
            self.acknowledged += 1
        else:
            super().frame(data, pos)

    def turn_over(self) -> None:
        if self._out:
            self.write(b"".join(self._out))
            self._out.clear()
        if self._free:
            self.pump()


class BenchSubscriber(Peer):
    """Counts and acknowledges received messages and records their latency."""

    def __init__(self, options: ConnectOptions, lost: Callable[[Exception], None]) -> None:
        super().__init__(options, lost)
        self.received = 0
        self.latencies: dict[int, int] = {}
        self._now = 0

    def link_received(self, data: bytes) -> None:
        self._now = time.monotonic_ns()
        super().link_received(data)

    def frame(self, data: bytes, pos: int) -> None:
        first = data[pos]
        kind = first >> 4
        if kind == 3:
            at = body_start(data, pos)
            at += 2 + (data[at] << 8 | data[at + 1])
            qos = first >> 1 & 3
            if qos:
                self._out.append((b"\x40\x02" if qos == 1 else b"\x50\x02") + data[at : at + 2])
                at += 2
            if self.modern:
                length, at = decode_varint(data, at, len(data))
                at += length
            self._count(int.from_bytes(data[at : at + STAMP]))
        elif kind == 6:  # PUBREL
            at = body_start(data, pos)
            self._out.append(b"\x70\x02" + data[at : at + 2])
        else:
            super().frame(data, pos)

    def _count(self, stamp: int) -> None:
        self.received += 1
        index = bucket(max(0, (self._now - stamp) // 1000))
        self.latencies[index] = self.latencies.get(index, 0) + 1

    def turn_over(self) -> None:
        if self._out:
            self.write(b"".join(self._out))
            self._out.clear()


class BenchWorker:
    """All connections of this process. The parent sends ``go``, ``stop`` (publishing) and ``end`` through the pipe."""

    def __init__(self, load: Load, pipe: Pipe) -> None:
        self._load = load
        self._pipe = pipe
        self._failed: Exception | None = None
        self._phase = "running"
        self._orders: asyncio.Queue[str] = asyncio.Queue()
        count = len(load.publish_to)
        self._publishers = [
            Publisher(options, self._fail, load, topic)
            for options, topic in zip(load.options[:count], load.publish_to, strict=True)
        ]
        self._subscribers = [BenchSubscriber(options, self._fail) for options in load.options[count:]]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._order)
        try:
            await self._open_all()
            self._pipe.send(self._report("ready"))
            if await self._orders.get() == "go":
                await self._publish()
        except (ClientError, OSError, TimeoutError) as error:
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
        if self._failed is None:
            self._failed = error

    async def _open_all(self) -> None:
        gate = asyncio.Semaphore(CONNECTING_MAX)

        async def open_one(peer: Peer, filter: str) -> None:
            async with gate:
                await peer.open(self._load, filter)

        # Subscribers first: messages published before they subscribe would count as lost.
        subscribers = zip(self._subscribers, self._load.subscribe_to, strict=True)
        await asyncio.gather(*[open_one(peer, filter) for peer, filter in subscribers])
        await asyncio.gather(*[open_one(peer, "") for peer in self._publishers])

    async def _publish(self) -> None:
        for publisher in self._publishers:
            assert publisher.link is not None
            publisher.link.on_writable = publisher.pump
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
        for peer in [*self._publishers, *self._subscribers]:
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
                self._publishers[number % len(self._publishers)].due(started + int(number * step))
            planned = max(planned, until)
            for publisher in self._publishers:
                publisher.pump()
            await asyncio.sleep(TICK)

    async def _ping(self) -> None:
        """Send PINGREQ: a server may require a keep-alive although the client requests none."""
        limits = [peer.keep_alive for peer in [*self._publishers, *self._subscribers] if peer.keep_alive]
        while limits:
            await asyncio.sleep(min(limits) * 0.7)
            for peer in [*self._publishers, *self._subscribers]:
                peer.write(PINGREQ)

    async def _report_often(self) -> None:
        while True:
            self._pipe.send(self._report(self._phase))
            await asyncio.sleep(REPORT)

    def _report(self, state: str) -> Report:
        report = Report(state=state, at=time.monotonic(), cpu=time.process_time())
        if self._failed is not None:
            report.state, report.error = "failed", str(self._failed)
        for publisher in self._publishers:
            report.sent[publisher.topic] = report.sent.get(publisher.topic, 0) + publisher.sent
            report.acknowledged += publisher.acknowledged
        for subscriber in self._subscribers:
            report.received += subscriber.received
            for index, count in subscriber.latencies.items():
                report.latencies[index] = report.latencies.get(index, 0) + count
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


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) else default
