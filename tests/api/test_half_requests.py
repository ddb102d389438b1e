"""Requests that never become whole, answers that no client reads, and guesses by the hundred.

Meanwhile health probes, and clients with a token, are answered as usual.
"""

from __future__ import annotations

import asyncio
import errno
import json
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Any, Final

import pytest

from starlingmq import Broker
from starlingmq.api import http_connection, server
from starlingmq.api.asgi import RequestRefused
from starlingmq.api.connection_limit import ConnectionLimit, Slots
from starlingmq.api.guard import LOG_INS_PER_ADDRESS
from starlingmq.api.http_connection import HttpConnection
from starlingmq.api.server import (
    ACCEPTED_IN_TURN,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS,
    CONNECTIONS_WHEN_SHORT,
    HttpListener,
)
from tests.patience import within

from .conftest import TOKEN, Certificates, Serve

MANY: Final = 500
BEARER: Final = f"Authorization: Bearer {TOKEN}\r\n"
HALVES: Final = (
    b"",
    b"G",
    b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000,
    b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf",
    b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf",
)
Open = Callable[..., Any]


def listener(broker: Broker) -> HttpListener:
    assert broker._http is not None
    return broker._http._listeners[0]


@asynccontextmanager
async def connections() -> AsyncIterator[Open]:
    """``await open(broker, bytes, from_=address)``: a connection that is closed at the end."""
    async with AsyncExitStack() as stack:

        async def open_(
            broker: Broker, sent: bytes = b"", from_: str = "127.0.0.1", context: ssl.SSLContext | None = None
        ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            host, _, port = listener(broker).address.partition("://")[2].rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=(from_, 0), ssl=context)
            stack.callback(lambda: writer.transport.abort())  # and keep the writer until then, or it closes itself
            writer.write(sent)
            return reader, writer

        yield open_


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with within(20):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length.partition(b":")[2]))


async def status(open_: Open, broker: Broker, path: str, headers: str = "", **options: Any) -> int:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()
    reader, _ = await open_(broker, request, **options)
    return (await answer(reader))[0]


@pytest.mark.parametrize("authorized", [False, True])
async def test_half_requests_from_one_address_keep_nobody_out(serve: Serve, token_file: str, authorized: bool) -> None:
    """With a token the halves of bodies are read, without one they are refused before."""
    broker = await serve(
        auth={"api": {"token_file": token_file}, "failures": {"delay": 0}}, mqtt={"connect_timeout": "10m"}
    )
    login = BEARER.encode() if authorized else b""
    async with connections() as open_:
        early, writer = await open_(broker, from_="127.0.0.3")
        for number in range(MANY):
            half = HALVES[number % len(HALVES)].replace(b"Host:", login + b"Host:")
            await open_(broker, half, from_="127.0.0.2")
        for address in ("127.0.0.1", "127.0.0.2"):
            assert await status(open_, broker, "/health/live", from_=address) == 200
            assert await status(open_, broker, "/health/ready", from_=address) == 200
            assert await status(open_, broker, "/api/v1/clients", BEARER, from_=address) == 200
        assert len(listener(broker).connection_limit) <= CONNECTIONS_PER_ADDRESS + 10
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await answer(early))[0] == 200, "a connection of another address had to go"


async def test_half_requests_from_many_addresses_keep_nobody_out(serve: Serve) -> None:
    broker = await serve(mqtt={"connect_timeout": "10m"})
    async with connections() as open_:
        for number in range(MANY):
            await open_(broker, HALVES[number % len(HALVES)], from_=f"127.0.1.{1 + number % 50}")
        for address in ("127.0.0.1", "127.0.1.7"):
            assert await status(open_, broker, "/health/live", from_=address) == 200
            assert await status(open_, broker, "/api/v1/clients", from_=address) == 200
        assert len(listener(broker).connection_limit) <= CONNECTIONS_MAX


