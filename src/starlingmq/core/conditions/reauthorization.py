"""Rules that change while clients are connected: each client is checked against the new rules.

A client that they refuse is disconnected. Other clients get new rights, and lose subscriptions that are no longer
allowed.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import Context
from starlingmq.core.session.connection import OPEN
from starlingmq.core.session.session import Session
from starlingmq.core.subscribe.subscribing import Subscribing
from starlingmq.core.turn.job import Job

CLIENTS_PER_TURN: Final = 100


class ReauthorizeJob(Job):
    """Covers the clients that were connected when it began. ``ConnectDecisions.readmit`` checks later ones."""

    ctx: Context
    subscribing: Subscribing
    ending: Ending
    left: list[Session]
    rules: int

    def __init__(self, ctx: Context, subscribing: Subscribing, ending: Ending) -> None:
        self.ctx = ctx
        self.subscribing = subscribing
        self.ending = ending
        self.left = list(ctx.sessions.values())
        self.rules = ctx.rules

    def step(self) -> bool:
        ctx = self.ctx
        if self.rules != ctx.rules:
            return True  # a later job covers all clients
        for _ in range(min(CLIENTS_PER_TURN, len(self.left))):
            session = self.left.pop()
            client = session.client
            if client is None or client.state != OPEN or client.session is not session or client.link:
                continue
            reason = ctx.standing(client)
            if reason != 0:
                self.ending.fail(client, reason, "its user is no longer allowed to connect", "access_revoked")
                continue
            client.rules = self.rules
            ctx.give_rights(client, ctx.granted(client))
            session.rules = 0  # its queued messages are checked when they are sent
            if client.protocol_handler is not None:
                client.protocol_handler.revoke(client)
            else:
                self.subscribing.revoke(session)
        return not self.left
