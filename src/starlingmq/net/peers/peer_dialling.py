"""From the address of another node to a connection that both sides have proved."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from starlingmq.config.cluster_section import split_address
from starlingmq.net.peers.peer_connection import PeerConnection
from starlingmq.net.peers.peer_handshake import MESSAGE_BYTES_MAX as HANDSHAKE_BYTES_MAX
from starlingmq.net.peers.peer_handshake import Dialling, RefusedError
from starlingmq.net.peers.peer_protocol import PeerConnectionLost

HANDSHAKE_SECONDS: Final = 5.0
FILE_SECONDS: Final = 2.0  # for the handshake over a Unix socket, before the address is tried
MESSAGE_BYTES_MAX: Final = 320 * 1024 * 1024  # above the largest MQTT packet; only after the proof
OLDER: Final = "it supports only an older protocol between nodes; upgrade it"
NO_ANSWER: Final = f"no answer within {HANDSHAKE_SECONDS:g} seconds"
UNREACHABLE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL)


class DialError(OSError):
    """There is no connection to the other node; one line."""


async def dial(
    address: str,
    dialling: Dialling,
    context: ssl.SSLContext | None,
    silence: float,
    seconds: float = HANDSHAKE_SECONDS,
    path: str = "",
) -> PeerConnection:
    """A connection on which both sides have proved that they know the secret; afterwards ``dialling`` has the
    incarnation of the listener. ``silence``: as of ``PeerConnection``; ``path``: a Unix socket, to be preferred to the
    address if the node answers there. Raises RefusedError, DialError."""
    loop = asyncio.get_running_loop()
    if path:
        try:
            return await _prove(
                lambda to: loop.create_unix_connection(to.protocol, path), dialling, silence, min(seconds, FILE_SECONDS)
            )
        except (RefusedError, DialError):
            pass  # its address gives the answer that counts
    return await _prove(lambda to: _connect(address, to, context), dialling, silence, seconds)


async def _prove(
    connect: Callable[[PeerConnection], Awaitable[object]], dialling: Dialling, silence: float, seconds: float
) -> PeerConnection:
    connection = PeerConnection(silence, HANDSHAKE_BYTES_MAX)
    try:
        async with asyncio.timeout(seconds):
            await connect(connection)
            await _shake_hands(connection, dialling)
    except BaseException as error:
        connection.abort("the handshake failed")
        if connection.is_of_older_node and isinstance(error, Exception):
            raise RefusedError(OLDER) from None
        if isinstance(error, OSError):  # a TimeoutError is one
            raise DialError(explain(error)) from None
        raise
    connection.set_limit(MESSAGE_BYTES_MAX)
    return connection


async def _connect(address: str, connection: PeerConnection, context: ssl.SSLContext | None) -> None:
    host, port = split_address(address, "address")
    name = host if context is not None else None
    await asyncio.get_running_loop().create_connection(
        connection.protocol, host, port, ssl=context, server_hostname=name
    )


async def _shake_hands(connection: PeerConnection, dialling: Dialling) -> None:
    await connection.write(dialling.hello)
    await connection.write(dialling.proof(await _answer(connection)))
    dialling.finish(await _answer(connection))


async def _answer(connection: PeerConnection) -> bytes:
    try:
        message = await connection.read()
    except PeerConnectionLost:
        if connection.was_refused:
            raise RefusedError(connection.reason) from None
        raise
    if message is None:
        raise PeerConnectionLost("the connection was closed during the handshake; check cluster.tls on both nodes")
    return message


def explain(error: OSError) -> str:
    """Why there is no connection, in plain English and one line."""
    if isinstance(error, ConnectionRefusedError):
        return "it refuses connections; check that it runs, and its cluster.listen and cluster.advertise"
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    if isinstance(error, socket.gaierror):
        return "its host name cannot be resolved"
    if isinstance(error, ssl.SSLError | ssl.CertificateError):
        return "the TLS handshake failed; check cluster.tls on both nodes"
    if error.errno in UNREACHABLE:
        return "the network or the host is unreachable"
    if isinstance(error, ConnectionResetError):
        return "the connection was closed during the handshake; check cluster.tls on both nodes"
    return str(error) if isinstance(error, PeerConnectionLost) else "the connection was closed"
