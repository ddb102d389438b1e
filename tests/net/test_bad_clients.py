"""Hostile or faulty clients on a whole broker over real sockets do not affect other clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from tests.few import few
from tests.patience import slowness, within
from tests.peer import PATIENCE, Peer

from starlingmq import Broker
from starlingmq.config.settings import from_tree
from starlingmq.core.broker import TURNED_AWAY
from starlingmq.core.context.ready import Notice
from starlingmq.net.listeners.connection_counts import ADDRESS_TURNED_AWAY
from starlingmq.node.connection_log import NoticeLog
from starlingmq.wire import properties as prop
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Packet, Pingreq, Pingresp, Publish, encode
from starlingmq.wire.reasons import Reason

KIB = 1024
TICK = 0.25  # seconds: the grain of the broker's timers

Serve = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a broker whose sections are given by name."""
    async with AsyncExitStack() as stack:

        async def start(**sections: Any) -> Broker:
            tree = {"listeners": ["mqtt://127.0.0.1:0"], "node": {"shutdown_timeout": 0.0}, **sections}
            return await stack.enter_async_context(Broker(from_tree(tree)))

        yield start


class Pair:
    """Two well-behaved clients on the same broker."""

    def __init__(self, peers: list[Peer]) -> None:
        self.peers = peers

    @classmethod
    async def meet(cls, broker: Broker) -> Pair:
        peers = [await Peer.connect(broker.address(), f"sane {version}", version) for version in (4, 5)]
        for peer in peers:
            assert await peer.subscribe("sane", qos=1) == [1]
        return cls(peers)

    async def works(self) -> None:
        for number, peer in enumerate(self.peers):
            payload = b"%d" % number
            assert await peer.publish("sane", payload) == 0
            assert [(await other.message()).payload for other in self.peers] == [payload, payload]

    async def leave(self) -> None:
        for peer in self.peers:
            await peer.close()


@pytest.fixture
async def meet() -> AsyncIterator[Callable[[Broker], Awaitable[Pair]]]:
    pairs: list[Pair] = []

    async def start(broker: Broker) -> Pair:
        pairs.append(await Pair.meet(broker))
        return pairs[-1]

    yield start
    for pair in pairs:
        await pair.leave()


Meet = Callable[[Broker], Awaitable[Pair]]


def errors(broker: Broker) -> dict[str, int]:
    return broker.state.ctx.counters.errors


async def until(met: Callable[[], bool]) -> None:
    """Run the event loop until a condition is met."""
    async with within(PATIENCE):
        while not met():
            await asyncio.sleep(0)


# Clients that do not complete CONNECT


@pytest.mark.parametrize("version", [4, 5])
async def test_a_connect_byte_by_byte_runs_out_of_time(serve: Serve, meet: Meet, version: int) -> None:
    broker = await serve(mqtt={"connect_timeout": 0.1})
    pair = await meet(broker)
    slow = await Peer.open(broker.address(), version)
    began = asyncio.get_running_loop().time()
    data = encode(Connect(version, "x" * 1000), version)
    for at in range(len(data)):
        slow.send(data[at : at + 1])
        with suppress(TimeoutError):
            with suppress(ConnectionResetError):  # a byte that was on its way when the broker closed
                assert await asyncio.wait_for(slow.reader.read(1), 0.02) == b""
            break
    taken = asyncio.get_running_loop().time() - began
    assert 0.1 <= taken < 0.1 + 2 * TICK + 1.0
    assert errors(broker) == {"connect_timeout": 1}
    await pair.works()
    await slow.close()


async def test_a_missing_or_incomplete_connect_times_out(serve: Serve, meet: Meet) -> None:
    broker = await serve(mqtt={"connect_timeout": 0.1})
    pair = await meet(broker)
    openings = [b"", b"\x10", b"\x10\x80\x80", encode(Connect(5, "c"), 5)[:-1]]
    silent = [await Peer.open(broker.address()) for _ in openings]
    for peer, opening in zip(silent, openings, strict=True):
        peer.send(opening)
    for peer in silent:
        await peer.ended()
        await peer.close()
    assert errors(broker) == {"connect_timeout": len(openings)}
    await pair.works()


async def test_a_half_closed_connection_counts_as_closed(serve: Serve, meet: Meet) -> None:
    broker = await serve()
    pair = await meet(broker)
    for opening in (b"", b"\x10\x20", encode(Connect(5, "half"), 5)):
        peer = await Peer.open(broker.address())
        peer.send(opening)
        peer.writer.write_eof()
        async with within(PATIENCE):
            await peer.reader.read()
        await peer.close()
    await until(lambda: broker.state.ctx.counters.connections_open == 2)
    assert sorted(broker.state.ctx.sessions) == ["sane 4", "sane 5"]
    assert errors(broker) == {}
    await pair.works()


