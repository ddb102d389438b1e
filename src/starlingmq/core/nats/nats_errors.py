"""Errors that NATS clients are told, and whether the connection ends with them.

Client libraries treat an unknown ``-ERR`` as a permanent end of the connection. So if only one command is refused, the
error is a Permissions Violation, which all libraries report before they continue. A client that shall reconnect,
perhaps to another node, is closed without an error, as by nats-server.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import ISOLATED, Context
from starlingmq.core.context.ready import PUBLISH_REFUSED, SUBSCRIBE_REFUSED
from starlingmq.core.session.connection import CLOSED, OPEN
from starlingmq.core.session.session import Client
from starlingmq.wire.nats_frames import error_frame
from starlingmq.wire.nats_subjects import filter_of, topic_of
from starlingmq.wire.reasons import Reason

AUTHORIZATION_VIOLATION: Final = "Authorization Violation"
INVALID_SUBJECT: Final = "Invalid Subject"
INVALID_PUBLISH_SUBJECT: Final = "Invalid Publish Subject"

# Errors for connections that MQTT would end, too. Other reasons have none.
WORDS: Final[dict[int, str]] = {
    Reason.NOT_AUTHORIZED: AUTHORIZATION_VIOLATION,
    Reason.SERVER_BUSY: "Maximum Connections Exceeded",
    Reason.KEEP_ALIVE_TIMEOUT: "Stale Connection",
    Reason.MAXIMUM_CONNECT_TIME: "Authentication Timeout",
}


class NatsErrors:
    ctx: Context
    ending: Ending

    def __init__(self, ctx: Context, ending: Ending) -> None:
        self.ctx = ctx
        self.ending = ending

    def send(self, client: Client, text: str) -> None:
        """Send an error after which the connection continues."""
        self.ctx.counters.note("nats")
        self.ctx.send(client, error_frame(text))

    def fail(self, client: Client, text: str, why: str = "", word: str = "nats") -> None:
        """Send an error, and end the connection. ``why`` is for the log; "": the error. ``word`` is counted."""
        if client.state == CLOSED:
            return
        self.ctx.notice(word, client, f"{text}: {why}" if why else text)
        self.ctx.send(client, error_frame(text))
        self.ending.close(client, text)

    def end(self, client: Client, why: str) -> None:
        """End the connection of a client that shall reconnect; ``why`` is for the log."""
        if client.state == CLOSED:
            return
        self.ctx.notice("nats", client, why)
        self.ending.close(client, why)

    def isolated(self, client: Client) -> None:
        if client.state != OPEN:
            # a client that is just connecting tries another server
            self.ctx.send(client, error_frame("Node Is Isolated"))
        self.ending.fail(client, Reason.SERVER_UNAVAILABLE, ISOLATED, "isolated")

    def may_not_publish(self, client: Client, subject: bytes, counted: str, why: str = "", detail: str = "") -> None:
        """A message is refused, and ``counted`` as dropped for that reason. ``detail``: as of ``Refusal``."""
        if counted == "not_authorized":
            self.ctx.refused(PUBLISH_REFUSED, client, topic_of(subject), detail=detail)
        self.ctx.drop(counted, client.client_id, 1, topic_of(subject))
        if self.ctx.audit is not None:
            self.ctx.audit.refused(client.client_id, topic_of(subject), b"", 0, counted)
        shown = subject.decode(errors="replace")
        self.send(client, f'Permissions Violation for Publish to "{shown}"{": " + why if why else ""}')

    def may_not_subscribe(self, client: Client, subject: bytes, queue: bytes, detail: str = "") -> None:
        self.ctx.refused(SUBSCRIBE_REFUSED, client, filter_of(subject), group=queue, detail=detail)
        shown = f'"{subject.decode(errors="replace")}"'
        if queue:
            shown += f' using queue "{queue.decode(errors="replace")}"'
        self.send(client, f"Permissions Violation for Subscription to {shown}")

    def no_topic(self, client: Client, pedantic: bool, subject: bytes) -> None:
        """The subject of a publish has no topic."""
        if pedantic:
            self.ctx.drop("no_topic", client.client_id)
            self.send(client, INVALID_PUBLISH_SUBJECT)
        else:
            self.may_not_publish(client, subject, "no_topic", INVALID_PUBLISH_SUBJECT)
