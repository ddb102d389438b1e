"""The interface between the client sockets of an event loop and the driver, which they call."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

ZSTD: Final = 0x28  # the first byte of zstd's magic number; MQTT's first packet is CONNECT, 0x10


class ClientOwner:
    """The methods of a driver that each round calls. ``ConnectionDriver`` has the others."""

    def received(self, client: Any, data: bytes) -> None:
        raise NotImplementedError

    def lost(self, client: Any) -> None:
        raise NotImplementedError

    def blocked(self, client: Any) -> None:
        raise NotImplementedError

    def drained(self, client: Any) -> None:
        raise NotImplementedError

    def may_wait(self, client: Any) -> bool:
        """Whether nothing waits for the acknowledgements of this client."""
        raise NotImplementedError

    def turn(self) -> None:
        """Asked for with ``ClientSockets.want``."""
        raise NotImplementedError

    def skip_turn(self) -> bool:
        """Whether ``turn`` would do nothing. Then it is not called, and counts as such."""
        return False


class OtherOwner(ClientOwner):
    """Any other object with these methods, which cannot have a turn."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def received(self, client: Any, data: bytes) -> None:
        self.driver.received(client, data)

    def lost(self, client: Any) -> None:
        self.driver.lost(client)

    def blocked(self, client: Any) -> None:
        self.driver.blocked(client)

    def drained(self, client: Any) -> None:
        self.driver.drained(client)

    def may_wait(self, client: Any) -> bool:
        return bool(self.driver.may_wait(client))


class FirstBytes(ClientOwner):
    """Takes the first bytes of each MQTT connection, and gives the connection to the driver, or to the shell of
    compressed ones. So the others pay nothing for it with later bytes.

    A connection has ``pass_to``; it is the transport of its client, or the protocol of that. ``compressed``
    makes that shell. It raises ImportError without a library, and MQTT refuses the bytes.
    """

    def __init__(self, driver: Any, compressed: Any) -> None:
        self.driver: Any = driver
        self.owner = driver if isinstance(driver, ClientOwner) else OtherOwner(driver)
        self.compressed: Any = compressed

    def received(self, client: Any, data: bytes) -> None:
        if not data:  # an empty frame of a WebSocket
            return
        transport = client.transport
        connection = transport if hasattr(transport, "pass_to") else transport.get_protocol()
        owner = self.owner
        if data[0] == ZSTD:
            with suppress(ImportError):
                owner = client.transport = self.compressed(owner, client)
        connection.pass_to(owner)
        owner.received(client, data)

    # As the driver's, before any bytes

    def opened(self, transport: Any, listener: str, peer: str, full: int = 0) -> Any:
        return self.driver.opened(transport, listener, peer, full)

    def readdressed(self, client: Any, peer: str, full: int) -> None:
        self.driver.readdressed(client, peer, full)

    def identified(self, client: Any) -> None:
        self.driver.identified(client)

    def secured(self, client: Any) -> None:
        self.driver.secured(client)

    def lost(self, client: Any) -> None:
        self.owner.lost(client)

    def blocked(self, client: Any) -> None:
        self.owner.blocked(client)

    def drained(self, client: Any) -> None:
        self.owner.drained(client)

    def may_wait(self, client: Any) -> bool:
        return self.owner.may_wait(client)
