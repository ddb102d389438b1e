"""Open listeners: from a listener's settings to a protocol object for each accepted connection."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from starlingmq.config.cluster_section import split_address
from starlingmq.config.networks import is_local, is_loopback, is_wildcard
from starlingmq.net.broker_loop import client_sockets
from starlingmq.net.client_owner import ClientOwner, FirstBytes, OtherOwner
from starlingmq.net.client_socket import ClientSocket
from starlingmq.net.listeners.accepting import Acceptor, Adopt, Arriving
from starlingmq.net.listeners.connection_counts import ConnectionCounts
from starlingmq.net.listeners.listener_gate import WRITE_BUFFER, ListenerGate
from starlingmq.net.listeners.nats_tls import NatsTlsConnection
from starlingmq.net.listeners.revocation_list import Identity
from starlingmq.net.listeners.socket_connection import ConnectionDriver, SocketConnection
from starlingmq.net.listeners.sockets import Address, SocketFile, hold_shared, listen_tcp, listen_unix
from starlingmq.net.listeners.tls import TlsError, revoked_certificates, server_context
from starlingmq.net.listeners.tls_handshake import Secured
from starlingmq.net.listeners.urls import DEFAULT_PATHS, DIRECT, ListenerError, ListenerSpec, parse_listener
from starlingmq.net.process import umask_of_start
from starlingmq.net.tls_client_socket import TlsClientSocket

__all__ = ["Listener", "ListenerError", "ListenerSpec", "open_listener", "parse_listener"]

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds for a TLS handshake: until it is complete, the driver does not know the connection and has no timer for
it."""

_PROTOCOLS: Final = {  # by ALPN
    "mqtts": ["mqtt"],
    "wss": ["http/1.1"],
    "nats+wss": ["http/1.1"],
    "tls": ["nats"],
    "https": ["http/1.1"],
}


class ListenerTls(NamedTuple):
    """The content of a listener's files: its context, and the revoked client certificates."""

    context: ssl.SSLContext
    revoked: frozenset[Identity]


class Listener:
    """An open listener. ``gate`` counts its connections and refusals."""

    def __init__(
        self, spec: ListenerSpec, gate: ListenerGate, tls: ListenerTls | None, file: SocketFile | None
    ) -> None:
        self.spec = spec
        self.gate = gate
        self._tls = tls
        self._file = file
        self._acceptor: Acceptor | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of new connections, if there is one."""
        assert self._tls is not None
        return self._tls.context

    @property
    def address(self) -> str:
        """The URL with the bound port."""
        return self.gate.name

    @property
    def bound(self) -> ListenerSpec:
        """Its specification, with the bound port."""
        if self.spec.scheme == "unix":
            return self.spec
        _, port = split_address(self.address.partition("://")[2].partition("/")[0], self.address)
        return self.spec._replace(port=port)

    def advertised(self, node_host: str) -> str:
        """The URL at which clients elsewhere reach it, "" if they cannot; ``node_host`` is the address for other
        nodes."""
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
        return f"{scheme}://{authority}{slash}{path.removesuffix('*')}"

    def accept(self, acceptor: Acceptor) -> None:
        """Accept connections from now on."""
        self._acceptor = acceptor
        acceptor.open()

    def close(self) -> None:
        """Stop accepting, and end handshakes; open connections stay. May be called again."""
        if self._acceptor is not None:
            self._acceptor.close()
        if self._file is not None:
            self._file.remove()
            self._file = None

    def load_tls(self) -> ListenerTls | None:
        """Read certificate, authorities and revocation lists again; None without TLS. Raises ListenerError."""
        return load_tls(self.spec)

    def use_tls(self, tls: ListenerTls | None) -> None:
        """Use it for new connections.

        It is another context, so no TLS session is resumed that the earlier one admitted.
        """
        self._tls = tls
        if tls is not None and self._acceptor is not None and self.spec.scheme != "tls":
            self._acceptor.context = tls.context


async def open_listener(
    loop: asyncio.AbstractEventLoop,
    spec: ListenerSpec,
    driver: ConnectionDriver,
    *,
    write_buffer: int = WRITE_BUFFER,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
    admission: ConnectionCounts | None = None,
) -> Listener:
    """Bind, and pass connections to the driver from the next turn of the loop on.

    ``write_buffer`` in bytes (``limits.write_buffer``), ``handshake_timeout`` in seconds (``mqtt.connect_timeout``).
    ``admission`` counts over all listeners. Raises ListenerError, and then nothing is left bound.
    """
    tls = load_tls(spec)
    try:
        sockets, file = await _listen(loop, spec)
    except OSError as error:
        raise ListenerError(f"{spec}: cannot listen: {error.strerror or error}") from error
    gate = _gate(spec, str(_bound(spec, sockets)), write_buffer, admission)
    listener = Listener(spec, gate, tls, file)
    if gate.subprotocol:  # MQTT
        driver = FirstBytes(driver, _compressor(gate))
    first = None if tls is None or spec.scheme == "tls" else tls.context  # NATS sends INFO before TLS
    make = _maker(listener, driver, handshake_timeout)
    adopt = _adopter(loop, gate, driver) if spec.scheme in DIRECT else None
    listener.accept(Acceptor(sockets, gate, make, first, handshake_timeout, adopt))
    return listener


def _compressor(gate: ListenerGate) -> Callable[[ClientOwner, Any], ClientOwner]:
    """The maker of the shells of compressed connections."""

    def compressed(owner: ClientOwner, client: Any) -> ClientOwner:
        from starlingmq.net.compressed_connection import CompressedConnection  # with the library

        return CompressedConnection(owner, client, gate.refuse)

    return compressed


def _gate(spec: ListenerSpec, name: str, write_buffer: int, admission: ConnectionCounts | None) -> ListenerGate:
    nats = spec.scheme.startswith("nats") or spec.scheme == "tls"
    return ListenerGate(
        name,
        spec.max_connections,
        write_buffer,
        (spec.path, *spec.paths),
        identity=spec.tls is not None and (spec.tls.use_identity_as_username or spec.tls.use_subject_as_username),
        subprotocol="" if nats else "mqtt",
        origins=spec.origins,
        admission=admission,
        keys=nats or (spec.tls is not None and spec.tls.ca is not None),
        trusted_proxies=spec.trusted_proxies,
        proxies=spec.proxy_protocol,
        subprotocol_optional=spec.subprotocol_optional,
        local=is_local(str(spec)),
    )


def load_tls(spec: ListenerSpec) -> ListenerTls | None:
    """The present content of a listener's files, None without TLS. Raises ListenerError."""
    if spec.tls is None:
        return None
    context = tls_context(spec)
    assert context is not None
    try:
        return ListenerTls(context, revoked_certificates(spec.tls))
    except TlsError as error:
        raise ListenerError(f"{spec}: {error}") from error


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
        with umask_of_start():
            sock, file = listen_unix(spec.path)
        return [sock], file
    return listen_tcp(await _addresses(loop, spec), spec.port, spec.reuse_port), None


