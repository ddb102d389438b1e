"""The control socket: a Unix socket in the data directory, through which commands reach the serving broker.

One connection is one request: a line of JSON ``{"action": name, "arguments": {name: text}}``. The reply is lines of
JSON: any number of ``{"progress": {"what", "done", "total", "unit"}}``, then one ``{"result": ...}`` or ``{"error":
text}``. Closing the connection cancels the action. Only the owner of the socket may connect: by the mode of the file,
and by the user of the process at the other end (the owner, or root).

Bounds: a request has at most ``REQUEST_BYTES_MAX`` bytes and must arrive within ``REQUEST_SECONDS``. At most
``CONNECTIONS_MAX`` requests run at a time, and at most one of those in ``long``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from starlingmq.net.control_path import reachable
from starlingmq.net.listeners.sockets import SocketFile, listen_unix
from starlingmq.net.operators import on_behalf_of, system_user

log = logging.getLogger("starlingmq")

REQUEST_BYTES_MAX: Final = 64 << 10
REQUEST_SECONDS: Final = 10.0
REFUSAL_SECONDS: Final = 1.0
CONNECTIONS_MAX: Final = 8

CREDENTIALS: Final = struct.Struct("=iII")  # process, user, group

Report = Callable[[str, int, int, str], None]
Action = Callable[[Report, dict[str, str]], Awaitable[dict[str, Any]]]


class CalledOff(Exception):
    """The client has closed the connection, so no result is needed."""


class ControlBusy(Exception):
    """An action is running that must run alone."""


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: str
    arguments: dict[str, str] = {}


class ControlServer:
    """``actions`` by name. They are coroutines that run blocking work in threads, and call their report from time to
    time. ``node``: its name, for the log."""

    def __init__(self, path: Path, actions: Mapping[str, Action], long: Collection[str], node: str = "") -> None:
        self.path = path
        self._node = node
        self._actions = actions
        self._long = long
        self._running = ""  # the long action that is running
        self._open: dict[asyncio.Task[None], threading.Event] = {}
        self._acting: set[asyncio.Task[None]] = set()  # those whose request has been read
        self._server: asyncio.Server | None = None
        self._file: SocketFile | None = None
        self._stopping = False

    async def start(self) -> None:
        """Raises OSError if the socket cannot be created, for example because another process listens there."""
        with reachable(self.path) as path:
            mask = os.umask(0o177)
            try:
                sock, _ = listen_unix(path)
            finally:
                os.umask(mask)
        self._file = SocketFile(str(self.path))
        self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=REQUEST_BYTES_MAX)

    async def stop(self) -> None:
        """Cancel running actions and wait for their end: afterwards none of them uses the store."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        if self._file is not None:
            self._file.remove()
        for task, called_off in self._open.items():
            called_off.set()
            if task not in self._acting:
                task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        called_off = threading.Event()
        crowded = len(self._open) >= CONNECTIONS_MAX
        self._open[task] = called_off
        try:
            if not _may_ask(writer):
                await _refuse(reader, writer, "the control socket is only for the user that the broker runs as")
            elif crowded or self._stopping:
                why = "the broker is stopping" if self._stopping else "too many requests at once"
                await _refuse(reader, writer, why)
            else:
                await self._answer(reader, writer, task, called_off)
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(REQUEST_SECONDS):
                    await writer.drain()
        except asyncio.CancelledError:
            if not self._stopping:  # asyncio of Python 3.11 logs a cancelled handler as an error
                raise
        finally:
            del self._open[task]
            writer.close()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        task: asyncio.Task[None],
        called_off: threading.Event,
    ) -> None:
        try:
            request = await _read(reader)
            action = self._actions[request.action]
        except (TimeoutError, ConnectionError):
            return
        except KeyError as error:
            _write(writer, {"error": f"unknown action {error}"})
            return
        except ValueError as error:  # too long, not JSON, or not of this form
            _write(writer, {"error": f"the request is malformed: {error}"})
            return
        self._acting.add(task)
        watch = asyncio.ensure_future(_hung_up(reader, called_off))
        try:
            with self._alone(request.action), on_behalf_of(system_user(_user_of(writer), self._node)):
                result = await action(_Reporter(writer, called_off), request.arguments)
        except Exception as error:
            _write(writer, {"error": _explain(request.action, error)})
        else:
            _write(writer, {"result": result})
        finally:
            watch.cancel()
            self._acting.discard(task)

    @contextmanager
    def _alone(self, action: str) -> Iterator[None]:
        if action not in self._long:
            yield
            return
        if self._running:
            raise ControlBusy(f"{self._running} is running; try again when it has finished")
        self._running = action
        try:
            yield
        finally:
            self._running = ""


def _may_ask(writer: asyncio.StreamWriter) -> bool:
    """Whether the process at the other end belongs to the broker's user or to root, if the system tells."""
    return _user_of(writer) in (None, 0, os.geteuid())


def _user_of(writer: asyncio.StreamWriter) -> int | None:
    """The user of the process at the other end; None: the system does not tell (other than Linux)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    told = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(told)
    return int(user)


async def _read(reader: asyncio.StreamReader) -> ControlRequest:
    async with asyncio.timeout(REQUEST_SECONDS):
        line = await reader.readline()
    if not line:
        raise ConnectionResetError
    return msgspec.json.decode(line, type=ControlRequest)


def _explain(action: str, error: Exception) -> str:
    """The error in one line, for the client."""
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else reason
    if type(error).__module__.startswith("starlingmq."):
        return str(error) or f"{action} was cancelled"
    log.exception("%s failed", action)
    return f"unexpected {type(error).__name__}: {error}"


class _Reporter:
    """May be called from any thread. While a report is unsent, a newer one replaces it."""

    def __init__(self, writer: asyncio.StreamWriter, called_off: threading.Event) -> None:
        self._writer = writer
        self._called_off = called_off
        self._loop = asyncio.get_running_loop()
        self._latest: dict[str, Any] | None = None

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        if self._called_off.is_set():
            raise CalledOff
        waiting = self._latest is not None
        self._latest = {"what": what, "done": done, "total": total, "unit": unit}
        if not waiting:
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        latest, self._latest = self._latest, None
        if not self._writer.transport.get_write_buffer_size():
            _write(self._writer, {"progress": latest})


async def _hung_up(reader: asyncio.StreamReader, called_off: threading.Event) -> None:
    with suppress(ConnectionError):
        while await reader.read(1024):
            pass
    called_off.set()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, why: str) -> None:
    """Answer without a look at the request. It has to be read: the system discards the answer if a connection is closed
    with unread bytes."""
    _write(writer, {"error": why})
    with suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(REFUSAL_SECONDS):
            while await reader.read(REQUEST_BYTES_MAX):
                pass


def _write(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(msgspec.json.encode(answer) + b"\n")
