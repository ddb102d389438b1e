"""A NATS connection that becomes a TLS connection: the server sends INFO in plain text, everything after it is TLS.

To the driver it is an ordinary transport. Its first write, INFO, is sent unchanged; then the handshake begins. Data
that the driver writes meanwhile is kept; it is very little, since nothing has been read yet.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final, cast

from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.net.listeners.socket_connection import ConnectionDriver
from starlingmq.net.listeners.tls_handshake import HandshakeError, handshake

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that a closing TLS connection waits for the close of its peer."""


class NatsTlsConnection(asyncio.Protocol):
    """One connection; also the ``Handle`` that its driver writes to."""

    __slots__ = (
        "client",
        "context",
        "driver",
        "ended",
        "full",
        "gate",
        "handshake_timeout",
        "kept",
        "made",
        "peer",
        "secure",
        "stream",
        "upgrade",
    )

    stream: asyncio.Transport

    def __init__(
        self,
        driver: ConnectionDriver,
        gate: ListenerGate,
        peer: str,
        full: int,
        context: ssl.SSLContext,
        handshake_timeout: float,
    ) -> None:
        self.driver = driver
        self.gate = gate
        self.peer = peer
        self.full = full
        self.made = False
        self.context = context
        self.handshake_timeout = handshake_timeout
        self.client: Any = None
        self.secure = False
        self.ended = False  # the driver has closed it
        self.kept = b""
        self.upgrade: asyncio.Task[None] | None = None

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.stream = cast(asyncio.Transport, transport)
        self.made = True
        self.client = self.driver.opened(self, self.gate.name, self.peer, self.full)

    def data_received(self, data: bytes) -> None:
        if self.secure:
            self.driver.received(self.client, data)
        else:
            self.gate.refuse("before_info")
            self.stream.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.client is not None:
            client, self.client = self.client, None
            self.gate.leave(self.peer)
            self.driver.lost(client)

    def pause_writing(self) -> None:
        if self.client is not None:
            self.driver.blocked(self.client)

    def resume_writing(self) -> None:
        if self.client is not None:
            self.driver.drained(self.client)

    # Calls of the driver.

    def write(self, data: bytes) -> None:
        if self.secure:
            self.stream.write(data)
        elif self.upgrade is None:
            self.stream.write(data)
            self.stream.pause_reading()  # the next input is the handshake, which must not be read here
            self.upgrade = asyncio.get_running_loop().create_task(self._secure())
        else:
            self.kept += data

    def can_write_eof(self) -> bool:
        """No: TLS has no half-closed connections."""
        return False

    def write_eof(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.ended = True
        if self.upgrade is None or self.secure:
            self.stream.close()

    def abort(self) -> None:
        self.ended = True
        self.stream.abort()
        if not self.secure:  # uvloop does not report the end of a transport during an upgrade
            asyncio.get_running_loop().call_soon(self.connection_lost, None)

    def pause_reading(self) -> None:
        if self.secure:
            self.stream.pause_reading()

    def resume_reading(self) -> None:
        if self.secure:
            self.stream.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.stream.get_extra_info(name, default)

    async def _secure(self) -> None:
        sock = self.stream.get_extra_info("socket")
        upgrade = asyncio.get_running_loop().start_tls(
            self.stream,
            self,
            self.context,
            server_side=True,
            ssl_handshake_timeout=self.handshake_timeout,
            ssl_shutdown_timeout=CLOSE_TIMEOUT,
        )
        try:
            secured = await handshake(upgrade, sock)
        except HandshakeError as error:
            self.gate.refuse(error.reason, self.peer if error.detail else "", error.detail)
            self.abort()
            return
        if secured is None or self.client is None:
            self.abort()
            return
        self.stream = secured
        self.stream.set_write_buffer_limits(high=self.gate.write_buffer)
        self.secure = True
        self.driver.secured(self.client)
        if self.gate.identity:
            self.driver.identified(self.client)
        if self.kept:
            self.stream.write(self.kept)
            self.kept = b""
        if self.ended:
            self.stream.close()
