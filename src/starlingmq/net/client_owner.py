"""The interface between the client sockets of an event loop and the driver, which they call."""

from __future__ import annotations

from typing import Any


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
