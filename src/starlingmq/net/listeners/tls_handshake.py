"""TLS handshakes of accepted connections: how failures reach the client and the log.

Sockets that the event loop of ``net/broker_loop.py`` serves itself are those of ``net/tls_handshake_socket.py``.
``handshake`` is for everything else. When a handshake fails there, the event loops close the connection before the TLS
alert is written, so the client sees a bare reset and cannot tell a revoked certificate from a broken network. So the
alert is sent first:

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
from typing import Any, Final, NamedTuple, TypeVar

LINGER: Final = 1.0  # seconds
RECEIVED: Final = 16 * 1024  # bytes at once

T = TypeVar("T")


class HandshakeError(Exception):
    """``reason`` is counted; ``detail`` is one line for the log, "" if there is nothing to log."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class TlsHandshake:
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


current: ContextVar[TlsHandshake | None] = ContextVar("current", default=None)


class TlsBuffers:
    """OpenSSL reads and writes these instead of a socket. All connections of a listener share them."""

    def __init__(self) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()


class Secured(NamedTuple):
    """A connection whose handshake is complete. ``early``: encrypted bytes that came with the end of the handshake;
    ``unsent``: its last bytes, for which the kernel had no room."""

    tls: ssl.SSLObject
    buffers: TlsBuffers
    early: bytes
    unsent: bytes = b""


async def linger(sock: socket.socket) -> None:
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


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def handshake(upgrade: Coroutine[Any, Any, T], sock: socket.socket) -> T:
    """Await the upgrade of a socket to TLS. Raises HandshakeError if the handshake fails."""
    under_way = TlsHandshake(sock)
    current.set(under_way)
    try:
        made = await upgrade
    except asyncio.CancelledError:
        if under_way.failure is None:
            raise
        raise explained(under_way.failure) from None
    except (OSError, TimeoutError) as error:  # includes ssl.SSLError
        raise explained(under_way.failure or error) from None
    finally:
        current.set(None)
        under_way.end()
    if under_way.failure is not None:
        raise explained(under_way.failure)
    return made


def explained(error: Exception) -> HandshakeError:
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