async def test_connections_that_come_without_pause_leave_turns_to_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepted all that waited at once, and the clients of all other listeners waited for 0.3 s."""
    broker = await serve()
    host, _, port = listener(broker).address.partition("://")[2].rpartition(":")
    turn = 0
    arrivals: list[int] = []

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    arrived = HttpListener._arrived

    def noted(self: HttpListener, sock: socket.socket) -> None:
        arrivals.append(turn)
        arrived(self, sock)

    monkeypatch.setattr(HttpListener, "_arrived", noted)
    counting = asyncio.ensure_future(count())
    with ExitStack() as stack:
        for _ in range(100):  # the event loop stands still meanwhile
            stack.enter_context(socket.create_connection((host, int(port))))
        async with within(10):
            while len(arrivals) < 100:
                await asyncio.sleep(0.01)
    counting.cancel()
    assert max(arrivals.count(each) for each in arrivals) <= ACCEPTED_IN_TURN


async def test_silent_connections_to_tls_are_counted_and_closed(serve: Serve, certificates: Certificates) -> None:
    cert, key = certificates.issue("localhost")
    broker = await serve(
        listeners=[{"url": "https://127.0.0.1:0", "tls": {"cert": cert, "key": key}}], mqtt={"connect_timeout": "1s"}
    )
    trusting = ssl.create_default_context(cafile=certificates.ca)
    trusting.check_hostname = False
    async with connections() as open_:
        silent = [await open_(broker, b"\x16\x03\x01"[: number % 4]) for number in range(MANY // 2)]
        assert len(listener(broker).connection_limit) <= CONNECTIONS_PER_ADDRESS
        assert await status(open_, broker, "/health/live", context=trusting) == 200
        async with within(20):
            for reader, _ in silent:
                with suppress(ConnectionError):
                    assert await reader.read() == b""


async def test_a_reply_may_end_on_a_tls_connection_that_was_aborted_before(
    serve: Serve, certificates: Certificates
) -> None:
    cert, key = certificates.issue("localhost")
    broker = await serve(listeners=[{"url": "https://127.0.0.1:0", "tls": {"cert": cert, "key": key}}])
    trusting = ssl.create_default_context(cafile=certificates.ca)
    trusting.check_hostname = False
    async with connections() as open_:
        reader, _ = await open_(broker, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", context=trusting)
        await reader.readuntil(b"}")
        (connection,) = listener(broker)._state.connections
        assert isinstance(connection, HttpConnection)
        connection.transport.abort()  # as a time limit does
        connection.transport.close()  # as uvicorn does after a reply with Connection: close
        connection.on_response_complete()
        assert await reader.read() == b""
        assert await status(open_, broker, "/health/live", context=trusting) == 200


async def test_wrong_log_ins_in_flight_are_bounded_by_address(serve: Serve, token_file: str) -> None:
    failures = {"delay": "5s", "limit": 0}
    broker = await serve(auth={"api": {"token_file": token_file}, "failures": failures})
    wrong = "Authorization: Bearer wrong-wrong-wrong-wrong\r\n"
    request = f"GET /api/v1/clients HTTP/1.1\r\nHost: localhost\r\n{wrong}\r\n".encode()
    async with connections() as open_:
        for _ in range(LOG_INS_PER_ADDRESS):
            await open_(broker, request, from_="127.0.0.2")
        assert await status(open_, broker, "/api/v1/clients", wrong, from_="127.0.0.2") == 429
        for address in ("127.0.0.1", "127.0.0.2"):
            assert await status(open_, broker, "/api/v1/clients", BEARER, from_=address) == 200
            assert await status(open_, broker, "/api/v1/clients", from_=address) == 401
            assert await status(open_, broker, "/health/live", from_=address) == 200


async def test_a_client_that_does_not_read_replies_is_disconnected(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "WRITE_SECONDS", 0.2)
    broker = await serve()
    many = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300
    async with connections() as open_:
        reader, writer = await open_(broker, many)
        writer.transport.pause_reading()
        async with within(30):
            while len(listener(broker).connection_limit):
                await asyncio.sleep(0.05)
        assert await status(open_, broker, "/health/live") == 200
        del reader


async def test_without_descriptors_it_accepts_again_when_there_are_some(
    serve: Serve, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve()
    loop = asyncio.get_running_loop()
    accept = loop.sock_accept
    failed: list[socket.socket] = []

    async def short(sock: socket.socket) -> Any:
        found, address = await accept(sock)
        if len(failed) < 3:
            failed.append(found)
            found.close()
            raise OSError(errno.EMFILE, "Too many open files")
        return found, address

    async with connections() as open_:
        with monkeypatch.context() as patch:
            patch.setattr(loop, "sock_accept", short)
            for _ in range(4):  # the first is accepted by what waits already
                await open_(broker)
            async with within(10):
                while len(failed) < 3:
                    await open_(broker)
                    await asyncio.sleep(0.01)
            assert await status(open_, broker, "/health/live") == 200
    assert sum("Too many open files" in record.message for record in caplog.records) == 1


async def test_it_leaves_the_last_descriptors_to_storage(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serve()
    async with connections() as open_:
        for _ in range(CONNECTIONS_WHEN_SHORT):
            await open_(broker)
        monkeypatch.setattr(server, "file_limit", lambda: 200)
        for _ in range(20):
            await open_(broker)
        assert await status(open_, broker, "/health/live") == 200
        assert len(listener(broker).connection_limit) <= CONNECTIONS_WHEN_SHORT


class One:
    def __init__(self, address: str, since: int | None) -> None:
        self.address = address
        self.since = since
        self.evicted = False

    def waits_since(self) -> int | None:
        return self.since

    def evict(self) -> None:
        self.evicted = True


def test_the_longest_waiting_connection_of_the_crowd_goes() -> None:
    limit = ConnectionLimit(5, 3)
    crowd = [One("a", since) for since in (3, 1, 2)]
    other = One("b", 0)
    for one in (*crowd, other):
        assert limit.enter(one)
    assert limit.enter(One("a", 9)) and [one.evicted for one in crowd] == [False, True, False]
    assert limit.enter(One("c", 10)) and limit.enter(One("d", 11))
    assert [one.evicted for one in crowd] == [False, True, True] and not other.evicted
    assert len(limit) == 5


def test_a_connection_that_is_worked_on_never_goes() -> None:
    limit = ConnectionLimit(3, 2)
    busy = [One("a", None), One("a", None), One("b", None)]
    assert all(limit.enter(one) for one in busy)
    assert not limit.enter(One("a", 1)) and not limit.enter(One("c", 1))
    busy[1].since = 5
    assert limit.enter(One("c", 1))
    assert [one.evicted for one in busy] == [False, True, False]


def test_places_are_what_a_plain_list_says() -> None:
    chance = random.Random(3)
    limit, twin = ConnectionLimit(20, 6), set[One]()
    for step in range(5000):
        if twin and chance.random() < 0.4:
            one = chance.choice(sorted(twin, key=id))
            limit.leave(one)
            twin.discard(one)
        else:
            one = One(chance.choice(["", *"abcdef"]), step if chance.random() < 0.8 else None)
            if limit.enter(one):
                twin.add(one)
        twin = {one for one in twin if not one.evicted}
        assert len(limit) == len(twin) <= 20
        assert all(sum(one.address == name for one in twin) <= 6 for name in "abcdef")


def test_slots_are_bounded_by_key_and_in_all() -> None:
    slots = Slots(3, 2, "things")
    with slots.taken("a"), slots.taken("a"):
        with pytest.raises(RequestRefused, match="too many things from this address") as refused:
            slots.taken("a")
        assert refused.value.status == 429
        with slots.taken("b"), pytest.raises(RequestRefused) as refused:
            slots.taken("c")
        assert refused.value.status == 503
    assert json.dumps(slots._by_key) == "{}" and slots._taken == 0
