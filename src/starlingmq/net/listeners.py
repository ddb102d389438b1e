"""Open listeners: from a listener's settings to a protocol object for each connection that is accepted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from starlingmq.config_cluster import is_loopback, is_wildcard, split_address
from starlingmq.net.connection import Connection, Driver
from starlingmq.net.gate import WRITE_BUFFER, Gate
from starlingmq.net.nats_tls import NatsTlsConnection
from starlingmq.net.sockets import BACKLOG, Address, SocketFile, hold_shared, listen_tcp, listen_unix
from starlingmq.net.tls import TlsError, load_certificate, server_context
from starlingmq.net.urls import DEFAULT_PATHS, ListenerError, ListenerSpec, parse_listener
from starlingmq.net.websocket import WebSocketConnection

__all__ = ["Listener", "ListenerError", "ListenerSpec", "open_listener", "parse_listener"]

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds for a TLS handshake: until it is done the driver does not know of the connection and has no timer for it."""

ACCEPT_TURNS: Final = 4
"""Turns of the event loop from accepting a connection to ``connection_made``, and one more."""

_PROTOCOLS: Final = {  # by ALPN
    "mqtts": ["mqtt"],
    "wss": ["http/1.1"],
    "nats+wss": ["http/1.1"],
    "tls": ["nats"],
    "https": ["http/1.1"],
}

TLS_CLOSE_TIMEOUT: Final = 5.0
"""Seconds that a closing TLS connection waits for its peer to agree."""