async def hold_port(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> tuple[ListenerSpec, list[socket.socket]]:
    """Keep the port of a listener for processes that will share it. Returns the listener with its port. Raises
    ListenerError.

    The sockets hold the port until they are closed.
    """
    try:
        sockets = hold_shared(await _addresses(loop, spec), spec.port)
    except OSError as error:
        raise ListenerError(f"{spec}: cannot listen: {error.strerror or error}") from error
    return spec._replace(port=sockets[0].getsockname()[1], reuse_port=True), sockets


async def refuse_taken(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> None:
    """Raises ListenerError if the listener could not be opened now, for callers with long preparations before opening
    it."""
    if not spec.reuse_port and spec.scheme != "unix":
        _, sockets = await hold_port(loop, spec)
        for sock in sockets:
            sock.close()


async def bind_tcp(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> tuple[str, list[socket.socket]]:
    """Listen for a caller that handles everything else. Returns the URL with the port, and the sockets. Raises
    ListenerError."""
    try:
        sockets, _ = await _listen(loop, spec)
    except OSError as error:
        raise ListenerError(f"{spec}: cannot listen: {error.strerror or error}") from error
    return str(_bound(spec, sockets)), sockets


async def _addresses(loop: asyncio.AbstractEventLoop, spec: ListenerSpec) -> list[Address]:
    # Python loads the tables of international names (half a megabyte) for each host that is given as text.
    host = spec.host.encode("ascii") if spec.host.isascii() else spec.host
    flags = socket.AI_PASSIVE | socket.AI_NUMERICSERV
    if _is_name(spec.host):
        found = await loop.getaddrinfo(host, spec.port, type=socket.SOCK_STREAM, flags=flags)
    else:  # without a request to a name server, so without a thread
        flags |= socket.AI_NUMERICHOST
        found = socket.getaddrinfo(host or None, spec.port, type=socket.SOCK_STREAM, flags=flags)
    # A name that occurs twice in the hosts file is one address.
    return list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))


def _is_name(host: str) -> bool:
    try:
        return bool(host) and not ipaddress.ip_address(host)
    except ValueError:
        return True


def _bound(spec: ListenerSpec, sockets: list[socket.socket]) -> ListenerSpec:
    if spec.scheme == "unix":
        return spec
    # The name of an address that is bound already; the settings decide whether it is allowed.
    every = "0.0.0.0" if any(sock.family == socket.AF_INET for sock in sockets) else "::"  # noqa: S104
    return spec._replace(host=spec.host or every, port=sockets[0].getsockname()[1])


def _adopter(loop: asyncio.AbstractEventLoop, gate: ListenerGate, driver: ConnectionDriver) -> Adopt | None:
    """Return the function that opens a connection on an event loop that serves clients' sockets itself; None on any
    other.
    """
    sockets = client_sockets(loop)
    if sockets is None:
        return None
    owner = driver if isinstance(driver, ClientOwner) else OtherOwner(driver)

    def adopt(sock: socket.socket, peer: str, full: int, secured: Secured | None) -> Arriving:
        connection = (
            ClientSocket(sockets, owner, gate, sock, peer)
            if secured is None
            else TlsClientSocket(sockets, owner, gate, sock, peer, secured)
        )
        connection.open(driver, full)
        sock.detach()  # the connection closes it
        return connection

    return adopt


def _maker(listener: Listener, driver: ConnectionDriver, handshake_timeout: float) -> Callable[[str, int], Arriving]:
    """The factory of protocol objects."""
    gate, scheme = listener.gate, listener.spec.scheme
    if scheme == "tls":
        return lambda peer, full: NatsTlsConnection(driver, gate, peer, full, listener.context, handshake_timeout)
    if scheme in DEFAULT_PATHS:
        from starlingmq.net.listeners.websocket import WebSocketConnection  # imports two packages

        return lambda peer, full: WebSocketConnection(driver, gate, peer, full)
    return lambda peer, full: SocketConnection(driver, gate, peer, full)
