"""From the address of another node to a connection that both sides have proved."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Final

from starlingmq.config.cluster_section import split_address
from starlingmq.net.peers.peer_connection import PeerConnection
from starlingmq.net.peers.peer_handshake import MESSAGE_BYTES_MAX as HANDSHAKE_BYTES_MAX
from starlingmq.net.peers.peer_handshake import Dialling, RefusedError
from starlingmq.net.peers.peer_protocol import PeerConnectionLost

HANDSHAKE_SECONDS: Final = 5.0
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
    address if the node listens there. Raises RefusedError, DialError."""
    connection = PeerConnection(silence, HANDSHAKE_BYTES_MAX)
    try:
        async with asyncio.timeout(seconds):
            if not path or not await _connect_to_file(path, connection):
                await _connect(address, connection, context)
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


async def _connect_to_file(path: str, connection: PeerConnection) -> bool:
    """Whether a process listens there."""
    try:
        await asyncio.get_running_loop().create_unix_connection(connection.protocol, path)
    except OSError:
        return False
    return True


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
