"""Reports when a turn's writes are durable, by passing tokens through the stored lane."""

from __future__ import annotations

from starlingmq.core.broker import BrokerState
from starlingmq.core.peers.peer_receivers import link


class DurableTokens:
    """Takes the place of a transport for the shell, as ``cluster.links.peer_transport.Port`` does."""

    reached: int  # the highest token that is stored

    def __init__(self, broker: BrokerState) -> None:
        self.reached = 0
        self._ctx = broker.ctx
        self._client = link("stored", self)

    def mark(self, number: int) -> None:
        """``reached`` becomes ``number`` once everything written so far is stored."""
        self._ctx.send_stored(self._client, number.to_bytes(8, "big"))

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), 8):
            self.reached = max(self.reached, int.from_bytes(data[at : at + 8], "big"))

    def pause_reading(self) -> None:
        """No effect: nothing is read."""

    def resume_reading(self) -> None:
        """No effect: nothing is read."""
