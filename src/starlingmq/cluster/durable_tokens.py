"""When what was written in a turn is stored: numbers go through the lane that waits for that."""

from __future__ import annotations

from starlingmq.core.broker import BrokerState
from starlingmq.core.routing.peer_receivers import link


class DurableTokens:
    """Looks like a transport to whoever carries out what the core wants (as ``cluster.links.peer_transport.Port``
    does)."""

    reached: int  # the highest number of those that are stored

    def __init__(self, broker: BrokerState) -> None:
        self.reached = 0
        self._ctx = broker.ctx
        self._client = link("stored", self)

    def mark(self, number: int) -> None:
        """To be reached when all that was written until now is stored."""
        self._ctx.send_stored(self._client, number.to_bytes(8, "big"))

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), 8):
            self.reached = max(self.reached, int.from_bytes(data[at : at + 8], "big"))

    def pause_reading(self) -> None:
        """Nobody reads from it."""

    def resume_reading(self) -> None:
        """Nor does anybody again."""
