"""The event loop that reads and writes the clients' plain sockets itself: each case with real sockets."""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.patience import slowness, within

from starlingmq.config.settings import LimitsConfig, ListenerConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.net.client_socket import READ_MOST, ClientSocket
from starlingmq.net.client_sockets import EVENTS_MANY
from starlingmq.net.driver import Driver
from starlingmq.net.listeners.listeners import Listener, open_listener, parse_listener
from starlingmq.storage.store import NoStore
from starlingmq.wire.mqtt import Connect, Publish, Subscribe, SubscribeRequest, encode

from .conftest import PATIENCE, FakeDriver, Open, Seen
from .test_listeners import port_of, read_to_end

pytestmark = [
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll"),
    pytest.mark.asyncio(loop_factories=["epoll"]),
]

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


def rounds() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, BrokerLoop)
    return loop.sockets.rounds


async def connect(listener: Listener, out_of_the_way: bool = False) -> socket.socket:
    """Return a client with a non-blocking socket outside asyncio. ``out_of_the_way``: it leaves low descriptors
    free.
    """
    sock = socket.socket()
    if out_of_the_way:
        with sock:
            sock = socket.socket(fileno=fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, 900))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port_of(listener.address)))
    return sock


async def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    async with within(PATIENCE):
        while len(data) < size:
            more = await asyncio.get_running_loop().sock_recv(sock, size - len(data))
            assert more, f"closed after {len(data)} of {size} bytes"
            data += more
    return data


async def echo(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)
    assert await receive(sock, len(data)) == data


def send_back(client: Seen, data: bytes) -> None:
    client.transport.write(data)


async def test_the_loop_serves_plain_sockets_itself(driver: FakeDriver, listen: Open) -> None:
    sock = await connect(await listen("mqtt://127.0.0.1:0"))
    client = await driver.client()
    assert isinstance(client.transport, ClientSocket)
    assert client.transport.get_extra_info("peername") == sock.getsockname()
    assert client.transport.get_extra_info("ssl_object") is None
    sock.close()


async def test_output_that_the_kernel_refuses_at_first_arrives_later_and_whole(
    driver: FakeDriver, listen: Open
) -> None:
    sock = await connect(await listen("mqtt://127.0.0.1:0"))
    client = await driver.client()
    parts = [bytes([number]) * 300_000 for number in range(30)]
    for part in parts:
        client.transport.write(part)
    assert client.events == ["blocked"]
    assert await receive(sock, 9_000_000) == b"".join(parts)
    await client.until(lambda seen: seen.events == ["blocked", "drained"])
    sock.close()


