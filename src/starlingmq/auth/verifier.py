"""Passwords checked against hashes, in a separate process (``auth.hashing``).

Threads would let the event loop continue, too, but for the interpreter's lock: the system preempts the thread that has
just computed for a tenth of a second and may hold the lock, and then the loop waits for both: 0.1 s on a busy core.

::

    no process --warm, fits--> beginning --it says that it serves--> serving --it ends, or hangs--> no process

A process that serves and does not answer a ping for ``HANG_SECONDS`` hangs, and is killed. Pings are answered beside
hashes, so a slow process does not count as one that hangs. Its open requests are sent once more, to the next process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final

from starlingmq.auth.hashing import ANSWER, PING, QUESTION

log = logging.getLogger("starlingmq.auth")

BEGIN: Final = [sys.executable, "-m", "starlingmq.auth.hashing"]
HANG_SECONDS: Final = 10.0
BEGIN_SECONDS: Final = 60.0  # a busy machine takes long to load a program
TRIES: Final = 2  # processes that get the same request


def begun(sock: socket.socket) -> subprocess.Popen[bytes]:
    # The interpreter and module of the broker, no shell, no input of clients.
    return subprocess.Popen(  # noqa: S603  # nosec B603
        BEGIN, stdin=sock.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
    )


class Verifier:
    """The process starts with ``warm`` or when it is first needed, and again after it ended. Call ``close`` at the
    end."""

    def __init__(self, hang_seconds: float = HANG_SECONDS) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.ended = 0  # processes that ended, or were killed because they hung
        self._hang_seconds = hang_seconds
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._serving = asyncio.Event()
        self._number = PING
        self._pings = 0  # without an answer yet
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def warm(self) -> None:
        """Returns when the process serves, or cannot be started."""
        with suppress(OSError):
            await self._begin()
            await self._serving.wait()

    async def fits(self, known: str, password: bytes) -> bool:
        """Whether this is the hashed password. Raises OSError if there is no process."""
        for attempt in range(TRIES):
            try:
                return await self._ask(known, password)
            except ConnectionError:
                if attempt + 1 == TRIES or self._closed:
                    raise
        raise AssertionError("unreachable")

    async def _ask(self, known: str, password: bytes) -> bool:
        writer = self._writer or await self._begin()
        self._number = self._number % 0xFFFF_FFFF + 1
        number = self._number
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        hashed = known.encode()
        writer.write(QUESTION.pack(number, len(hashed), len(password)) + hashed + password)
        self._watch()
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    async def _begin(self) -> asyncio.StreamWriter:
        async with self._beginning:
            if self._writer is not None:
                return self._writer
            if self._closed:
                raise ConnectionError("password verification has stopped")
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    process = self.process = await asyncio.to_thread(begun, theirs)
                except OSError as error:
                    ours.close()
                    log.error("the process that hashes passwords cannot be started, so logins are refused: %s", error)
                    raise
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self._reading = asyncio.create_task(self._read(reader, self._writer, process))
            self._pings = 1  # it sends one answer unasked
            self._watch()
            return self._writer

    def _watch(self) -> None:
        """Check again later whether the process answers, as long as requests wait for it."""
        if self._timer is None and (self._waiting or not self._serving.is_set()):
            seconds = self._hang_seconds if self._serving.is_set() else BEGIN_SECONDS
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look, self._pings)

    def _look(self, unanswered: int) -> None:
        self._timer = None
        if self._writer is None or self.process is None:
            return
        if unanswered and self._pings:
            log.error(
                "the process that hashes passwords has not answered for %.0f s; it is killed and restarted",
                self._hang_seconds if self._serving.is_set() else BEGIN_SECONDS,
            )
            self.process.kill()
            return
        self._pings = 1
        self._writer.write(QUESTION.pack(PING, 0, 0))
        self._watch()

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: subprocess.Popen[bytes]
    ) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                number, right = ANSWER.unpack(await reader.readexactly(ANSWER.size))
                self._pings = 0  # any answer shows that it lives
                if number == PING:
                    self._serves()
                    continue
                future = self._waiting.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(right)
        self._end(writer)
        process.kill()
        await asyncio.to_thread(process.wait)

    def _serves(self) -> None:
        if self._serving.is_set():
            return
        self._serving.set()
        self._stop_watching()
        self._watch()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, writer: asyncio.StreamWriter) -> None:
        if not self._closed:
            self.ended += 1
            log.error("the process that hashes passwords has ended; it is restarted at the next login")
        self._writer = None
        writer.close()
        self._serving.set()  # wakes callers of warm, which need not wait for the next process
        self._serving.clear()
        self._stop_watching()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the process that hashes passwords has ended"))

    async def close(self) -> None:
        """Fail all waiting requests. May be called again."""
        self._closed = True
        async with self._beginning:
            if self._writer is not None:
                self._writer.close()
        if self._reading is not None:
            await self._reading
