"""Child processes, mainly ``starlingmq serve``: their output is read by lines, and they end with this process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from starlingmq.net.process import ending_with_us

LINE_BYTES_MAX: Final = 1 << 20
KILL_SECONDS: Final = 5.0  # added to the broker's own shutdown time
SERVE: Final = ("starlingmq", "serve")


class Child:
    """``on_line`` receives its output lines, except ``ready``, which sets ``ready`` and ``addresses``.

    ``program`` is a module with its first arguments, ``arguments`` are the further ones; ``settings`` are environment
    variables in addition to those of this process. Lines longer than ``line_bytes`` are skipped.
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
        self.code = 0  # exit status after its end; negative: the signal that ended it
        self.addresses: list[str] = []
        self._words = (*program, *arguments)
        self._line_bytes = line_bytes
        self._settings = settings
        self._on_line = on_line
        self._late: set[int] = set()
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
            start_new_session=True,  # Ctrl-C in a terminal reaches this process only, which stops the children in order
        )
        self._watch = asyncio.create_task(self._follow(self._process))

    @property
    def pid(self) -> int:
        """Process id; the process leads its own session. 0 before the start."""
        return self._process.pid if self._process is not None else 0

    def signal(self, number: int) -> None:
        if self._process is not None and not self.ended.is_set():
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def signal_when_ready(self, number: int) -> None:
        """A process that starts may not expect the signal yet."""
        if self.ready.is_set():
            self.signal(number)
        else:
            self._late.add(number)

    async def stop(self, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL a few seconds after ``seconds``. It may have ended already."""
        if self._watch is None:
            return
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds + KILL_SECONDS):
                await self.ended.wait()
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
            except ValueError:  # longer than ``line_bytes``
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            word, *addresses = text.split(" ")
            if word == "ready":
                self.addresses = addresses
                self.ready.set()
                while self._late:
                    self.signal(self._late.pop())
            else:
                self._on_line(self.name, text)


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def ready_or_ended(child: Child) -> bool:
    """Wait until a child is ready (True) or has ended (False)."""
    waits = [asyncio.ensure_future(child.ready.wait()), asyncio.ensure_future(child.ended.wait())]
    await first_of(*waits)
    for wait in waits:
        wait.cancel()
    return child.ready.is_set() and not child.ended.is_set()


def how_it_ended(child: Child) -> str:
    return f"was ended by signal {-child.code}" if child.code < 0 else f"ended with exit status {child.code}"
