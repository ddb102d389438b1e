"""What NATS clients are told when something is wrong, and whether their connection ends with it.

Client libraries take an ``-ERR`` that they do not know for the end of the connection, for good. So what is refused of
one command and no more is a Permissions Violation, which every library reports and goes on after; and who is to come
back, to another node perhaps, is closed without a word, as by a NATS server.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connection import CLOSED, OPEN
from starlingmq.core.context import ISOLATED, Context
from starlingmq.core.session.ending import Ending
from starlingmq.core.session.session import Client
from starlingmq.wire.nats_frames import error_frame
from starlingmq.wire.nats_subjects import topic_of
from starlingmq.wire.reasons import Reason

AUTHORIZATION_VIOLATION: Final = "Authorization Violation"
INVALID_SUBJECT: Final = "Invalid Subject"
INVALID_PUBLISH_SUBJECT: Final = "Invalid Publish Subject"

# What is said when a connection ends that MQTT would end too; else nothing is.
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
        self.ending.close(client, text)

    def end(self, client: Client, why: str) -> None:
        """End the connection of who is to come back; ``why`` is for the log."""
        if client.state == CLOSED:
            return
        self.ctx.notice("nats", client, why)
        self.ending.close(client, why)

    def isolated(self, client: Client) -> None:
        if client.state != OPEN:
            self.ctx.send(client, error_frame("Node Is Isolated"))  # whoever is about to connect tries another server
        self.ending.fail(client, Reason.SERVER_UNAVAILABLE, ISOLATED)

    def may_not_publish(self, client: Client, subject: bytes, counted: str, why: str = "") -> None:
        """A message is not taken; ``counted`` as dropped for that reason."""
        self.ctx.drop(counted, client.client_id)
        if self.ctx.audit is not None:
            self.ctx.audit.refused(client.client_id, topic_of(subject), b"", 0, counted)
        shown = subject.decode(errors="replace")
        self.say(client, f'Permissions Violation for Publish to "{shown}"{": " + why if why else ""}')

    def may_not_subscribe(self, client: Client, subject: bytes, queue: bytes) -> None:
        shown = f'"{subject.decode(errors="replace")}"'
        if queue:
            shown += f' using queue "{queue.decode(errors="replace")}"'
        self.say(client, f"Permissions Violation for Subscription to {shown}")

    def no_topic(self, client: Client, pedantic: bool, subject: bytes) -> None:
        """There is no topic for what was published to."""
        if pedantic:
            self.ctx.drop("no_topic", client.client_id)
            self.say(client, INVALID_PUBLISH_SUBJECT)
        else:
            self.may_not_publish(client, subject, "no_topic", INVALID_PUBLISH_SUBJECT)
