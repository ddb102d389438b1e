"""Sends retained messages to new subscriptions, in pieces that do not stall other work: a filter may match a million
messages."""

from __future__ import annotations

from collections import deque
from typing import Final

from starlingmq.core.context.context import DONE, OWED, REPLAYING, Context
from starlingmq.core.context.retained_outbox import HeldReplay, RetainedOutbox, WantedPayload
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.messages.link_marks import is_link, put_on
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.publish.bridges import MARK
from starlingmq.core.retained.deletions import Deletions
from starlingmq.core.retained.retained_store import RetainedCursor, RetainedTree
from starlingmq.core.retained.stamps import changed, message_stamp, stamped, without
from starlingmq.core.session.session import Session, Subscription
from starlingmq.core.turn.job import Job

REPLAYED_PER_TURN: Final = 125  # filters and messages of one session; other jobs get their turn
REPLAY_PIECE: Final = 16  # retained messages between two checks of whether the client accepts more
WANTED_MAX: Final = 16  # payloads on other nodes that one replay waits for at once


class ReplayJob(Job):
    """Sends retained messages to the new subscriptions of a session, one subscription after the other, and pauses while
    the client does not accept them. There is one job per session, however many filters it subscribes to."""

    owner: RetainedReplays
    session: Session
    pending: deque[Subscription]
    cursor: RetainedCursor | None  # of the first one in ``pending``
    deleted: bool  # it is one over deletions, which come last, for a linked site
    waiting: bool  # not among the jobs: continues with ``RetainedReplays.drained`` or ``RetainedReplays.came``
    wanted: int  # payloads that are expected from other nodes

    def __init__(self, owner: RetainedReplays, session: Session) -> None:
        self.owner = owner
        self.session = session
        self.pending = deque()
        self.cursor = None
        self.deleted = False
        self.waiting = False
        self.wanted = 0

    def step(self) -> bool:
        session = self.session
        client = session.client
        if session.ended or client is None or session.replay is not self:
            return True
        left = REPLAYED_PER_TURN
        while self.pending and left > 0:
            full = client.blocked or client.size > self.owner.ctx.write_buffer or self._queued()
            if full or self.wanted >= WANTED_MAX:
                self.waiting = True
                return True
            left -= self._piece(self.pending[0])
        if not self.pending and self.wanted == 0:
            self.owner.finished(session)
        self.waiting = not self.pending and self.wanted != 0
        return not self.pending

    def _piece(self, subscription: Subscription) -> int:
        """Continue with a subscription. Returns the cost, in filters and messages."""
        ctx = self.owner.ctx
        session = self.session
        present = session.subscription(subscription.filter)
        if present is not None and session.client_id in ctx.linked:
            subscription = self.pending[0] = present  # a bridge makes its subscriptions again without a replay
        elif present is not subscription:
            self._next()
            return 1  # unsubscribed, or replaced, meanwhile [MQTT-3.10.4-2]
        cursor = self.cursor
        if cursor is None:
            cursor = self.cursor = self.owner.tree.cursor(subscription.filter)
        # Small pieces, so that the largest messages do not fill the queue before the next check.
        limit = min(REPLAY_PIECE, ctx.mqtt.retained_batch, max(1, self._room() // 4))
        if ctx.max_queue_bytes != 0:
            limit = max(1, min(limit, ctx.max_queue_bytes // 4 // ctx.max_packet))
        looks = cursor.looks
        found = cursor.next(limit)
        for message in found:
            if message.expired(ctx.now):
                continue
            if subscription.checked_by is not None and not subscription.checked_by.may_receive(message.topic):
                continue
            if not message.loaded and ctx.cluster.retained is not None:
                self.wanted += 1
                ctx.cluster.retained.wanted.append(WantedPayload(message.topic, session, subscription))
                continue
            self.give(subscription, message)
        if cursor.done and not self.deleted and session.client_id in ctx.linked:
            self.deleted = True
            self.cursor = self.owner.deletions.cursor(subscription.filter)
        elif cursor.done:
            self._next()
        return 1 + 2 * len(found) + (cursor.looks - looks) // 2

    def give(self, subscription: Subscription, message: Message) -> None:
        linked = self.session.client_id in self.owner.ctx.linked
        if linked:
            message = self.owner.again(message)
        outgoing = Outgoing(message, min(message.qos, subscription.qos), True, subscription.ids, None)
        if is_link(self.session.client_id) and not put_on(self.session.client_id, outgoing):
            return
        if linked:
            outgoing.qos = max(outgoing.qos, subscription.qos)
        audit = self.owner.ctx.audit
        if audit is not None:
            audit.due(self.session, message, outgoing.qos)
        self.owner.delivery.offer(self.session, outgoing, None)

    def _next(self) -> None:
        self.pending.popleft()
        self.cursor = None
        self.deleted = False

    def _queued(self) -> bool:
        """Whether the queue has as much as a replay may put there, a quarter of its limits."""
        queue = self.session.queue
        if queue is None:
            return False
        bound = self.owner.ctx.max_queue_bytes
        return len(queue) * 4 >= self._room() or (bound != 0 and queue.bytes * 4 >= bound)

    def _room(self) -> int:
        return self.owner.ctx.max_queue or 4096


class RetainedReplays:
    ctx: Context
    delivery: Delivery
    tree: RetainedTree
    deletions: Deletions
    held: deque[HeldReplay]  # in the order of their deadlines

    def __init__(self, ctx: Context, delivery: Delivery, tree: RetainedTree, deletions: Deletions) -> None:
        self.ctx = ctx
        self.delivery = delivery
        self.tree = tree
        self.deletions = deletions
        self.held = deque()

    def hold(self, session: Session, subscriptions: list[Subscription]) -> None:
        """The replay begins when all retained messages are here that other nodes accepted before they knew these
        subscriptions."""
        retaining = self.ctx.cluster.retained
        if retaining is None:
            return
        needs = retaining.needs()
        for subscription in subscriptions:
            if not self.held and retaining.here(needs):
                self.begin(session, subscription)
            else:
                deadline = self.ctx.now + retaining.seconds
                self.held.append(HeldReplay(session, subscription, needs, deadline))

    def release(self) -> None:
        """Begin the replays that have what they waited for, or have waited for long enough."""
        retaining = self.ctx.cluster.retained
        if retaining is None or not self.held:
            return
        kept: deque[HeldReplay] = deque()
        for replay in self.held:
            if replay.session.ended or replay.session.client is None:
                continue
            if not retaining.here(replay.needs):
                if self.ctx.now < replay.deadline:
                    kept.append(replay)
                    continue
                retaining.waits.incomplete += 1
            self.begin(replay.session, replay.subscription)
        self.held = kept
        self._count(retaining)

    def _count(self, retaining: RetainedOutbox) -> None:
        waits = retaining.waits
        waits.count = len(self.held)
        waits.missing = {}
        if not self.held:
            return
        waits.since = self.held[0].deadline - retaining.seconds
        for replay in self.held:
            for node in retaining.missing(replay.needs):
                waits.missing[node] = waits.missing.get(node, 0) + 1

    def came(self, wanted: WantedPayload, message: Message | None) -> None:
        """The payload that a replay waited for; None: no connected node has it."""
        session = wanted.session
        job = session.replay
        if session.ended or session.client is None or not isinstance(job, ReplayJob) or job.wanted == 0:
            return
        job.wanted -= 1
        if message is None:
            self.ctx.drop("retained_unreachable", session.client_id)
        elif session.subscription(wanted.subscription.filter) is wanted.subscription:
            job.give(wanted.subscription, message)
        if job.pending:
            if job.waiting and job.wanted < WANTED_MAX // 2:
                job.waiting = False
                self.ctx.jobs.append(job)
        elif job.wanted == 0:
            self.finished(session)

    def begin(self, session: Session, subscription: Subscription) -> None:
        job = session.replay
        if not isinstance(job, ReplayJob):
            job = session.replay = ReplayJob(self, session)
            self.ctx.jobs.append(job)
        elif job.waiting and not job.pending:
            job.waiting = False
            self.ctx.jobs.append(job)
        job.pending.append(subscription)
        if self.ctx.linked.get(session.client_id, REPLAYING) == DONE:
            self.ctx.link(session.client_id, REPLAYING)

    def finished(self, session: Session) -> None:
        """All that a session is to get is in its window or its queue."""
        session.replay = None
        state = self.ctx.linked.get(session.client_id, DONE)
        if state == REPLAYING:
            self.ctx.link(session.client_id, DONE)
        elif state == OWED:
            self.begin_all(session)

    # Linked sites

    def connected(self, session: Session, linked: bool, present: bool) -> None:
        """A client has connected; ``linked``: it is a bridge between this site and another StarlingMQ. If messages
        for its session were dropped, or its replay was interrupted, it gets all again."""
        known = self.ctx.linked.get(session.client_id, -1)
        if not linked:
            self.ctx.unlink(session.client_id)
        elif not present:
            self.ctx.link(session.client_id, DONE)
        elif known != DONE:
            self.begin_all(session)

    def begin_all(self, session: Session) -> None:
        self.ctx.link(session.client_id, REPLAYING)
        for _, subscription in session.subscriptions():
            if subscription.retain_as_published:
                self.begin(session, subscription)
        if session.replay is None:
            self.ctx.link(session.client_id, DONE)

    def again(self, message: Message) -> Message:
        """A retained message or a deletion for a site that may have it: the stamp tells. It may go back to sites where
        it has been."""
        properties = stamped(without(message.properties, MARK), message_stamp(message, self.ctx.stamp_site()), True)
        message = changed(message.copy(), properties)
        message.origin = message.sequence = 0
        return message

    def drained(self, session: Session) -> None:
        """The client accepts messages again: continue its replay."""
        if session.replay is None and self.ctx.linked.get(session.client_id, DONE) == OWED:
            self.begin_all(session)
        job = session.replay
        if isinstance(job, ReplayJob) and job.waiting and (session.queue is None or len(session.queue) == 0):
            job.waiting = False
            self.ctx.jobs.append(job)
