"""One connection to a broker as a byte stream, whatever carries it: TCP, TLS, a Unix socket or a WebSocket."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from starlingmq.client.endpoint import Endpoint, Tls
from starlingmq.client.errors import ConnectFailed


class Owner(Protocol):
    """What a link tells; all in the event loop, ``link_lost`` exactly once and last."""

    def link_received(self, data: bytes) -> None: ...

    def link_lost(self, link: Link, error: Exception | None) -> None: ...


class Link(asyncio.Protocol):
    """A raw byte stream. ``ready`` is done when MQTT bytes may be written."""

    def __init__(self, owner: Owner) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None
        self.on_writable: Callable[[], None] | None = None  # called when the system takes more again

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour only
        self._opened()

    def _opened(self) -> None:
        self.ready.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._owner.link_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.resume_writing()
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError("the connection was closed at once"))
            self.ready.exception()  # whoever waits gets it; nobody has to
        if not self.closed.done():
            self.closed.set_result(None)
            self._owner.link_lost(self, error)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if self.on_writable is not None:
            self.on_writable()

    @property
    def writable(self) -> bool:
        """Whether the system takes more: false while the transport's write buffer is full, and after the end."""
        return self._writable is None and self._transport is not None and not self._transport.is_closing()

    async def drained(self) -> None:
        """Wait until the system takes more; the bound is the transport's write buffer."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def set_reading(self, reading: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close once everything written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def open_link(endpoint: Endpoint, tls: Tls, owner: Owner) -> Link:
    """A link that is ready. Raises ConnectFailed with a sentence; on errors nothing stays open."""
    context: ssl.SSLContext | None = None
    if endpoint.secure:
        try:
            context = tls.context()
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(f"can not use the TLS files: {error}") from error
    try:
        return await _open(endpoint, context, owner)
    except OSError as error:
        raise ConnectFailed(_sentence(endpoint, error)) from error


async def _open(endpoint: Endpoint, context: ssl.SSLContext | None, owner: Owner) -> Link:
    loop = asyncio.get_running_loop()

    def make() -> Link:
        if endpoint.web:
            from starlingmq.client.weblink import WebLink  # its imports cost more than all the rest of a short command

            return WebLink(owner, endpoint)
        return Link(owner)

    link: Link
    if endpoint.scheme == "unix":
        _, link = await loop.create_unix_connection(make, endpoint.path)
        return link
    _, link = await loop.create_connection(make, endpoint.host, endpoint.port, ssl=context)
    try:
        await link.ready
    except BaseException:
        link.abort()
        raise
    return link


def _sentence(endpoint: Endpoint, error: OSError) -> str:
    """What happened and what to do, in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {endpoint} is not trusted: {error.verify_message} (give its authority, --cafile)"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with {endpoint}: {error.reason or error}"
    if isinstance(error, socket.gaierror):
        return f"no host is called {endpoint.host!r}: {error.strerror}"
    if endpoint.scheme == "unix" and isinstance(error, FileNotFoundError):
        return f"there is no socket {endpoint.path}; is the broker running?"
    # asyncio joins the failures of several addresses of one name into a text without an errno
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return f"nobody listens at {endpoint}; start a broker there (starlingmq serve) or name another with -h and -p"
    return f"can not connect to {endpoint}: {error.strerror or error}"
