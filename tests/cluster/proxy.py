"""A TCP proxy that breaks what goes through it: for the way between two nodes, in one process or several.

It runs in a thread of its own, so tests that wait and tests that await use it alike. ``OUT`` is from who connects to
the target, ``BACK`` the other direction.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

OUT: Final = "out"
BACK: Final = "back"
CHUNK_BYTES: Final = 64 * 1024
WAITING_CHUNKS_MAX: Final = 1024  # of one direction of one connection, while they are delayed


class _Connection:
    def __init__(self, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        self.writers = writers
        self.lossy = False  # bytes were swallowed: what is left of it is no use

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """``with Proxy("127.0.0.1", 1234) as proxy`` listens on ``proxy.address``. ``connections`` counts those made."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.address = ""
        self.connections = 0
        self._delay = 0.0
        self._swallowed: set[str] = set()
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self, *directions: str) -> None:
        """Stall a direction (none: both): nothing is lost, nothing arrives, and nobody is told."""
        self._do(lambda: self._shut(directions or (OUT, BACK)))

    def swallow(self, *directions: str) -> None:
        """Read and throw away what goes in a direction (none: both); ``heal`` closes connections that lost any."""
        self._do(lambda: self._swallowed.update(directions or (OUT, BACK)))

    def delay(self, seconds: float) -> None:
        """Everything arrives that much later, in both directions."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def disconnect(self) -> None:
        """Reset all connections; new ones are let through."""
        self._do(lambda: self._abort(lossy_only=False))

    def heal(self) -> None:
        self._do(self._heal)

    def _do(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(10)

    def _heal(self) -> None:
        self._delay = 0.0
        self._swallowed.clear()
        for gate in self._gates.values():
            gate.set()
        self._abort(lossy_only=True)

    def _shut(self, directions: tuple[str, ...]) -> None:
        for direction in directions:
            self._gates[direction].clear()

    def _abort(self, *, lossy_only: bool) -> None:
        for connection in self._open:
            if connection.lossy or not lossy_only:
                connection.abort()

    async def _start(self) -> None:
        self._gates = {OUT: asyncio.Event(), BACK: asyncio.Event()}
        for gate in self._gates.values():
            gate.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass  # by _stop, which waits for us
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection(*self.target)
        except OSError:
            return
        connection = _Connection((writer, target_writer))
        self._open.add(connection)
        self.connections += 1
        ways = ((OUT, reader, target_writer), (BACK, target_reader, writer))
        pumps = [asyncio.ensure_future(self._pump(connection, *way)) for way in ways]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(connection)
            connection.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, connection: _Connection, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING_CHUNKS_MAX)
        forwarding = asyncio.ensure_future(self._forward(direction, waiting, writer))
        try:
            with suppress(ConnectionError):
                while data := await reader.read(CHUNK_BYTES):
                    if direction in self._swallowed:
                        connection.lossy = True
                        continue
                    await waiting.put((self._loop.time() + self._delay, data))
            await self._gates[direction].wait()  # an end is not seen either while the way is cut
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)

    async def _forward(
        self, direction: str, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(due - self._loop.time(), 0))
                await self._gates[direction].wait()
                writer.write(data)
                await writer.drain()
