"""What NATS clients are told when something is wrong, and whether their connection ends with it."""

from __future__ import annotations

from typing import Final

from starlingmq.core.client import CLOSED, Client
from starlingmq.core.connecting import Connecting
from starlingmq.core.context import ISOLATED, Context
from starlingmq.core.nats_client import NOT_STORED
from starlingmq.wire.nats_frames import error_frame
from starlingmq.wire.reasons import Reason

AUTHORIZATION_VIOLATION: Final = "Authorization Violation"
INVALID_SUBJECT: Final = "Invalid Subject"
INVALID_PUBLISH_SUBJECT: Final = "Invalid Publish Subject"

# Why a connection ends that MQTT would end too.
WORDS: Final[dict[int, str]] = {
    Reason.NOT_AUTHORIZED: AUTHORIZATION_VIOLATION,
    Reason.SERVER_BUSY: "Maximum Connections Exceeded",
    Reason.KEEP_ALIVE_TIMEOUT: "Stale Connection",
    Reason.MAXIMUM_CONNECT_TIME: "Authentication Timeout",
    Reason.SERVER_UNAVAILABLE: "Node Is Isolated",
    Reason.QUOTA_EXCEEDED: NOT_STORED,
}


class NatsErrors:
    ctx: Context
    connecting: Connecting

    def __init__(self, ctx: Context, connecting: Connecting) -> None:
        self.ctx = ctx
        self.connecting = connecting

    def say(self, client: Client, text: str) -> None:
        """An error after which the connection goes on."""
        self.ctx.counters.error("nats")
        self.ctx.send(client, error_frame(text))

    def fail(self, client: Client, text: str) -> None:
        """An error that ends the connection."""
        if client.state == CLOSED:
            return
        self.ctx.notice("nats", client, text)
        self.ctx.send(client, error_frame(text))
        self.connecting.close(client, text)

    def isolated(self, client: Client) -> None:
        self.connecting.fail(client, Reason.SERVER_UNAVAILABLE, ISOLATED)

    def may_not_publish(self, client: Client, subject: bytes) -> None:
        self.ctx.drop("not_authorized", client.client_id)
        self.say(client, f'Permissions Violation for Publish to "{subject.decode()}"')

    def may_not_subscribe(self, client: Client, subject: bytes) -> None:
        self.say(client, f'Permissions Violation for Subscription to "{subject.decode()}"')
