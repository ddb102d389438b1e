"""A plain TCP, TLS or Unix socket connection: bytes go straight between the transport and the driver.

Nothing may be added to the path of a byte here. TCP_NODELAY is not set because both event loops set it on every TCP
transport; a test verifies that.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from starlingmq.net.listeners.listener_gate import ListenerGate


class Handle(Protocol):
    """The driver's view of a connection: an asyncio transport, or an adaptor that adds framing.

    All methods may be called until ``ConnectionDriver.lost``, in any order; calls that can have no effect any more
    raise nothing. ``close`` closes the connection only after written data has been sent, which a peer that does not
    read can delay forever; ``abort`` does not wait. ``write_eof`` is for those that ``can_write_eof``.
    """

    def write(self, data: bytes) -> None: ...
    def can_write_eof(self) -> bool: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


class ConnectionDriver(Protocol):
    """The events of a connection: ``opened`` first, ``lost`` last, each once. The client is the driver's own object.

    ``full`` is the reason code with which it is refused once its CONNECT has come, 0 if it is not. ``readdressed``:
    proxies have named its client, before anything was ``received``. ``identified`` follows ``opened`` if the name in
    the client's certificate is its user name; before that comes ``secured`` if TLS begins only after ``opened``.
    """

    def opened(self, transport: Any, listener: str, peer: str, full: int = 0) -> Any: ...
    def readdressed(self, client: Any, peer: str, full: int) -> None: ...
    def identified(self, client: Any) -> None: ...
    def secured(self, client: Any) -> None: ...
    def received(self, client: Any, data: bytes) -> None: ...
    def lost(self, client: Any) -> None: ...
    def blocked(self, client: Any) -> None: ...
    def drained(self, client: Any) -> None: ...


class SocketConnection(asyncio.Protocol):
    """One connection whose bytes are plain MQTT or NATS. The driver writes to the transport directly.

    The gate has counted it for ``peer``.
    """

    __slots__ = ("client", "driver", "full", "gate", "made", "peer")

    def __init__(self, driver: ConnectionDriver, gate: ListenerGate, peer: str, full: int = 0) -> None:
        self.driver = driver
        self.gate = gate
        self.peer = peer
        self.full = full
        self.made = False
        self.client: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        self.made = True
        stream.set_write_buffer_limits(high=self.gate.write_buffer)
        self.client = self.driver.opened(stream, self.gate.name, self.peer, self.full)
        if self.gate.identity:
            self.driver.identified(self.client)

    def pass_to(self, owner: Any) -> None:
        """From now on, bytes and events go there."""
        self.driver = owner

    def data_received(self, data: bytes) -> None:
        self.driver.received(self.client, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gate.leave(self.peer)
        if self.client is not None:
            self.driver.lost(self.client)

    def pause_writing(self) -> None:
        self.driver.blocked(self.client)

    def resume_writing(self) -> None:
        self.driver.drained(self.client)