# Clients that send too much


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_packet_that_is_too_large_is_refused_at_its_header(serve: Serve, meet: Meet, version: int) -> None:
    broker = await serve(limits={"max_packet_size": "2KiB"})
    pair = await meet(broker)
    peer = await Peer.connect(broker.address(), "big", version)
    peer.send(encode(Publish(b"sane", bytes(1000)), version))  # still allowed
    for other in pair.peers:
        assert len((await other.message()).payload) == 1000
    peer.send(b"\x30\xff\xff\x03\0\4sane")  # of 64 KiB that never arrive
    if version == 5:
        assert (await peer.expect(Disconnect)).reason == Reason.PACKET_TOO_LARGE
    await peer.ended()
    assert errors(broker) == {"packet_too_large": 1}
    await pair.works()
    await peer.close()


async def test_a_connect_that_is_too_large_is_refused_at_its_header(serve: Serve, meet: Meet) -> None:
    broker = await serve(limits={"max_packet_size": "2KiB"})
    pair = await meet(broker)
    for head in (b"\x10\xff\xff\x03", b"\x10\xff\xff\xff\x7f", b"\x10\xff\xff\xff\xff\x01"):
        peer = await Peer.open(broker.address())
        peer.send(head)
        await peer.ended()
        await peer.close()
    assert errors(broker) == {"packet_too_large": 2, "malformed_packet": 1}
    await pair.works()


async def test_noise_is_refused(serve: Serve, meet: Meet) -> None:
    broker = await serve()
    pair = await meet(broker)
    for noise in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200),
        bytes(64),
    ):
        peer = await Peer.open(broker.address())
        peer.send(noise)
        async with within(PATIENCE):
            assert await peer.reader.read() == b""
        await peer.close()
    assert sum(errors(broker).values()) == 3
    await pair.works()


# Clients that do not read


def deaf_socket(broker: Broker) -> socket.socket:
    """Return a connection with a small receive buffer."""
    host, _, port = broker.address().removeprefix("mqtt://").rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    sock.setblocking(False)
    return sock


async def deaf_peer(broker: Broker, version: int, client_id: str) -> Peer:
    """Return a connected client that reads only its CONNACK, and more on request."""
    reader, writer = await asyncio.open_connection(sock=deaf_socket(broker), limit=KIB)
    peer = Peer(reader, writer, version)
    peer.send(Connect(version, client_id, True))
    assert (await peer.expect(Connack)).reason == 0
    return peer


def waiting_to_be_written(broker: Broker, client_id: str) -> int:
    """Bytes that the transport of a client holds."""
    client = broker.state.ctx.sessions[client_id].client
    return 0 if client is None or client.transport is None else int(client.transport.get_write_buffer_size())


@pytest.mark.parametrize("qos", few([0, 1, 2], 1))
@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_that_never_reads_costs_bounded_memory_and_no_other_client(
    serve: Serve, meet: Meet, version: int, qos: int
) -> None:
    size, number, hold = 8 * KIB, 1000, 0.1
    broker = await serve(
        limits={"write_buffer": 64 * KIB, "publisher_hold": hold},
        mqtt={"max_mqueue_len": 50, "max_inflight": 50 if qos else 0},
    )
    pair = await meet(broker)
    deaf = await deaf_peer(broker, version, "deaf")
    assert await deaf.subscribe("news", qos=qos) == [qos]
    reader = await Peer.connect(broker.address(), "reader")
    await reader.subscribe("news")
    publisher = await Peer.connect(broker.address(), "publisher")
    largest = 0
    began = asyncio.get_running_loop().time()

    async def read_all() -> list[bytes]:
        return [(await reader.expect(Publish)).payload[:4] for _ in range(number)]

    reading = asyncio.create_task(read_all())
    for index in range(number):
        publisher.send(Publish(b"news", index.to_bytes(4) + bytes(size - 4), min(qos, 1), packet_id=1 if qos else 0))
        await publisher.writer.drain()
        largest = max(largest, waiting_to_be_written(broker, "deaf"))
    assert await asyncio.wait_for(reading, PATIENCE * slowness()) == [index.to_bytes(4) for index in range(number)]
    assert asyncio.get_running_loop().time() - began < hold + 2 * TICK + 5.0, "held more than once"
    largest = max(largest, waiting_to_be_written(broker, "deaf"))
    assert largest <= 2 * (64 * KIB + size)
    session = broker.state.ctx.sessions["deaf"]
    assert session.queue is not None
    assert len(session.queue) <= 50
    assert session.dropped > number // 2
    assert broker.state.ctx.counters.dropped == {"queue_full": session.dropped}
    await pair.works()
    # The client reads again: all messages that were not dropped arrive, in order.
    got = (
        [int.from_bytes((await deaf.message()).payload[:4]) for _ in range(number - session.dropped)] if qos < 2 else []
    )
    assert got == sorted(got)
    if qos < 2:
        assert got[-1] == number - 1
    for peer in (deaf, reader, publisher):
        await peer.close()


