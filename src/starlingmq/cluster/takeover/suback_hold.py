"""Holds back the SUBACKs of sessions that are moving here, until what they promise holds for all nodes.

Messages that a node sends before its cut marker are delivered by the former owner, according to the client's
subscriptions there. The former owner may not have the new subscription: then no node would deliver them.

Invariant: a SUBACK is sent once the markers of all nodes that may publish have arrived, just as it waits until those
nodes have applied its routes. If the markers are not here in time, the SUBACK refuses the subscription.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.core.session.session import Session
from starlingmq.core.subscribe.subscribing import HeldSuback

LOOK_SECONDS: Final = 0.5  # seconds between checks without a marker: nodes may have disconnected


class SubackHold:
    waiting: dict[Session, list[HeldSuback]]

    def __init__(self, migrations: Migrations) -> None:
        self._migrations = migrations
        self._subscribing = migrations.broker.subscribing
        self._look_at = inf
        self.waiting = {}

    def hold(self, held: HeldSuback) -> bool:
        """Whether the SUBACK has to wait. If so, it is kept here."""
        session = held.session
        if self._is_marked(session):
            return False
        earlier = self.waiting.get(session, [])
        self.waiting[session] = [*[each for each in earlier if _is_there(each)], held]
        self._look_at = min(self._look_at, self._migrations.ctx.now + LOOK_SECONDS)
        return True

    def _is_marked(self, session: Session) -> bool:
        """Whether all messages for its new subscriptions reach this node."""
        moving = session.moving
        if moving is None or moving.target != 0 or session.ended:
            return True
        publishers = self._migrations.ports.publishers()
        for inbound in self._migrations.of(moving.client_id):
            here = inbound.session is session and not inbound.finished and not inbound.discarded
            if here and inbound.needs_marks() and (publishers is None or not inbound.marked_by(publishers)):
                return False
        return True

    def look_at(self, inbound: InboundSession, now: float) -> None:
        """After a marker or another change of the inbound session."""
        if inbound.session is not None and inbound.session in self.waiting:
            self._answer(inbound.session, now)

    def look(self, now: float) -> None:
        """Periodic check of all held SUBACKs: nodes may have disconnected, or a deadline may have passed."""
        if now < self._look_at:
            return
        for session in list(self.waiting):
            self._answer(session, now)
        self._look_at = now + LOOK_SECONDS if self.waiting else inf

    def _answer(self, session: Session, now: float) -> None:
        waiting = [held for held in self.waiting.pop(session) if _is_there(held)]
        marked = self._is_marked(session)
        left: list[HeldSuback] = []
        for held in waiting:
            if marked:
                self._subscribing.answer(held)
            elif held.deadline <= now:
                self._subscribing.refuse(held)
            else:
                left.append(held)
        if left:
            self.waiting[session] = left

    def wake_at(self) -> float:
        return self._look_at


def _is_there(held: HeldSuback) -> bool:
    return held.session.client is held.client and not held.session.ended
