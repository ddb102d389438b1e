"""The requests of NATS connections to JetStream (core.jetstream.hub)."""

from __future__ import annotations

from typing import Final

from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.publish.publishing import StreamPort
from starlingmq.core.router.stream import Stream
from starlingmq.core.session.session import Client

API_LEVEL: Final = 1
"""Of nats-server's levels, the one whose features exist here: message TTLs and pauses. Counters and atomic batches are
level 2."""


class JetStreamPort(StreamPort):
    """There is no JetStream here. ``enabled``: there is."""

    enabled: bool

    def __init__(self) -> None:
        self.enabled = False

    def published(self, client: Client, nats: NatsClient, stream: Stream, reply: bytes) -> None:
        """``stream`` has just looked at a message of this client: tell it what became of that."""

    def turned_down(self, client: Client, nats: NatsClient, stream: Stream, reply: bytes, why: str) -> None:
        """The broker does not take a message of this client, for any stream."""

    def acknowledge(self, client: Client, nats: NatsClient, subject: bytes, payload: bytes, reply: bytes) -> bool:
        """``$JS.ACK.>`` and ``$JS.FC.>``. Returns whether it was for a consumer here."""
        return False

    def request(
        self, client: Client, nats: NatsClient, subject: bytes, headers: bytes, payload: bytes, reply: bytes
    ) -> bool:
        """``$JS.API.>``. Returns whether it was taken."""
        return False

    def gone(self, client: Client) -> None:
        """The connection has ended."""
