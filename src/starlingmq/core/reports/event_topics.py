"""Publication of events (core.observe.audit): on ``$events/KIND`` at the end of a turn, with a census of waiting
messages from time to time."""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.messages.message import Message
from starlingmq.core.observe.audit import KINDS, Audit
from starlingmq.core.observe.event_lines import EventEncoder, EventLine
from starlingmq.core.router.router import Router
from starlingmq.core.session.session import Session
from starlingmq.core.turn.job import Job

CENSUS_SECONDS: Final = 2.0
SESSIONS_PER_STEP: Final = 10_000  # of a census
LINES_MAX: Final = 500  # in one batch: some 100 KB
TOPICS: Final = [b"$events/" + kind.encode() for kind in KINDS]


class Census(Job):
    """A census of waiting messages, some sessions per turn. ``number`` is that of an event at its beginning."""

    owner: EventTopics
    number: int
    since: float
    left: list[Session]

    def __init__(self, owner: EventTopics, number: int) -> None:
        self.owner = owner
        self.number = number
        self.since = owner.ctx.now
        self.left = list(owner.ctx.sessions.values())

    def step(self) -> bool:
        audit = self.owner.audit
        for _ in range(min(SESSIONS_PER_STEP, len(self.left))):
            session = self.left.pop()
            if session.queue is not None or session.window is not None or session.moving is not None:
                audit.count(session, self.number)
        if self.left:
            return False
        self.owner.counted(self)
        return True


class EventTopics:
    """``ctx.audit`` is ``audit`` while events are wanted, else None."""

    ctx: Context
    router: Router
    delivery: Delivery
    audit: Audit
    due_at: float  # when the next census begins; 0.0: never
    _encoder: EventEncoder
    _batch: int
    _ticked: bool
    _census: Census | None

    def __init__(self, ctx: Context, router: Router, delivery: Delivery, audit: Audit) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.audit = audit
        self.due_at = 0.0
        self._encoder = EventEncoder()
        self._batch = 0
        self._ticked = False
        self._census = None

    def tick(self) -> None:
        """Called once per turn, before everything else."""
        ctx = self.ctx
        audit = self.audit
        publishing = audit.asked or self.router.event_filters != 0
        wanted = publishing or len(audit.watches) != 0
        if wanted != (ctx.audit is not None):
            ctx.audit = audit if wanted else None
            audit.take()
        if publishing != audit.publishing:
            audit.set_publishing(publishing)
            self.due_at = ctx.now + CENSUS_SECONDS if publishing else 0.0
            if publishing:
                audit.began("turned_on" if self._ticked else "started")
        elif publishing and ctx.now >= self.due_at:
            self.due_at = ctx.now + CENSUS_SECONDS
            if self._census is None:
                self._census = Census(self, audit.next_number())
                ctx.jobs.append(self._census)
        self._ticked = True

    def counted(self, census: Census) -> None:
        """The census is complete: receivers that it did not name have no waiting messages."""
        self._census = None
        self.audit.counted(census.since, census.number)

    def flush(self) -> None:
        """Publish the events of this turn."""
        audit = self.audit
        found = audit.take()
        if found is None:
            return
        for kind, lines in enumerate(found):
            if not lines:
                continue
            for watch in audit.watches:
                watch.take(KINDS[kind], lines)
            if audit.publishing:
                for first in range(0, len(lines), LINES_MAX):
                    self._publish(TOPICS[kind], lines if len(lines) <= LINES_MAX else lines[first : first + LINES_MAX])

    def _publish(self, topic: bytes, lines: list[EventLine]) -> None:
        audit = self.audit
        self._batch += 1
        payload = self._encoder.encode(audit.node, audit.prefix, audit.life, self._batch, lines)
        message = Message(topic, payload, 0, False, b"", 0.0, "", self.ctx.now)
        self.delivery.fan_out(message, self.router.resolve(topic), None)
