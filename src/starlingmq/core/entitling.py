"""Rules that change while clients are connected: everybody gets their rights anew, and loses what goes beyond them."""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.core.access import Rights
from starlingmq.core.client import OPEN, Client
from starlingmq.core.context import Context
from starlingmq.core.job import Job
from starlingmq.core.session import Session
from starlingmq.core.subscribing import Subscribing

CLIENTS_PER_TURN = 100

RightsOf = Callable[[Client], Rights | None]


class EntitleJob(Job):
    ctx: Context
    subscribing: Subscribing
    rights_of: RightsOf
    left: list[Session]

    def __init__(self, ctx: Context, subscribing: Subscribing, rights_of: RightsOf) -> None:
        self.ctx = ctx
        self.subscribing = subscribing
        self.rights_of = rights_of
        self.left = list(ctx.sessions.values())

    def step(self) -> bool:
        for _ in range(min(CLIENTS_PER_TURN, len(self.left))):
            session = self.left.pop()
            client = session.client
            if client is None or client.state != OPEN or client.session is not session or client.link:
                continue
            client.rights = self.rights_of(client)
            session.rules = 0  # what waits for it is looked at when it is sent
            if client.dialect is not None:
                client.dialect.revoke(client)
            else:
                self.subscribing.revoke(session)
        return not self.left
