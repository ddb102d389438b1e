"""One connection to a broker as a byte stream, whatever carries it: TCP, TLS, a Unix socket or a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from wsproto import WSConnection
from wsproto.connection import ConnectionType
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

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


class WebLink(Link):
    """MQTT inside the binary messages of a WebSocket, subprotocol ``mqtt`` [MQTT-6.0.0-1] to [MQTT-6.0.0-4]."""

    def __init__(self, owner: Owner, endpoint: Endpoint) -> None:
        super().__init__(owner)
        self._endpoint = endpoint
        self._web = WSConnection(ConnectionType.CLIENT)

    def _opened(self) -> None:
        host = self._endpoint.host if ":" not in self._endpoint.host else f"[{self._endpoint.host}]"
        request = Request(host=f"{host}:{self._endpoint.port}", target=self._endpoint.path, subprotocols=["mqtt"])
        super().write(self._web.send(request))

    def data_received(self, data: bytes) -> None:
        try:
            self._web.receive_data(data)
            for event in self._web.events():
                self._on_event(event)
        except RemoteProtocolError as error:
            self._refuse(f"not a WebSocket server: {error}")

    def _on_event(self, event: object) -> None:
        if isinstance(event, BytesMessage):
            self._owner.link_received(bytes(event.data))
        elif isinstance(event, AcceptConnection):
            if event.subprotocol != "mqtt":
                self._refuse("the WebSocket server does not speak the subprotocol mqtt")
            elif not self.ready.done():
                self.ready.set_result(None)
        elif isinstance(event, RejectConnection):
            self._refuse(f"the server answered HTTP {event.status_code} at {self._endpoint.path}")
        elif isinstance(event, Ping):
            super().write(self._web.send(event.response()))
        elif isinstance(event, CloseConnection):
            super().write(self._web.send(event.response()))
            super().close()
        elif isinstance(event, TextMessage):
            self._refuse("the server sent text in a WebSocket that carries MQTT")  # [MQTT-6.0.0-1]
        elif not isinstance(event, RejectData | Pong):
            self._refuse(f"unexpected {type(event).__name__}")

    def _refuse(self, why: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectFailed(why))
            self.ready.exception()
        self.abort()

    def write(self, data: bytes) -> None:
        if not self.closed.done():
            super().write(self._web.send(BytesMessage(data=data)))

    def close(self) -> None:
        with contextlib.suppress(LocalProtocolError):  # closing already
            super().write(self._web.send(CloseConnection(code=1000)))
        super().close()


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
        return WebLink(owner, endpoint) if endpoint.web else Link(owner)

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
