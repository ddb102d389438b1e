"""Child processes, ``starlingmq serve`` above all: heard line by line, told to stop, ended with this process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from starlingmq.process import ending_with_us

LINE_BYTES_MAX: Final = 1 << 20
KILL_SECONDS: Final = 5.0  # beyond the time that a broker gives itself
SERVE: Final = ("starlingmq", "serve")


class Child:
    """``on_line`` gets what it says: all but ``ready``, which sets ``ready`` and ``addresses``.

    ``arguments`` are those of ``program``, a module and what it is told first; ``settings`` variables of the
    environment besides our own. Lines beyond ``line_bytes`` are passed over.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        on_line: Callable[[str, str], None],
        settings: Mapping[str, str] = {},
        program: Sequence[str] = SERVE,
        line_bytes: int = LINE_BYTES_MAX,
    ) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.code = 0  # its exit status once it has ended; negative: the signal that ended it
        self.addresses: list[str] = []
        self._words = (*program, *arguments)
        self._line_bytes = line_bytes
        self._settings = settings
        self._on_line = on_line
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """May be called again after it has ended."""
        self.ready.clear()
        self.ended.clear()
        command = [sys.executable, "-m", *self._words]
        self._process = await asyncio.create_subprocess_exec(
            *ending_with_us(command, signal.SIGTERM),
            env={**os.environ, **self._settings},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            limit=self._line_bytes,
            start_new_session=True,  # Ctrl-C in a terminal is for us: we stop them in order
        )
        self._watch = asyncio.create_task(self._follow(self._process))

    @property
    def pid(self) -> int:
        """Of the process, which leads a session of its own; 0 before it has begun."""
        return self._process.pid if self._process is not None else 0

    def signal(self, number: int) -> None:
        if self._process is not None and not self.ended.is_set():
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, seconds: float) -> None:
        """Ask it to stop; end it if it has not after ``seconds`` and a few more. It may have ended already."""
        if self._watch is None:
            return
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended.wait(), seconds + KILL_SECONDS)
        except TimeoutError:
            self.signal(signal.SIGKILL)
        await self._watch

    async def _follow(self, process: Process) -> None:
        assert process.stdout is not None and process.stderr is not None
        await asyncio.gather(self._read(process.stdout), self._read(process.stderr))
        self.code = await process.wait()
        self.ended.set()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than anybody reads
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            word, *addresses = text.split(" ")
            if word == "ready":
                self.addresses = addresses
                self.ready.set()
            else:
                self._on_line(self.name, text)


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def ready_or_ended(child: Child) -> bool:
    """Wait until a child serves (True) or is gone (False)."""
    waits = [asyncio.ensure_future(child.ready.wait()), asyncio.ensure_future(child.ended.wait())]
    await first_of(*waits)
    for wait in waits:
        wait.cancel()
    return child.ready.is_set() and not child.ended.is_set()


def how_it_ended(child: Child) -> str:
    return f"was ended by signal {-child.code}" if child.code < 0 else f"ended with exit status {child.code}"
