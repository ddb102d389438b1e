"""TLS handshakes of accepted connections: how failures reach the client and the log.

``secure`` is for sockets that the event loop of ``net/broker_loop.py`` serves itself. ``handshake`` is for everything
else. When a handshake fails there, the event loops close the connection before the TLS alert is written, so the client
sees a bare reset and cannot tell a revoked certificate from a broken network. So the alert is sent first:

1. ``do_handshake`` fails. The failure is stored, and the event loop is told that more bytes are needed: it writes
   OpenSSL's output, which is the alert.
2. The sending half of the connection is closed after it. If the whole connection were closed, bytes that the client has
   sent meanwhile would make the kernel reset the connection, and the reset can overtake the alert.
3. The client closes its half, or ``LINGER`` seconds pass. Its input until then is discarded.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from starlingmq.net.listeners.handshake_queue import HandshakeQueue

LINGER: Final = 1.0  # seconds
RECEIVED: Final = 16 * 1024  # bytes at once

T = TypeVar("T")


class HandshakeError(Exception):
    """``reason`` is counted; ``detail`` is one line for the log, "" if there is nothing to log."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Handshake:
    """A handshake in progress, in a separate task."""

    __slots__ = ("failure", "incoming", "sock", "task", "timer")

    def __init__(self, sock: socket.socket) -> None:
        self.sock: socket.socket | None = sock
        self.incoming: ssl.MemoryBIO | None = None
        self.failure: ssl.SSLError | None = None
        self.task = asyncio.current_task()
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Release everything: the event loop keeps the context, and so this object, as long as the connection."""
        if self.timer is not None:
            self.timer.cancel()
        self.sock = self.incoming = self.task = self.timer = None

    def fail(self, error: ssl.SSLError) -> None:
        self.failure = error
        loop = asyncio.get_running_loop()
        loop.call_soon(self._close_our_half)
        assert self.task is not None
        self.timer = loop.call_later(LINGER, self.task.cancel)

    def discard(self) -> None:
        if self.incoming is not None:
            self.incoming.read()

    def _close_our_half(self) -> None:
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)


current: ContextVar[Handshake | None] = ContextVar("current", default=None)


class TlsBuffers:
    """OpenSSL reads and writes these instead of a socket. All connections of a listener share them."""

    def __init__(self) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()


class Secured(NamedTuple):
    """A connection whose handshake is complete. ``early``: bytes that came with the end of the handshake."""

    tls: ssl.SSLObject
    buffers: TlsBuffers
    early: bytes


class _Step(NamedTuple):
    """``answer`` is for the client; with a ``failure`` it is an alert."""

    complete: bool
    early: bytes
    answer: bytes
    failure: ssl.SSLError | None


async def secure(
    sock: socket.socket, context: ssl.SSLContext, buffers: TlsBuffers, queue: HandshakeQueue, timeout: float
) -> Secured:
    """Complete the handshake on a socket that does not block, within ``timeout`` seconds. Raises HandshakeError."""
    try:
        async with asyncio.timeout(timeout):
            return await _shake_hands(sock, context, buffers, queue)
    except ssl.SSLError as error:
        await _linger(sock)
        raise _explained(error) from None
    except (OSError, TimeoutError) as error:
        raise _explained(error) from None


async def _shake_hands(
    sock: socket.socket, context: ssl.SSLContext, buffers: TlsBuffers, queue: HandshakeQueue
) -> Secured:
    """Raises OSError, which includes ssl.SSLError."""
    tls = context.wrap_bio(buffers.incoming, buffers.outgoing, server_side=True)
    while True:
        try:
            data = sock.recv(RECEIVED)
        except BlockingIOError:
            await _until_readable(sock)
            continue
        if not data:
            raise ConnectionResetError
        step = await queue.run(partial(_step, tls, buffers, data))
        if step.failure is not None:
            with suppress(OSError):
                sock.send(step.answer)
            raise step.failure
        await _send(sock, step.answer)
        if step.complete:
            return Secured(tls, buffers, step.early)


def _step(tls: ssl.SSLObject, buffers: TlsBuffers, data: bytes) -> _Step:
    """Continue a handshake with what has come. The buffers are empty before and after."""
    buffers.incoming.write(data)
    complete = False
    failure: ssl.SSLError | None = None
    try:
        tls.do_handshake()
        complete = True
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLError as error:
        failure = error
    finally:
        early, answer = buffers.incoming.read(), buffers.outgoing.read()
    return _Step(complete, early, answer, failure)


async def _send(sock: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            await _until_writable(sock)


async def _linger(sock: socket.socket) -> None:
    """The alert is written: close the sending half, and discard what comes until the client closes its own."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER):
            sock.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not sock.recv(RECEIVED):
                        return
                except BlockingIOError:
                    await _until_readable(sock)


async def _until_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(sock)


async def _until_writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock, _set, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def handshake(upgrade: Coroutine[Any, Any, T], sock: socket.socket) -> T:
    """Await the upgrade of a socket to TLS. Raises HandshakeError if the handshake fails."""
    under_way = Handshake(sock)
    current.set(under_way)
    try:
        made = await upgrade
    except asyncio.CancelledError:
        if under_way.failure is None:
            raise
        raise _explained(under_way.failure) from None
    except (OSError, TimeoutError) as error:  # includes ssl.SSLError
        raise _explained(under_way.failure or error) from None
    finally:
        current.set(None)
        under_way.end()
    if under_way.failure is not None:
        raise _explained(under_way.failure)
    return made


def _explained(error: Exception) -> HandshakeError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeError("client_certificate", f"its certificate was rejected: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return HandshakeError("client_certificate", "it sent no certificate, but tls.require_client_cert is set")
        name = str(error.reason or error).replace("_", " ").lower()
        return HandshakeError("tls_handshake", f"the TLS handshake failed: {name}")
    if isinstance(error, TimeoutError | ConnectionAbortedError):
        return HandshakeError("handshake_timeout", "the TLS handshake was not completed within mqtt.connect_timeout")
    return HandshakeError("tls_handshake", "")
