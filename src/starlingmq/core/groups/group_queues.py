"""Group queues: one per group on each node, their limits, and the end of groups.

A group queue is a session without a client: its queue has the waiting messages, its window those lent to members
(core.groups.group_engine).
"""

from __future__ import annotations

from typing import Final

from starlingmq.config.settings import QueueGroupsConfig
from starlingmq.core.context import Context
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_port import GroupPort
from starlingmq.core.message import Message
from starlingmq.core.nats.stale_requests import REASON as STALE
from starlingmq.core.nats.stale_requests import stale
from starlingmq.core.observe.audit import group_name
from starlingmq.core.ready import QUEUE_PUT, SESSION_DELETE, SESSION_PUT, Write
from starlingmq.core.routing.delivery import UNBOUNDED_HIGH, Delivery
from starlingmq.core.routing.router import Router
from starlingmq.core.routing.topics import parse_share
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import GROUP_PREFIX, NATS_PREFIX, NEVER, Session

SWEEP_SECONDS: Final = 1.0  # between two searches for messages that have waited too long
SWEPT_PER_TURN: Final = 1000  # messages of one group queue


class GroupQueues(GroupPort):
    ctx: Context
    router: Router
    delivery: Delivery
    lines: dict[Group, None]  # groups with a group queue
    news: dict[Group, None] | None  # in a cluster: groups whose group queue, members or room changed
    ended: list[bytes]  # in a cluster: groups that have ended
    advancing: dict[Group, None]  # groups that may advance
    brief: dict[Group, None]  # their group queue may have messages that wait for ``nats_wait`` at most
    _lingering: dict[Group, None]
    _sweep_at: float

    def __init__(self, ctx: Context, router: Router, delivery: Delivery) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.lines = {}
        self.news = None
        self.ended = []
        self.advancing = {}
        self.brief = {}
        self._lingering = {}
        self._sweep_at = 0.0

    def configure(self, groups: QueueGroupsConfig) -> None:
        self.ctx.groups = groups
        strategies: dict[str, str] = {}
        for name, strategy in groups.strategies.items():
            strategies[name] = strategy
        self.router.configure_groups(groups.strategy, strategies)

    def cluster(self) -> None:
        """From now on there are other nodes, and primaries are elected."""
        self.router.alone = False
        self.news = {}
        for group in self.router.groups():
            group.primary = False
            self.news[group] = None
        for group in self._lingering:
            self._linger(group, True)

    def has_line(self, group: Group) -> bool:
        line = group.line
        if line is None:
            return False
        if line.queue is not None:
            return True
        return line.window is not None and len(line.window.owed) != 0

    def line_up(self, group: Group, message: Message, publisher: Session | None, promised: bool = False) -> bool:
        """Put a message into the group queue of this node. ``promised``: it was accepted already, and is no reason to
        drop one."""
        ctx = self.ctx
        if message.qos == 0 and (
            not group.has_members() or (not ctx.store_qos0 and not group.nodes and group.online() == 0)
        ):
            ctx.drop("offline_qos0", "")
            self.tell_dropped(group, message, "offline_qos0")
            return False
        line = self.line_of(group)
        waited = line.queue is not None
        if ctx.refusing and message.qos == 0 and line.kept:
            ctx.drop("storage_failing", line.client_id)  # messages that wait for the disk in memory must stay bounded
            self.tell_dropped(group, message, "storage_failing")
            return False
        queue = line.queue
        if queue is None:
            queue = line.queue = self.queue()
        waiting = Outgoing(message, message.qos, message.retain, b"", None)
        if line.kept:
            ctx.note(QUEUE_PUT, line, waiting)
            ctx.spill(line)
        ctx.counters.messages_queued += 1
        for gone in queue.push(waiting, ctx.now, promised) or ():
            self.delivery.give_up(line, gone, "expired" if gone.message.expired(ctx.now) else "group_full")
        if publisher is not None and len(queue) >= self.high_mark() and (group.nodes or group.online() != 0):
            self.delivery.hold(line, publisher)
        if ctx.groups.nats_wait != 0.0 and message.publisher.startswith(NATS_PREFIX):
            self.brief[group] = None
        self._arm_sweep()
        if not waited:
            self.changed(group)
        return group.has_members()

    def too_old(self, group: Group, message: Message) -> bool:
        """Whether a message of a NATS client has waited for longer than the members of a group want it."""
        wait = self.ctx.groups.nats_wait
        return wait != 0.0 and stale(message, self.ctx.now, wait) and not group.keeps()

    def tell_dropped(self, group: Group, message: Message, reason: str) -> None:
        audit = self.ctx.audit
        if audit is not None:
            audit.dropped(group_name(group), message, message.qos, reason)

    def queue(self) -> MessageQueue:
        return MessageQueue(self.ctx.groups.max_waiting, self.ctx.groups.max_waiting_bytes)

    def high_mark(self) -> int:
        bound = self.ctx.groups.max_waiting
        return UNBOUNDED_HIGH if bound == 0 else (bound + 1) // 2

    def line_of(self, group: Group) -> Session:
        """The group queue of this node."""
        line = group.line
        if line is None:
            ctx = self.ctx
            line = ctx.new_session(GROUP_PREFIX + group.name.decode() + "/" + group.filter.decode())
            line.expiry = NEVER if ctx.groups.storage == "journal" else 0
            self.adopt(group, line)
            if ctx.recording and line.expiry != 0:
                line.kept = True
                ctx.write(Write(SESSION_PUT, line))
        return line

    def adopt(self, group: Group, line: Session) -> None:
        """Use this session as the group queue: it is new, or was restored from a store."""
        line.shares = {group: None}
        line.is_group_queue = True
        group.line = line
        self.lines[group] = None

    def changed(self, group: Group) -> None:
        line = group.line
        if line is not None and line.queue is not None and line.queue.qos0 != 0 and not group.has_members():
            self._drop_qos0(line, line.queue)
        self.advancing[group] = None
        if self.news is not None:
            self.news[group] = None

    def _drop_qos0(self, line: Session, queue: MessageQueue) -> None:
        """There is no member on any node: at QoS 0, the next one gets no earlier messages [MQTT-4.1.0-2]."""
        for gone in queue.take_qos0():
            self.delivery.give_up(line, gone, "offline_qos0")
        self.moved_up(line, queue)

    def moved_up(self, line: Session, queue: MessageQueue) -> None:
        if len(queue) <= self.high_mark() // 2:
            line.stalled = False
            self.delivery.let_go(line)
        if len(queue) == 0:
            line.queue = None
        elif not queue.items:
            self.ctx.load(line)

    # Life of a group

    def emptied(self, group: Group, lost: bool) -> None:
        grace = self.ctx.groups.grace
        if self.news is not None:
            self.news[group] = None
        if lost and grace != 0.0:
            self.changed(group)
            group.gone_at = self.ctx.now + grace
            self._lingering[group] = None
            self._linger(group, True)
            if self._sweep_at == 0.0 or group.gone_at < self._sweep_at:
                self._sweep_at = group.gone_at
        else:
            self._end(group)

    def lost(self, share: bytes) -> None:
        """An earlier process of this node had members of ``$share/name/filter``, which were lost with it."""
        parsed = parse_share(share)
        if parsed is not None:
            group = self.router.waits_for(*parsed)
            if not group.members and group.gone_at == 0.0:
                self.emptied(group, True)

    def joined(self, group: Group) -> None:
        if group.gone_at != 0.0:
            group.gone_at = 0.0
            self._lingering.pop(group, None)
            self._linger(group, False)
        self.changed(group)

    def _linger(self, group: Group, lingers: bool) -> None:
        if self.ctx.cluster.interest is not None:
            self.ctx.cluster.interest.linger(group.share(), lingers)

    def _end(self, group: Group) -> None:
        """No member is left here. The group has ended if there is none on other nodes either."""
        group.gone_at = 0.0
        self._lingering.pop(group, None)
        self._linger(group, False)
        if not self.router.dissolve(group):
            return
        self.advancing.pop(group, None)
        self.brief.pop(group, None)
        if self.news is not None:
            self.news.pop(group, None)
            self.ended.append(group.share())
        line = group.line
        if line is None:
            return
        ctx = self.ctx
        waiting = 0 if line.queue is None else len(line.queue)
        if line.window is not None:
            waiting += len(line.window.owed)
        if waiting != 0:
            ctx.drop("group_gone", line.client_id, waiting)
            if ctx.audit is not None:
                ctx.audit.dropped_all(line, "group_gone")
        group.line = None
        self.lines.pop(group, None)
        line.ended = True
        self.delivery.let_go(line)
        ctx.disarm(line)
        ctx.sessions.pop(line.client_id, None)
        if line.kept:
            ctx.write(Write(SESSION_DELETE, line))
        line.queue = None
        line.window = None

    # Time

    def wake_at(self) -> float:
        return self._sweep_at

    def _arm_sweep(self) -> None:
        if self._sweep_at == 0.0 and (self.ctx.groups.retention != 0.0 or self.brief):
            self._sweep_at = self.ctx.now + SWEEP_SECONDS

    def _sweep(self) -> None:
        now = self.ctx.now
        self._sweep_at = 0.0
        for group in list(self._lingering):
            if group.gone_at <= now:
                self._end(group)
            elif self._sweep_at == 0.0 or group.gone_at < self._sweep_at:
                self._sweep_at = group.gone_at
        for group in list(self.brief):
            line = group.line
            if line is None or line.queue is None:
                del self.brief[group]
            elif not self._retire_stale(group, line, line.queue):
                self._sweep_at = now
        if self.ctx.groups.retention == 0.0 and not self.brief:
            return
        if self._sweep_at == 0.0 or now + SWEEP_SECONDS < self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
        if self.ctx.groups.retention == 0.0:
            return
        before = now - self.ctx.groups.retention
        for group in self.lines:
            line = group.line
            if line is not None and line.queue is not None:
                self._retire(line, line.queue, before)

    def _retire_stale(self, group: Group, line: Session, queue: MessageQueue) -> bool:
        """Drop messages of NATS clients that are too old for NATS members. Returns False if there are more."""
        budget = SWEPT_PER_TURN
        while budget > 0 and queue.items and self.too_old(group, queue.items[0].message):
            self.delivery.give_up(line, queue.pop(), STALE)
            budget -= 1
        self.moved_up(line, queue)
        return budget > 0

    def _retire(self, line: Session, queue: MessageQueue, before: float) -> None:
        """Drop messages that have waited for too long."""
        while queue.items and queue.items[0].message.published_at < before:
            self.delivery.give_up(line, queue.pop(), "group_retention")
        self.moved_up(line, queue)