class Listener:
    """An open listener. ``gate`` counts its connections and what it refused."""

    def __init__(self, spec: ListenerSpec, gate: Gate, context: ssl.SSLContext | None, file: SocketFile | None) -> None:
        self.spec = spec
        self.gate = gate
        self._context = context
        self._file = file
        self._servers: list[asyncio.Server] = []

    @property
    def address(self) -> str:
        """The URL, with the port that was bound."""
        return self.gate.name

    @property
    def bound(self) -> ListenerSpec:
        """What it was opened with, and the port that came of it."""
        if self.spec.scheme == "unix":
            return self.spec
        _, port = split_address(self.address.partition("://")[2].partition("/")[0], self.address)
        return self.spec._replace(port=port)

    def advertised(self, node_host: str) -> str:
        """The URL that clients elsewhere reach it at, "" if they do not; ``node_host`` is where other nodes do."""
        spec = self.spec
        if spec.scheme == "unix":
            return ""
        scheme, _, rest = self.address.partition("://")
        authority, slash, path = rest.partition("/")
        host, port = split_address(authority, self.address)
        if spec.advertise:
            authority = spec.advertise
        elif is_wildcard(host):
            authority = f"[{node_host}]:{port}" if ":" in node_host else f"{node_host}:{port}"
        elif is_loopback(host) and not is_loopback(node_host):
            return ""
        return f"{scheme}://{authority}{slash}{path}"

    async def stop(self) -> None:
        """``close``, when every connection that was accepted is known to the driver.

        asyncio forgets a connection that it accepts in the turn in which its server is closed:
        nobody closes it, and its client waits for ever. So accepting ends a few turns before the server does.
        """
        for server in self._servers:
            for sock in server.sockets:
                server.get_loop().remove_reader(sock.fileno())  # uvloop has no reader here, nor this problem
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        self.close()

    def close(self) -> None:
        """Accept no more; connections that are open stay. May be called again."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._file is not None:
            self._file.remove()
            self._file = None

    def reload_tls(self) -> None:
        """Show the certificate that the files hold now to whoever connects from now on.

        Raises ListenerError, and then everything is as before.
        """
        if self._context is None or self.spec.tls is None:
            return
        # Loading a bad pair of files into a context can leave it with half of them: try it on another one first.
        tls_context(self.spec)
        load_certificate(self._context, self.spec.tls)


async def open_listener(
    loop: asyncio.AbstractEventLoop,
    spec: ListenerSpec,
    driver: Driver,
    *,
    write_buffer: int = WRITE_BUFFER,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
) -> Listener:
    """Bind, and hand what connects to the driver from the next turn of the loop on.

    ``write_buffer`` in bytes (``limits.write_buffer``), ``handshake_timeout`` in seconds (``mqtt.connect_timeout``).
    Raises ListenerError, and then nothing is left bound.
    """
    context = tls_context(spec)
    try:
        sockets, file = await _listen(loop, spec)
    except OSError as error:
        raise ListenerError(f"{spec}: cannot listen: {error.strerror or error}") from error
    identity = spec.tls is not None and spec.tls.use_identity_as_username
    subprotocol = "" if spec.scheme.startswith("nats") else "mqtt"
    name = str(_bound(spec, sockets))
    gate = Gate(name, spec.max_connections, write_buffer, spec.path, identity, subprotocol, spec.origins)
    listener = Listener(spec, gate, context, file)
    accept = _acceptor(spec, driver, gate, context, handshake_timeout)
    for sock in sockets:
        first = None if spec.scheme == "tls" else context  # NATS says INFO before
        listener._servers.append(await _serve(loop, accept, sock, first, handshake_timeout))
    return listener


def tls_context(spec: ListenerSpec) -> ssl.SSLContext | None:
    """The TLS context of a listener, None if it has none; raises ListenerError."""
    if spec.tls is None:
        return None
    try:
        return server_context(spec.tls, _PROTOCOLS[spec.scheme])
    except TlsError as error:
        raise ListenerError(f"{spec}: {error}") from error


async def _listen(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> tuple[list[socket.socket], SocketFile | None]:
    if spec.scheme == "unix":
        sock, file = listen_unix(spec.path)
        return [sock], file
    return listen_tcp(await _addresses(loop, spec), spec.port, spec.reuse_port), None


async def hold_port(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> tuple[ListenerSpec, list[socket.socket]]:
    """Keep the port of a listener for processes that will share it; the listener with its port. Raises ListenerError.

    The sockets hold the port until they are closed.
    """
    try:
        sockets = hold_shared(await _addresses(loop, spec), spec.port)
    except OSError as error:
        raise ListenerError(f"{spec}: cannot listen: {error.strerror or error}") from error
    return spec._replace(port=sockets[0].getsockname()[1], reuse_port=True), sockets


async def refuse_taken(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> None:
    """Raise ListenerError if the listener could not be opened now, for who has much to do before it is."""
    if not spec.reuse_port and spec.scheme != "unix":
        _, sockets = await hold_port(loop, spec)
        for sock in sockets:
            sock.close()


async def bind_tcp(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> tuple[str, list[socket.socket]]:
    """Listen for somebody who does the rest: the URL with the port, and the sockets. Raises ListenerError."""
    try:
        sockets, _ = await _listen(loop, spec)
    except OSError as error:
        raise ListenerError(f"{spec}: cannot listen: {error.strerror or error}") from error
    return str(_bound(spec, sockets)), sockets


async def _addresses(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> list[Address]:
    found = await loop.getaddrinfo(
        spec.host or None, spec.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    # A name that is twice in the hosts file is still one address.
    return list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))


def _bound(spec: ListenerSpec, sockets: list[socket.socket]) -> ListenerSpec:
    if spec.scheme == "unix":
        return spec
    # The name of an address that is bound already; whether it may be is decided in the settings.
    every = "0.0.0.0" if any(sock.family == socket.AF_INET for sock in sockets) else "::"  # noqa: S104
    return spec._replace(host=spec.host or every, port=sockets[0].getsockname()[1])


def _acceptor(
    spec: ListenerSpec, driver: Driver, gate: Gate, context: ssl.SSLContext | None, handshake_timeout: float
) -> Callable[[], asyncio.Protocol]:
    if spec.scheme == "tls":
        assert context is not None
        return lambda: NatsTlsConnection(driver, gate, context, handshake_timeout)
    if spec.scheme in DEFAULT_PATHS:
        return lambda: WebSocketConnection(driver, gate)
    return lambda: Connection(driver, gate)


async def _serve(
    loop: asyncio.AbstractEventLoop,
    accept: Callable[[], asyncio.Protocol],
    sock: socket.socket,
    context: ssl.SSLContext | None,
    handshake_timeout: float,
) -> asyncio.Server:
    options: dict[str, Any] = {"sock": sock, "backlog": BACKLOG}
    if context is not None:
        options |= {
            "ssl": context,
            "ssl_handshake_timeout": handshake_timeout,
            "ssl_shutdown_timeout": TLS_CLOSE_TIMEOUT,
        }
    create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
    return await create(accept, **options)
