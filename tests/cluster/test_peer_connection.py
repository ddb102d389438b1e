"""Connections between nodes: whole messages, a writer that waits, and a side that lives although it does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.patience import within

from starlingmq.net.peers import peer_connection
from starlingmq.net.peers.peer_connection import SILENT, PeerConnection
from starlingmq.net.peers.peer_protocol import PeerConnectionLost

SILENCE = 0.1
PATIENCE = 20.0
LIMIT = 64 * 1024 * 1024


@asynccontextmanager
async def connected(silence: float) -> AsyncIterator[tuple[PeerConnection, PeerConnection]]:
    loop = asyncio.get_running_loop()
    near, far = PeerConnection(silence, LIMIT), PeerConnection(silence, LIMIT)
    server = await loop.create_server(far.protocol, "127.0.0.1", 0)
    await loop.create_connection(near.protocol, *server.sockets[0].getsockname())
    async with within(PATIENCE):
        while far._transport is None:
            await asyncio.sleep(0)
    yield near, far
    near.abort("the test is over")
    far.abort("the test is over")
    server.close()


Pair = tuple[PeerConnection, PeerConnection]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with connected(SILENCE) as both:
        yield both


@pytest.fixture
async def quiet_pair() -> AsyncIterator[Pair]:
    """Without signs of life: one that is unread when its receiver closes makes a reset of the end."""
    async with connected(PATIENCE) as both:
        yield both


async def test_both_sides_are_kept_although_they_say_nothing(pair: Pair) -> None:
    near, far = pair
    for _ in range(3):
        async with within(PATIENCE):
            signs = [side._timer for side in pair]
            while any(side._timer in signs for side in pair):
                await asyncio.sleep(0.001)
    near.send(b"still here")
    async with within(PATIENCE):
        assert await far.read() == b"still here"


async def test_a_side_that_sends_nothing_for_too_long_is_given_up(pair: Pair) -> None:
    near, far = pair
    assert far._timer is not None
    far._timer.cancel()
    async with within(PATIENCE):
        await near.until_ended()
    assert near.reason == SILENT and not near.by_fin


async def test_a_writer_waits_for_a_reader_and_a_reader_that_is_slow_is_not_given_up(pair: Pair) -> None:
    """Its disk may be slow: it sends signs of life all the same."""
    near, far = pair
    message = bytes(1024 * 1024)
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            await near.write(message)
            written += 1

    task = asyncio.create_task(write())
    async with within(PATIENCE):
        while near.has_room or far._is_reading:
            await asyncio.sleep(0.001)
        for _ in range(3 * peer_connection.TICKS_MAX):
            timer = far._timer
            while far._timer is timer:
                await asyncio.sleep(0.001)
        assert not near.reason and not far.reason
        waiting = written
        for _ in range(waiting + 1):
            assert await far.read() == message
        while written == waiting:
            await asyncio.sleep(0.001)
    task.cancel()


async def test_the_end_comes_after_what_was_sent_with_its_reason(quiet_pair: Pair) -> None:
    near, far = quiet_pair
    near.send(b"last")
    near.end("no disk\nis left")
    async with within(PATIENCE):
        assert await far.read() == b"last"
        with pytest.raises(PeerConnectionLost, match=r"^no disk is left$"):
            await far.read()
        assert far.was_refused and not far.by_fin
        with pytest.raises(PeerConnectionLost):
            await far.write(b"more")


async def test_a_connection_that_is_closed_in_order_ends_without_an_error(quiet_pair: Pair) -> None:
    near, far = quiet_pair
    near.end("")
    async with within(PATIENCE):
        assert await far.read() is None
    assert far.by_fin and not far.was_refused