@pytest.mark.parametrize("packet", [Pingreq(), Publish(b"nobody", b"", 1, packet_id=1)], ids=["PINGREQ", "PUBLISH"])
async def test_a_client_that_never_reads_is_not_read(serve: Serve, meet: Meet, packet: Packet) -> None:
    broker = await serve(limits={"write_buffer": 16 * KIB})
    pair = await meet(broker)
    deaf = await deaf_peer(broker, 5, "deaf")
    flood = encode(packet, 5) * 4000
    largest = 0
    for _ in range(2000):
        deaf.writer.write(flood)
        try:
            await asyncio.wait_for(deaf.writer.drain(), 0.2)
        except TimeoutError:
            break
        largest = max(largest, waiting_to_be_written(broker, "deaf"))
    else:
        pytest.fail("the broker takes everything")
    assert largest <= 2 * 16 * KIB + 256 * KIB  # the limit twice, and the answers to one read
    await pair.works()
    deaf.abort()
    await until(lambda: broker.state.ctx.counters.connections_open == 2)
    await pair.works()


async def test_a_client_that_reads_again_is_read_again(serve: Serve) -> None:
    broker = await serve(limits={"write_buffer": 16 * KIB})
    peer = await deaf_peer(broker, 4, "deaf")
    number = 400_000
    peer.send(encode(Pingreq(), 4) * number)
    await until(lambda: broker.state.ctx.sessions["deaf"].client is not None)
    answers = await asyncio.wait_for(peer.reader.readexactly(2 * number), PATIENCE * slowness())
    assert answers == encode(Pingresp(), 4) * number
    await peer.close()


# Too many connections


@pytest.mark.parametrize(("version", "code"), [(3, 3), (4, 3), (5, Reason.SERVER_BUSY)])
async def test_a_flood_of_connections_is_told_to_come_later(serve: Serve, meet: Meet, version: int, code: int) -> None:
    broker = await serve(limits={"max_connections": 5})
    pair = await meet(broker)
    inside = [await Peer.connect(broker.address(), f"in {number}", version) for number in range(3)]
    for number in range(20):
        peer = await Peer.open(broker.address(), version)
        peer.send(Connect(version, f"out {number}", True))
        connack = await peer.expect(Connack)
        assert connack.reason == code
        await peer.ended()
        await peer.close()
    assert errors(broker) == {"max_connections": 20}
    await pair.works()
    await inside.pop().close()
    await until(lambda: broker.state.ctx.counters.connections_open == 4)
    inside.append(await Peer.connect(broker.address(), "in at last", version))
    for peer in inside:
        await peer.close()


async def test_not_even_waiting_to_be_turned_away_is_without_bound(serve: Serve, meet: Meet) -> None:
    broker = await serve(limits={"max_connections": 2})
    pair = await meet(broker)
    counters = broker.state.ctx.counters
    waiting = [await Peer.open(broker.address()) for _ in range(TURNED_AWAY)]
    await until(lambda: counters.connections_open == 2 + TURNED_AWAY)
    for _ in range(10):
        peer = await Peer.open(broker.address())
        await peer.ended()
        await peer.close()
    assert errors(broker) == {"max_connections": 10}
    await pair.works()
    for peer in waiting:
        await peer.close()


async def test_a_client_that_is_turned_away_takes_nothing_over(serve: Serve) -> None:
    broker = await serve(limits={"max_connections": 1})
    first = await Peer.connect(broker.address(), "same id")
    second = await Peer.open(broker.address())
    second.send(Connect(client_id="same id"))
    assert (await second.expect(Connack)).reason == Reason.SERVER_BUSY
    await second.ended()
    assert await first.subscribe("t") == [0]
    for peer in (first, second):
        await peer.close()