async def test_a_socket_is_asked_for_room_only_while_bytes_wait(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    driver.on_received = send_back
    sock, other = await connect(listener), await connect(listener)
    client = await driver.client()
    client.transport.write(bytes(9_000_000))
    await receive(sock, 9_000_000)
    before = rounds()
    for _ in range(10):
        await echo(other, b"a socket with room would end each poll at once")
    assert rounds() - before < 100
    sock.close()
    other.close()


async def test_a_reset_is_the_end(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    sock = await connect(listener)
    client = await driver.client()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()
    await client.until(lambda seen: seen.events == ["lost"])
    assert listener.gate.connections == 0


async def test_a_reset_while_bytes_wait_is_the_end(driver: FakeDriver, listen: Open) -> None:
    sock = await connect(await listen("mqtt://127.0.0.1:0"))
    client = await driver.client()
    client.transport.pause_reading()
    client.transport.write(bytes(9_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()
    await client.until(lambda seen: seen.events == ["blocked", "lost"])
    client.transport.write(b"nobody is there")
    client.transport.close()
    client.transport.abort()
    client.transport.resume_reading()
    assert client.events == ["blocked", "lost"]


async def test_a_paused_connection_that_was_reset_costs_nothing_until_it_is_read(
    driver: FakeDriver, listen: Open
) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    sock = await connect(listener)
    client = await driver.client()
    client.transport.pause_reading()
    await asyncio.get_running_loop().sock_sendall(sock, b"last words")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()
    driver.on_received = send_back
    other = await connect(listener)
    before = rounds()
    for _ in range(10):
        await echo(other, b"hello")
    assert rounds() - before < 100
    assert client.events == []
    client.transport.resume_reading()
    await client.until(lambda seen: seen.events == ["lost"])
    other.close()


async def test_a_client_that_closed_its_half_gets_output_written_before_the_end_is_seen(
    driver: FakeDriver, listen: Open
) -> None:
    sock = await connect(await listen("mqtt://127.0.0.1:0"))
    driver.on_received = lambda client, data: client.transport.write(bytes(9_000_000))
    await asyncio.get_running_loop().sock_sendall(sock, b"all of it, please")
    sock.shutdown(socket.SHUT_WR)
    client = await driver.client()
    assert await receive(sock, 9_000_000) == bytes(9_000_000)
    assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    await client.until(lambda seen: "lost" in seen.events)
    sock.close()


async def test_our_half_is_closed_after_what_was_written(driver: FakeDriver, listen: Open) -> None:
    sock = await connect(await listen("mqtt://127.0.0.1:0"))
    client = await driver.client()
    client.transport.write(bytes(9_000_000))
    assert client.transport.can_write_eof()
    client.transport.write_eof()
    client.transport.write(b"too late")
    assert await receive(sock, 9_000_000) == bytes(9_000_000)
    assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    await asyncio.get_running_loop().sock_sendall(sock, b"still heard")
    await client.until(lambda seen: seen.received == b"still heard")
    sock.close()
    await client.until(lambda seen: "lost" in seen.events)


async def test_a_connection_is_closed_after_what_was_written(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    client = await driver.client()
    client.transport.write(bytes(9_000_000))
    client.transport.close()
    client.transport.close()
    assert client.events == ["blocked"]
    assert len(await read_to_end(reader)) == 9_000_000
    await client.until(lambda seen: "lost" in seen.events)
    assert client.events.count("lost") == 1
    writer.close()


async def test_a_connection_that_ends_in_a_callback_is_lost_later_and_once(driver: FakeDriver, listen: Open) -> None:
    sock = await connect(await listen("mqtt://127.0.0.1:0"))
    told: list[list[str]] = []

    def end(client: Seen, data: bytes) -> None:
        client.transport.abort()
        client.transport.abort()
        client.transport.write(data)
        told.append(list(client.events))

    driver.on_received = end
    await asyncio.get_running_loop().sock_sendall(sock, b"end it")
    client = await driver.client()
    await client.until(lambda seen: seen.events == ["lost"])
    assert told == [[]]
    sock.close()


async def test_a_descriptor_that_is_used_again_belongs_to_the_new_connection(driver: FakeDriver, listen: Open) -> None:
    """1. Two clients have sent, and are in one list of events. 2. The first that is read ends the other. 3. A new
    connection gets the descriptor number of the ended one, while the old event is still in the list.
    """
    listener = await listen("mqtt://127.0.0.1:0")
    socks = [await connect(listener) for _ in range(2)]
    clients = [await driver.client(0), await driver.client(1)]
    numbers = [client.transport.get_extra_info("socket").fileno() for client in clients]

    def end_the_other(client: Seen, data: bytes) -> None:
        for each in clients:
            if each is not client:
                each.transport.abort()

    driver.on_received = end_the_other
    for sock in socks:
        sock.send(b"both at once")
    async with within(PATIENCE):
        while not any(client.events for client in clients):
            await asyncio.sleep(0)
    ended = 0 if clients[0].events else 1
    assert clients[ended].received == b""
    assert clients[1 - ended].received == b"both at once"
    driver.on_received = send_back
    await clients[ended].until(lambda seen: seen.events == ["lost"])
    socks.append(await connect(listener, out_of_the_way=True))
    taken = await driver.client(2)
    assert taken.transport.get_extra_info("socket").fileno() == numbers[ended]
    await echo(socks[-1], b"mine")
    assert taken.received == b"mine"
    for sock in socks:
        sock.close()


async def test_a_thousand_connections_are_all_served(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    driver.on_received = send_back
    socks = [await connect(listener) for _ in range(1000)]
    await driver.client(999)
    for number, sock in enumerate(socks):
        sock.send(b"%06d" % number)
    for number, sock in enumerate(socks):
        assert await receive(sock, 6) == b"%06d" % number
    assert len(socks) > EVENTS_MANY
    for sock in socks:
        sock.close()
    await driver.until(lambda: all(client.events == ["lost"] for client in driver.clients))
    assert listener.gate.connections == 0


class Flood:
    """A thread that sends to a listener as much as it accepts."""

    def __init__(self, listener: Listener) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port_of(listener.address)))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while True:
                self.sock.sendall(bytes(65536))
        except OSError:
            pass

    def end(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.sock.close()


@asynccontextmanager
async def floods(listener: Listener, count: int) -> AsyncIterator[None]:
    running = [Flood(listener) for _ in range(count)]
    try:
        yield
    finally:
        for flood in running:
            flood.end()


async def test_a_client_that_sends_without_pause_delays_neither_timers_nor_other_clients(
    driver: FakeDriver, listen: Open
) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    read = [0] * 4

    def count(client: Seen, data: bytes) -> None:
        read[driver.clients.index(client) % 4] += len(data)
        client.reads.clear()
        client.received = b""

    driver.on_received = count
    async with floods(listener, 4), within(PATIENCE):
        await driver.until(lambda: min(read) > 4 * READ_MOST)  # all of them are served
        for _ in range(20):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            assert await reader.read() == b""
            writer.close()
        for _ in range(20):
            before, due = rounds(), loop.time() + 0.001
            await asyncio.sleep(0.001)
            assert loop.time() >= due
            soon = rounds()
            await asyncio.sleep(0)
            assert rounds() - soon <= 2
            assert soon > before
    server.close()


async def test_an_error_in_serving_one_connection_ends_that_one(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    bad, good = await connect(listener), await connect(listener)

    def fail_for_one(client: Seen, data: bytes) -> None:
        if data == b"bad":
            raise ZeroDivisionError
        client.transport.write(data)

    driver.on_received = fail_for_one
    await asyncio.get_running_loop().sock_sendall(bad, b"bad")
    await driver.until(lambda: sum("lost" in client.events for client in driver.clients) == 1)
    await echo(good, b"good")
    bad.close()
    good.close()


async def test_calls_from_another_thread_run_while_clients_talk(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    driver.on_received = lambda client, data: client.reads.clear()
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with floods(listener, 1), within(PATIENCE):
        threading.Thread(target=loop.call_soon_threadsafe, args=(done.set,)).start()
        await done.wait()


# With a broker


@asynccontextmanager
async def broker(**limits: Any) -> AsyncIterator[tuple[Driver, Listener]]:
    state = BrokerState(MqttConfig(sys_interval=0.0), LimitsConfig(**limits), 0.0, b"s" * 32)
    driver = Driver(state, NoStore())
    spec = parse_listener(ListenerConfig(url="mqtt://127.0.0.1:0"))
    listener = await open_listener(
        asyncio.get_running_loop(), spec, driver, write_buffer=limits.get("write_buffer", 65536)
    )
    try:
        yield driver, listener
    finally:
        listener.close()
        await driver.stop(0.1)


async def client(listener: Listener, name: str, topic: bytes = b"") -> socket.socket:
    sock = await connect(listener)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, encode(Connect(4, name), 4))
    assert await receive(sock, 4) == b"\x20\x02\0\0"
    if topic:
        await loop.sock_sendall(sock, encode(Subscribe(1, [SubscribeRequest(topic, 1)]), 4))
        assert await receive(sock, 5) == b"\x90\x03\0\x01\x01"
    return sock


async def test_a_message_passes_without_a_callback_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker() as (_, listener):
        subscriber, publisher = await client(listener, "sub", b"t"), await client(listener, "pub")
        subscriber.setblocking(True)
        subscriber.settimeout(PATIENCE * slowness())
        frame = encode(Publish(b"t", b"x"), 4)
        received: list[bytes] = []

        def talk() -> None:
            for _ in range(100):
                publisher.send(frame)
                received.append(subscriber.recv(len(frame)))

        loop = asyncio.get_running_loop()
        calls: list[object] = []
        call_soon = loop.call_soon

        def noted(callback: Any, *args: Any, **kwargs: Any) -> asyncio.Handle:
            calls.append(callback)
            return call_soon(callback, *args, **kwargs)

        monkeypatch.setattr(loop, "call_soon", noted)
        await loop.run_in_executor(None, talk)
        assert received == [frame] * 100
        assert len(calls) < 20
        subscriber.close()
        publisher.close()


async def test_publishers_are_paused_while_their_receiver_does_not_read_and_nothing_is_lost() -> None:
    count, payload = 3000, bytes(20_000)
    async with broker(publisher_hold=3600.0, write_buffer=65536) as (driver, listener):
        subscriber, publisher = await client(listener, "sub", b"t"), await client(listener, "pub")
        frames = [encode(Publish(b"t", b"%05d" % at + payload, qos=1, packet_id=at + 1), 4) for at in range(count)]
        loop = asyncio.get_running_loop()
        sending = loop.create_task(loop.sock_sendall(publisher, b"".join(frames)))
        acknowledged = loop.create_task(receive(publisher, 4 * count))
        async with within(PATIENCE):
            while not any(each.paused for each in driver.clients):
                await asyncio.sleep(0.01)
        assert not sending.done()
        found: list[int] = []
        rest = b""
        async with within(PATIENCE):
            while len(found) < count:
                data = await loop.sock_recv(subscriber, 1 << 20)
                assert data
                rest += data
                size = len(frames[0])
                while len(rest) >= size:
                    at = rest.index(b"t") + 1
                    found.append(int(rest[at + 2 : at + 7]))
                    await loop.sock_sendall(subscriber, b"\x40\x02" + rest[at : at + 2])
                    rest = rest[size:]
        assert found == list(range(count))
        await sending
        await acknowledged
        subscriber.close()
        publisher.close()
