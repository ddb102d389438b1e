"""An ``http://`` listener: uvicorn's HTTP/1.1 protocol on a socket of ours, in the broker's own event loop.

uvicorn's server is left out: it takes the signals of the process, and a timer ten times a second.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from email.utils import formatdate
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from starlingmq.api.asgi import HEAD_BYTES_MAX, App
from starlingmq.config_networks import Network
from starlingmq.net.listeners import bind_tcp, tls_context
from starlingmq.net.sockets import BACKLOG
from starlingmq.net.tls import load_certificate
from starlingmq.net.urls import ListenerSpec

HEAD_SECONDS: Final = 10.0  # from connecting, or the end of a TLS handshake, to the first request
IDLE_SECONDS: Final = 30  # between two requests
CONNECTIONS_MAX: Final = 200  # who comes then is closed; 503 from half of them on
STOP_SECONDS: Final = 1.0  # for answers that are on their way when the broker stops


class _State(ServerState):
    """What connections share; each answer has a date (RFC 9110, 6.6.1)."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode())]

    @default_headers.setter
    def default_headers(self, value: list[tuple[bytes, bytes]]) -> None:
        """They are as above."""


class _Connection(H11Protocol):
    """Bounded in number and in time. What strangers send is no line in the log."""

    def __init__(self, config: uvicorn.Config, state: ServerState, trusted_proxies: tuple[Network, ...]) -> None:
        super().__init__(config, state, {"trusted_proxies": trusted_proxies})
        self.logger = _quiet
        self.access_log = False
        self._head: asyncio.TimerHandle | None = None  # until the head of a request that has begun is complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._head = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._in_time()
        elif self._head is None and (before is None or before.response_complete) and not self.transport.is_closing():
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Only where an answer may begin: when a body turns out to be wrong, its request may have been answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what the application still says is not sent
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            # Without a body: to h11 this may still be the answer to a HEAD.
            headers = [(b"connection", b"close"), (b"content-length", b"0")]
            response = self.conn.send(h11.Response(status_code=400, headers=headers, reason=b"Bad Request"))
            self.transport.write((response or b"") + (self.conn.send(h11.EndOfMessage()) or b""))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


_quiet = logging.getLogger("starlingmq.http.protocol")
_quiet.setLevel(logging.ERROR)


class HttpListener:
    """An open listener; ``address`` is its URL with the port that was bound."""

    def __init__(self, spec: ListenerSpec, context: ssl.SSLContext | None) -> None:
        self.spec = spec
        self.address = ""
        self._context = context
        self._state = _State()
        self._servers: list[asyncio.Server] = []

    async def open(self, app: App) -> None:
        """Raises ListenerError."""
        config: Any = uvicorn.Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            limit_concurrency=CONNECTIONS_MAX // 2,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        loop = asyncio.get_running_loop()
        self.address, sockets = await bind_tcp(loop, self.spec)
        for sock in sockets:
            server = await loop.create_server(
                lambda: _Connection(config, self._state, self.spec.trusted_proxies),
                sock=sock,
                ssl=self._context,
                backlog=BACKLOG,
            )
            self._servers.append(server)

    def reload_tls(self) -> None:
        """As that of other listeners. Raises ListenerError."""
        if self._context is not None and self.spec.tls is not None:
            tls_context(self.spec)  # a bad pair of files could leave ours with half of them
            load_certificate(self._context, self.spec.tls)

    async def close(self) -> None:
        """Let no more in, and end what is open. May be called again."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=STOP_SECONDS)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            if isinstance(connection, H11Protocol) and connection.transport is not None:
                connection.transport.abort()
        while self._state.connections:
            await asyncio.sleep(0)