@pytest.mark.parametrize(
    ("listener", "limits", "code", "reason", "setting"),
    [
        ({"max_connections": 2}, {}, 0x89, "listener_max_connections", "listeners[].max_connections"),
        ({}, {"connections_per_address": 2}, 0x97, "connections_per_address", "limits.connections_per_address"),
        ({}, {"max_connections": 2}, 0x89, "max_connections", "limits.max_connections"),
    ],
)
async def test_each_limit_of_connections_is_named_in_connack_counters_and_log(
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    listener: dict[str, int],
    limits: dict[str, int],
    code: int,
    reason: str,
    setting: str,
) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    broker = await serve(listeners=[{"url": "mqtt://127.0.0.1:0", **listener}], limits=limits)
    pair = await Pair.meet(broker)
    late = await Peer.open(broker.address())
    late.send(Connect(client_id="late"))
    connack = await late.expect(Connack)
    assert connack.reason == code and setting in str(connack.properties[prop.REASON_STRING])
    await late.ended()
    assert errors(broker) == {reason: 1}
    assert f"({setting}) ({reason})" in caplog.text and "of client 'late'" in caplog.text
    await pair.works()
    for peer in (late, *pair.peers):
        await peer.close()


async def test_a_listener_far_beyond_its_limit_hangs_up_at_once(serve: Serve) -> None:
    broker = await serve(listeners=[{"url": "mqtt://127.0.0.1:0", "max_connections": 2}])
    pair = await Pair.meet(broker)
    waiting = [await Peer.open(broker.address()) for _ in range(ADDRESS_TURNED_AWAY)]
    await until(lambda: broker.state.ctx.counters.connections_open == 2 + ADDRESS_TURNED_AWAY)
    late = await Peer.open(broker.address())
    with suppress(ConnectionError):
        await late.ended()
    await pair.works()
    for peer in (late, *waiting, *pair.peers):
        await peer.close()


# The log


async def test_log_lines_about_bad_clients_are_bounded(
    serve: Serve, meet: Meet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    broker = await serve(limits={"log_rate": 2})
    pair = await meet(broker)
    for number in range(100):
        peer = await Peer.connect(broker.address(), f"bad\n{number}", 5)
        peer.send(b"\x30\x00")
        assert (await peer.expect(Disconnect)).reason == Reason.MALFORMED_PACKET
        await peer.close()
    lines = [record.getMessage() for record in caplog.records]
    assert errors(broker) == {"malformed_packet": 100}
    assert 2 <= len(lines) <= 40
    assert lines[0].endswith("(malformed_packet)")
    assert r"client 'bad\n0'" in lines[0]
    assert not any("\n" in line for line in lines)
    await pair.works()


class HandTimer:
    def __init__(self, delay: float, call: Callable[[], None]) -> None:
        self.delay = delay
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """Timers that fire on request."""

    def __init__(self) -> None:
        self.waiting: list[HandTimer] = []

    def later(self, delay: float, call: Callable[[], None]) -> HandTimer:
        self.waiting.append(HandTimer(delay, call))
        return self.waiting[-1]


def test_every_reason_has_lines_of_its_own_and_what_is_left_out_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    now = 0.0
    timers = Timers()
    notices = NoticeLog(2, lambda: now, timers.later)
    for reason in ["one"] * 10 + ["two"]:
        notices.add(Notice(reason, "c", "peer:1", "detail"))
    assert len(caplog.records) == 3
    now = 1.0
    notices.add(Notice("one", "c", "peer:1", "detail"))
    assert [record.getMessage() for record in caplog.records[3:]] == [
        "one: 8 more connections were closed for this reason",
        "closed peer:1 of client 'c': detail (one)",
    ]
    for _ in range(20):
        NoticeLog(0, lambda: now, timers.later).add(Notice("one", "c", "peer:1", "detail"))
    assert len(caplog.records) == 25


def test_a_notice_about_a_continuing_connection_does_not_say_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    notices = NoticeLog(1, lambda: 0.0, Timers().later)
    for _ in range(3):
        notices.add(Notice("pubrel_unknown", "c", "peer:1", "PUBREL 7 is unknown", closing=False))
    notices.flush()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "peer:1 of client 'c': PUBREL 7 is unknown (pubrel_unknown)"),
        ("WARNING", "pubrel_unknown: 2 more log lines about connections that stay open were suppressed"),
    ]


def test_the_end_of_a_flood_is_counted_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    timers = Timers()
    notices = NoticeLog(2, lambda: 0.0, timers.later)
    for _ in range(10):
        notices.add(Notice("one", "c", "peer:1", "detail"))
    (timer,) = timers.waiting  # one for all suppressed lines
    assert timer.delay == 1.0
    timer.call()
    assert caplog.records[-1].getMessage() == "one: 8 more connections were closed for this reason"
    timer.call()
    assert len(caplog.records) == 3
    notices.add(Notice("one", "c", "peer:1", "detail"))
    assert timers.waiting[0].cancelled
    notices.flush()  # the broker stops
    assert caplog.records[-1].getMessage() == "one: 1 more connections were closed for this reason"
    assert timers.waiting[1].cancelled
