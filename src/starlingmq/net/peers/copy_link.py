"""One connection between the owner of a data directory and a follower that keeps a copy of it, after the handshake.

    owner                                       follower
      | -- HELLO (Hello) ------------------------> |  looks: nothing is changed
      | <-- ANSWER (life, CopyPosition with excess) -- |
      |  the cluster decides whether it may begin  |
      | -- BEGIN (empty) ------------------------> |  cuts off what the owner does not have
      | <-- ANSWER (life, CopyPosition) -------------- |
      | -- groups -------------------------------> |  stores them
      | <-- u64 number of the last stored group -- |

A ``Hello`` of generation 0 asks how much the other node has (position of generation 0: no whole copy). The connection
ends with the answer.

A follower stores all that has arrived together, so a slow disk syncs once for the turns that came during the sync
before.

Either side closes the connection at any error; the owner dials again, and the follower goes on with what it has.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Final

import msgspec

from starlingmq.net.peers.peer_protocol import PeerConnectionLost
from starlingmq.net.peers.pipe import Pipe
from starlingmq.storage.copies.copy_facts import Fenced
from starlingmq.storage.copies.copy_feed import CopyFeed
from starlingmq.storage.copies.copy_frames import ASKS, NO_KV, CopyPosition, Hello, decode
from starlingmq.storage.copies.copy_receiver import CopyReceiver
from starlingmq.storage.copies.copy_records import CopyFrameError

BEGIN: Final = b""
UNSTORED: Final = "the copy cannot be stored"
NO_COPY: Final = CopyPosition(0, 0, NO_KV, {})
STORED: Final = Struct("<Q")


class CopyRefused(Exception):
    """The other side does not accept the copy, or speaks another version; one line."""


class FollowerAnswer(msgspec.Struct, frozen=True, array_like=True):
    """``life``: of the follower's process."""

    life: int
    position: CopyPosition


async def feed_follower(pipe: Pipe, hello: bytes, feed: CopyFeed, accept: Callable[[int, CopyPosition], bool]) -> None:
    """The owner's side, until the connection ends. ``accept`` is asked with the life of the follower's process and what
    it has, before anything of it is cut off. Raises CopyRefused, CopyFrameError, FeedEnded and OSError."""
    await pipe.write(hello)
    answer = await _answer(pipe)
    if not accept(answer.life, answer.position):
        raise CopyRefused(
            f"follower {feed.name} may not begin: {answer.position.excess} of its records would be cut off"
        )
    await pipe.write(BEGIN)
    position = (await _answer(pipe)).position
    sending = asyncio.ensure_future(feed.run(position, pipe.write))
    reading = asyncio.ensure_future(_read_stored(pipe, feed))
    try:
        await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, reading):
            task.cancel()
        await asyncio.wait((sending, reading))
    for task in (reading, sending):
        if not task.cancelled():
            task.result()


async def ask_follower(pipe: Pipe, hello: Hello) -> CopyPosition:
    """How much the other node has; generation 0: no whole copy. Raises CopyRefused, CopyFrameError and
    OSError."""
    await pipe.write(msgspec.msgpack.encode(hello))
    return (await _answer(pipe)).position


async def _answer(pipe: Pipe) -> FollowerAnswer:
    message = await pipe.read()
    if message is None:
        raise CopyRefused("the follower closed the connection")
    return decode(message, FollowerAnswer)


async def _read_stored(pipe: Pipe, feed: CopyFeed) -> None:
    while (message := await pipe.read()) is not None:
        if len(message) != STORED.size:
            raise CopyFrameError(f"an acknowledgement of {len(message)} bytes")
        feed.acknowledge(STORED.unpack(message)[0])


async def follow_owner(
    pipe: Pipe,
    life: int,
    receiver_of: Callable[[Hello], Awaitable[CopyReceiver]],
    look: Callable[[Hello], Awaitable[CopyPosition | None]],
) -> None:
    """The follower's side, until the connection ends. ``receiver_of`` and ``look`` raise CopyRefused. Raises it, too,
    and Fenced, CopyFrameError and OSError."""
    message = await pipe.read()
    if message is None:
        return
    hello = decode(message, Hello)
    if hello.generation == ASKS:
        await pipe.write(msgspec.msgpack.encode(FollowerAnswer(life, await look(hello) or NO_COPY)))
        return
    receiver = await receiver_of(hello)
    await pipe.write(msgspec.msgpack.encode(FollowerAnswer(life, receiver.look())))
    if await pipe.read() != BEGIN:
        return
    position = await receiver.begin()
    await pipe.write(msgspec.msgpack.encode(FollowerAnswer(life, position)))
    stored = 0
    while (message := await pipe.read()) is not None:
        now = await receiver.receive(b"".join((message, *pipe.arrived())))
        if now > stored:
            stored = now
            await pipe.write(STORED.pack(stored))


async def served(
    pipe: Pipe,
    life: int,
    receiver_of: Callable[[Hello], Awaitable[CopyReceiver]],
    look: Callable[[Hello], Awaitable[CopyPosition | None]],
) -> str:
    """``follow_owner``; returns why it ended, one line, or "" if the connection ended."""
    try:
        await follow_owner(pipe, life, receiver_of, look)
    except (CopyRefused, Fenced, CopyFrameError) as error:
        return str(error)
    except PeerConnectionLost:
        return ""
    except OSError as error:
        return f"{UNSTORED}: {os.strerror(error.errno) if error.errno else error}"
    return ""
