"""An ``http://`` listener: accepts and counts connections, and runs uvicorn's HTTP/1.1 protocol on them.

uvicorn's server is not used, because it takes over the signals of the process, and runs a timer ten times a second.
asyncio's is not used either: it does not report a connection before its TLS handshake is complete, and until then the
connection would not be counted.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import ssl
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from starlingmq.api.asgi import App, Receive, Scope, Send
from starlingmq.api.connection_limit import ConnectionLimit
from starlingmq.api.http_connection import IDLE_SECONDS, HttpConnection
from starlingmq.config.networks import is_among, parse_address
from starlingmq.core.limits.address_key import network_key
from starlingmq.net.listeners.accepting import TLS_CLOSE_TIMEOUT
from starlingmq.net.listeners.descriptors import file_limit
from starlingmq.net.listeners.listeners import bind_tcp, tls_context
from starlingmq.net.listeners.tls_handshake import HandshakeError, handshake
from starlingmq.net.listeners.urls import ListenerSpec

log = logging.getLogger("starlingmq.http")

CONNECTIONS_MAX: Final = 200
CONNECTIONS_PER_ADDRESS: Final = 120
DESCRIPTORS_OF_OTHERS: Final = 192  # reserved for storage and links: a part of the reserve in listeners/descriptors.py
CONNECTIONS_WHEN_SHORT: Final = 64  # limit while only the reserve is left
ACCEPTED_IN_TURN: Final = 16  # of the event loop, some 5 ms
STOP_SECONDS: Final = 1.0  # for replies in progress when the broker stops
SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SHORTAGE_SECONDS: Final = 0.1  # pause in accepting when there are no descriptors
TELL_SECONDS: Final = 60.0  # between two log lines about too many connections


class _State(ServerState):
    """State that connections share. Each response has a date (RFC 9110, 6.6.1)."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode())]

    @default_headers.setter
    def default_headers(self, value: list[tuple[bytes, bytes]]) -> None:
        """Ignored: the headers are fixed."""


class HttpListener:
    """An open listener. ``address`` is its URL with the bound port."""

    def __init__(self, spec: ListenerSpec, context: ssl.SSLContext | None) -> None:
        self.spec = spec
        self.address = ""
        self.connection_limit = ConnectionLimit(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS)
        self._context = context
        self._state = _State()
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._beginning: set[asyncio.Task[None]] = set()
        self._logged_at = float("-inf")

    async def open(self, app: App, handshake_timeout: float) -> None:
        """``handshake_timeout`` in seconds. Raises ListenerError."""

        async def cancelled_quietly(scope: Scope, receive: Receive, send: Send) -> None:
            with suppress(asyncio.CancelledError):  # by ``close``; uvicorn would log it as an error
                await app(scope, receive, send)

        config: Any = uvicorn.Config(
            cancelled_quietly,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
        )
        config.load()
        self._config = config
        self._handshake_timeout = handshake_timeout
        self.address, self._sockets = await bind_tcp(asyncio.get_running_loop(), self.spec)
        self._accepting = [asyncio.ensure_future(self._accept(sock)) for sock in self._sockets]

    def reload_tls(self) -> None:
        """As for other listeners. Raises ListenerError."""
        if self._context is not None:
            self._context = tls_context(self.spec)

    async def close(self) -> None:
        """Stop accepting, and close all connections. May be called again."""
        tasks = [*self._accepting, *self._beginning]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in self._sockets:
            sock.close()
        self._accepting.clear()
        self._sockets.clear()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=STOP_SECONDS)
        for connection in list(self._state.connections):
            if isinstance(connection, H11Protocol) and connection.transport is not None:
                connection.transport.abort()
        while self._state.connections:
            await asyncio.sleep(0)
        late = list(self._state.tasks)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    # From accepting a connection to its first byte.

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in itertools.count(1):
            if number % ACCEPTED_IN_TURN == 0:
                await asyncio.sleep(0)  # ``sock_accept`` does not wait while connections wait
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in SHORTAGES:
                    self._log_rarely(f"cannot accept connections ({error.strerror}); raise the limit of open files")
                    self.connection_limit.evict()
                    await asyncio.sleep(SHORTAGE_SECONDS)
                continue  # or the connection is closed already
            self._arrived(sock)

    def _arrived(self, sock: socket.socket) -> None:
        """Count the connection before anything is read from it."""
        try:
            address = str(sock.getpeername()[0])
        except OSError:
            sock.close()
            return
        proxy = is_among(parse_address(address), self.spec.trusted_proxies)
        key = "" if proxy else network_key(address)
        connection = HttpConnection(
            self._config, self._state, self.spec.trusted_proxies, key, self.connection_limit.leave
        )
        before = self.connection_limit.evicted
        if sock.fileno() >= file_limit() - DESCRIPTORS_OF_OTHERS:
            while len(self.connection_limit) >= CONNECTIONS_WHEN_SHORT and self.connection_limit.evict():
                pass
        entered = self.connection_limit.enter(connection)
        if not entered or self.connection_limit.evicted != before:
            self._log_rarely("too many connections; the ones that have been idle longest are closed")
        if not entered:
            sock.close()
            return
        task = connection.beginning = asyncio.ensure_future(self._begin(sock, connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        task.add_done_callback(lambda _: self._has_begun(sock, connection))

    async def _begin(self, sock: socket.socket, connection: HttpConnection) -> None:
        """Set up the connection, after the TLS handshake if there is one."""
        connect = asyncio.get_running_loop().connect_accepted_socket
        with suppress(OSError, HandshakeError):  # it is closed already, or the handshake failed or timed out
            if self._context is None:
                await connect(lambda: connection, sock)
            else:
                upgrade = connect(
                    lambda: connection,
                    sock,
                    ssl=self._context,
                    ssl_handshake_timeout=self._handshake_timeout,
                    ssl_shutdown_timeout=TLS_CLOSE_TIMEOUT,
                )
                await handshake(upgrade, sock)

    def _has_begun(self, sock: socket.socket, connection: HttpConnection) -> None:
        if connection.transport is None:
            self.connection_limit.leave(connection)
            sock.close()

    def _log_rarely(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= TELL_SECONDS:
            self._logged_at = now
            log.warning("%s: %s", self.address, text)
