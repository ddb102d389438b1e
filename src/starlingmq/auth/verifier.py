"""Passwords held against hashes, in a process of its own (``auth.hashing``).

Threads would let the loop go on as well, but for the interpreter's lock: who has it, and has just computed for a tenth
of a second, is who the system takes the processor from, and then the loop waits for both: 0.1 s on a busy core.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final

from starlingmq.auth.hashing import ANSWER, QUESTION

log = logging.getLogger("starlingmq.auth")

BEGIN: Final = [sys.executable, "-m", "starlingmq.auth.hashing"]


def begun(sock: socket.socket) -> subprocess.Popen[bytes]:
    # Our own interpreter and module, no shell, nothing that a client said.
    return subprocess.Popen(  # noqa: S603  # nosec B603
        BEGIN, stdin=sock.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
    )


class Verifier:
    """The process begins when it is first needed, and again after it died. ``close`` it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._number = 0
        self._closed = False

    async def fits(self, known: str, password: bytes) -> bool:
        """Whether this is the password that was hashed. Raises OSError where there is no process to ask."""
        writer = self._writer or await self._begin()
        self._number = (self._number + 1) % (1 << 32)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = future
        hashed = known.encode()
        writer.write(QUESTION.pack(self._number, len(hashed), len(password)) + hashed + password)
        return await future

    async def _begin(self) -> asyncio.StreamWriter:
        async with self._beginning:
            if self._writer is not None:
                return self._writer
            if self._closed:
                raise ConnectionError("no more passwords are looked at")
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    process = self.process = await asyncio.to_thread(begun, theirs)
                except OSError as error:
                    ours.close()
                    log.error("the process that hashes passwords can not be begun: %s", error)
                    raise
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self._reading = asyncio.create_task(self._read(reader, self._writer, process))
            return self._writer

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: subprocess.Popen[bytes]
    ) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                number, right = ANSWER.unpack(await reader.readexactly(ANSWER.size))
                future = self._waiting.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(right)
        if not self._closed:
            log.error("the process that hashes passwords has ended; it is begun again when somebody logs in")
        self._writer = None
        writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the process that hashes passwords has ended"))
        self._waiting.clear()
        process.kill()
        await asyncio.to_thread(process.wait)

    async def close(self) -> None:
        """Who waits is told that there is nobody to ask. May be called again."""
        self._closed = True
        async with self._beginning:
            if self._writer is not None:
                self._writer.close()
        if self._reading is not None:
            await self._reading
