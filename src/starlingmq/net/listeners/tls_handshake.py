"""TLS handshakes of accepted connections: how failures reach the client and the log.

``secure`` is for sockets that the event loop of ``net/broker_loop.py`` serves itself: OpenSSL writes to them, alerts
included. ``handshake`` is for everything else. When a handshake fails there, the event loops close the connection
before the TLS alert is written, so the client sees a bare reset and cannot tell a revoked certificate from a broken
network. So the alert is sent first:

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
from typing import Any, Final, TypeVar

LINGER: Final = 1.0  # seconds
DISCARDED: Final = 16 * 1024  # bytes at once

T = TypeVar("T")


class HandshakeError(Exception):
    """``reason`` is counted; ``detail`` is one line for the log, "" if there is nothing to log."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class _Handshake:
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


_under_way: ContextVar[_Handshake | None] = ContextVar("_under_way", default=None)


class TlsObject(ssl.SSLObject):
    """OpenSSL's side of one connection."""

    handshake: _Handshake | None = None

    def do_handshake(self) -> None:
        handshake = self.handshake
        if handshake is None:
            super().do_handshake()
            return
        if handshake.failure is not None:
            handshake.discard()
            raise ssl.SSLWantReadError
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            handshake.fail(error)
            raise ssl.SSLWantReadError from None
        self.handshake = None


class ServerContext(ssl.SSLContext):
    """A context whose connections belong to the handshake of the task in which they are made. ``whole_subject``:
    clients are named by the subject of their certificate, not by its common name."""

    whole_subject = False

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **keywords: Any) -> ssl.SSLObject:
        wrapped = super().wrap_bio(incoming, outgoing, *args, **keywords)
        handshake = _under_way.get()
        if handshake is not None and isinstance(wrapped, TlsObject):
            handshake.incoming = incoming
            wrapped.handshake = handshake
        return wrapped


ServerContext.sslobject_class = TlsObject


async def secure(sock: ssl.SSLSocket, timeout: float) -> None:
    """Complete the handshake of a socket that does not block, within ``timeout`` seconds. Raises HandshakeError."""
    try:
        async with asyncio.timeout(timeout):
            await _shake_hands(sock)
    except ssl.SSLError as error:
        await _linger(sock)
        raise _explained(error) from None
    except (OSError, TimeoutError) as error:
        raise _explained(error) from None


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            await _until_readable(sock)
        except ssl.SSLWantWriteError:
            await _until_writable(sock)
        else:
            return


async def _linger(sock: ssl.SSLSocket) -> None:
    """The alert is written: close the sending half, and discard what comes until the client closes its own."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER):
            sock.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not sock.recv(DISCARDED):
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
    under_way = _Handshake(sock)
    _under_way.set(under_way)
    try:
        made = await upgrade
    except asyncio.CancelledError:
        if under_way.failure is None:
            raise
        raise _explained(under_way.failure) from None
    except (OSError, TimeoutError) as error:  # includes ssl.SSLError
        raise _explained(under_way.failure or error) from None
    finally:
        _under_way.set(None)
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
