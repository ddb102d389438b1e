"""A TCP proxy that injects faults between two nodes, in one process or several.

It runs in its own thread, so both synchronous and asynchronous tests can use it. ``OUT`` is the direction from the
caller to the target, ``BACK`` the other one. If several nodes connect through one proxy, ``name_caller`` identifies
them by the source port of a connection, and each can be cut off separately.
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
WAITING_CHUNKS_MAX: Final = 1024  # delayed chunks of one direction of one connection


EVERYBODY: Final = ""


class _Connection:
    def __init__(self, caller: str, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        self.caller = caller
        self.writers = writers
        self.lossy = False  # bytes were discarded, so the connection is unusable

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """``with Proxy("127.0.0.1", 1234) as proxy`` listens on ``proxy.address``. ``connections`` counts accepted
    connections.
    """

    def __init__(self, host: str, port: int, name_caller: Callable[[int], str] = lambda port: EVERYBODY) -> None:
        self.target = (host, port)
        self.address = ""
        self.connections = 0
        self._name_caller = name_caller
        self._delay = 0.0
        self._cut: set[tuple[str, str]] = set()  # caller, direction
        self._swallowed: set[str] = set()
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._healed = asyncio.Event()  # wakes waiting tasks, which check again and wait for the next event
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

    def cut(self, *directions: str, caller: str = EVERYBODY) -> None:
        """Stall a direction (none: both): bytes are delayed, none is lost, and no connection is closed."""
        self._do(lambda: self._cut.update((caller, direction) for direction in directions or (OUT, BACK)))

    def swallow(self, *directions: str) -> None:
        """Read and discard bytes of a direction (none: both); ``heal`` closes connections that lost any."""
        self._do(lambda: self._swallowed.update(directions or (OUT, BACK)))

    def delay(self, seconds: float) -> None:
        """Delay all bytes in both directions."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def disconnect(self, caller: str = EVERYBODY) -> None:
        """Reset all connections; new ones are accepted."""
        self._do(lambda: self._abort(lambda connection: caller in (EVERYBODY, connection.caller)))

    def heal(self) -> None:
        self._do(self._heal)

    def _do(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(10)

    def _heal(self) -> None:
        self._delay = 0.0
        self._swallowed.clear()
        self._cut.clear()
        self._healed.set()
        self._healed = asyncio.Event()
        self._abort(lambda connection: connection.lossy)

    def _abort(self, which: Callable[[_Connection], bool]) -> None:
        for connection in self._open:
            if which(connection):
                connection.abort()

    async def _passable(self, connection: _Connection, direction: str) -> None:
        """Wait until that direction is not cut."""
        while not self._cut.isdisjoint([(connection.caller, direction), (EVERYBODY, direction)]):
            await self._healed.wait()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._loop.shutdown_default_executor()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass  # by _stop, which awaits this task
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = await self._loop.run_in_executor(None, self._name_caller, writer.get_extra_info("peername")[1])
        try:
            target_reader, target_writer = await asyncio.open_connection(*self.target)
        except OSError:
            return
        connection = _Connection(caller, (writer, target_writer))
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
        forwarding = asyncio.ensure_future(self._forward(connection, direction, waiting, writer))
        try:
            with suppress(ConnectionError):
                while data := await reader.read(CHUNK_BYTES):
                    if direction in self._swallowed:
                        connection.lossy = True
                        continue
                    await waiting.put((self._loop.time() + self._delay, data))
            await self._passable(connection, direction)  # a cut direction stalls the end of the stream too
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)

    async def _forward(
        self,
        connection: _Connection,
        direction: str,
        waiting: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
    ) -> None:
        with suppress(ConnectionError):
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(due - self._loop.time(), 0))
                await self._passable(connection, direction)
                writer.write(data)
                await writer.drain()
