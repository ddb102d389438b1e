"""The messages of shared groups: kept in line where they enter, given to a member that can take them (docs/GROUPS.md).

The law: a message of a group has one holder at a time. The line of a group is a session without a client: its queue
holds what waits, its window what was lent to a member that has not acknowledged it. What a member holds for itself (in
a session that outlives its connection), and what went to another node, is no more in line, from the same commit on.
"""

from __future__ import annotations

from typing import Final

from starlingmq.config import QueueGroupsConfig
from starlingmq.core.context import Context
from starlingmq.core.delivery import UNBOUNDED_HIGH, Delivery
from starlingmq.core.groups import LOCAL_FIRST, Group, Sharing
from starlingmq.core.message import Message
from starlingmq.core.outgoing import Outgoing
from starlingmq.core.qos import MAX_PACKET_ID, SendWindow
from starlingmq.core.queue import MessageQueue
from starlingmq.core.ready import QUEUE_DELETE, QUEUE_PUT, SESSION_DELETE, SESSION_PUT, WINDOW_PUT, Write
from starlingmq.core.router import Router
from starlingmq.core.session import GROUP_PREFIX, NEVER, Session, Subscription

GIVEN_PER_TURN: Final = 1024  # of one group's line before others get their turn
GROUPS_PER_TURN: Final = 256
SWEEP_SECONDS: Final = 1.0  # between two looks at what has waited for too long


class GroupEngine(Sharing):
    """``clustered``: groups are other nodes' too, and who chooses is elected."""

    ctx: Context
    router: Router
    delivery: Delivery
    lines: dict[Group, None]  # groups that have one
    news: dict[Group, None] | None  # in a cluster: whose line, members or room have changed
    ended: list[bytes]  # in a cluster: groups that are over
    _stirred: dict[Group, None]  # may go on
    _given: list[Outgoing]  # written to connections in the turn before; they leave the line in this one
    _lingering: dict[Group, None]
    _sweep_at: float

    def __init__(self, ctx: Context, router: Router, delivery: Delivery) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.lines = {}
        self.news = None
        self.ended = []
        self._stirred = {}
        self._given = []
        self._lingering = {}
        self._sweep_at = 0.0

    def configure(self, groups: QueueGroupsConfig) -> None:
        self.ctx.groups = groups
        strategies: dict[str, str] = {}
        for name, strategy in groups.strategies.items():
            strategies[name] = strategy
        self.router.configure_groups(groups.strategy, strategies)

    def cluster(self) -> None:
        """There are other nodes from here on, and primaries are elected."""
        self.router.alone = False
        self.news = {}
        for group in self.router.groups():
            group.primary = False
            self.news[group] = None
        for group in self._lingering:
            self._linger(group, True)

    # What comes in

    def take(self, group: Group, message: Message, publisher: Session | None) -> bool:
        group.received += 1
        if not self._has_line(group) and (group.primary or group.strategy == LOCAL_FIRST):
            write_buffer = self.ctx.write_buffer
            member = group.choose(message, write_buffer) if group.primary else group.choose_here(message, write_buffer)
            if member is not None and self._hand_over(group, member, message, None, publisher):
                return True
        return self._line_up(group, message, publisher)

    def arrived(self, group: Group, message: Message) -> None:
        """Another node has given us a message for a member here."""
        member = group.choose_here(message, self.ctx.write_buffer)
        if member is None or not self._hand_over(group, member, message, None, None):
            self._line_up(group, message, None)

    def _has_line(self, group: Group) -> bool:
        line = group.line
        if line is None:
            return False
        if line.queue is not None:
            return True
        return line.window is not None and len(line.window.owed) != 0

    def _line_up(self, group: Group, message: Message, publisher: Session | None) -> bool:
        ctx = self.ctx
        if message.qos == 0 and not ctx.store_qos0 and not group.nodes and group.online() == 0:
            ctx.drop("offline_qos0", "")
            return False
        line = self.line_of(group)
        waited = line.queue is not None
        if ctx.refusing and message.qos == 0 and line.kept:
            ctx.drop("storage_failing", line.client_id)  # what waits for the disk in memory must not grow for ever
            return False
        queue = line.queue
        if queue is None:
            queue = line.queue = self.queue()
        waiting = Outgoing(message, message.qos, message.retain, b"", None)
        if line.kept:
            ctx.note(QUEUE_PUT, line, waiting)
            ctx.spill(line)
        ctx.counters.messages_queued += 1
        for gone in queue.push(waiting, ctx.now) or ():
            self.delivery.give_up(line, gone, "expired" if gone.message.expired(ctx.now) else "group_full")
        if publisher is not None and len(queue) >= self._high_mark() and (group.nodes or group.online() != 0):
            self.delivery.hold(line, publisher)
        self._arm_sweep()
        if not waited:
            self.changed(group)
        return group.somebody()

    def queue(self) -> MessageQueue:
        return MessageQueue(self.ctx.groups.max_waiting, self.ctx.groups.max_waiting_bytes)

    def _high_mark(self) -> int:
        bound = self.ctx.groups.max_waiting
        return UNBOUNDED_HIGH if bound == 0 else (bound + 1) // 2

    def line_of(self, group: Group) -> Session:
        """Where messages of a group wait at this node."""
        line = group.line
        if line is None:
            ctx = self.ctx
            line = Session(GROUP_PREFIX + group.name.decode() + "/" + group.filter.decode(), ctx.next_number)
            ctx.next_number += 1
            line.expiry = NEVER if ctx.groups.storage == "journal" else 0
            ctx.sessions[line.client_id] = line
            self.adopt(group, line)
            if ctx.recording and line.expiry != 0:
                line.kept = True
                ctx.write(Write(SESSION_PUT, line))
        return line

    def adopt(self, group: Group, line: Session) -> None:
        """This is the group's line: it was made, or comes back from a store."""
        line.shares = [group]
        line.is_line = True
        group.line = line
        self.lines[group] = None

    def restored(self) -> None:
        """All that a store had is back: lines go on, with what was lent first."""
        for group, line in [(group, group.line) for group in self.lines]:
            assert line is not None
            if line.window is not None:
                line.window.owe_all()
            self._stirred[group] = None
            self._arm_sweep()
            if not group.members:
                self.emptied(group, True)

    # Giving

    def _hand_over(
        self, group: Group, member: Subscription, message: Message, lent: Outgoing | None, publisher: Session | None
    ) -> bool:
        """Give a message to a member here, or to the node of members; False if it has to stay in line after all.

        ``lent``: it is in the line's window already.
        """
        ctx = self.ctx
        session = member.session
        stored = ctx.recording and not ctx.refusing and ctx.groups.storage == "journal"
        if session.node != 0:
            room = group.rooms.get(session.node)
            if room is not None:
                room.left -= 1
                if self.news is not None and room.left * 2 <= room.given:
                    self.news[group] = None
            self.delivery.forward_to_member(message, session, group.share(), stored)
            self._done(group, lent)
            return True
        client = session.client
        assert client is not None
        group.given += 1
        acknowledged = message.qos != 0 and member.qos != 0 and client.dialect is None
        if acknowledged and session.expiry != 0 and ctx.recording:  # it is the session's from here on
            self._done(group, lent)
            self._offer(group, member, message, 0, publisher)
            return True
        ticket = 0
        if stored or lent is not None:
            if lent is None:
                lent = self._lend(group, message)
                if lent is None:
                    group.given -= 1
                    return False
            ticket = lent.packet_id
        if client.dialect is not None:
            client.dialect.deliver(client, message, member, publisher)
        else:
            self._offer(group, member, message, ticket if acknowledged else 0, publisher)
        if lent is not None and not acknowledged:
            lent.source = group
            lent.ticket = ticket
            self._given.append(lent)
        return True

    def _offer(
        self, group: Group, member: Subscription, message: Message, ticket: int, publisher: Session | None
    ) -> None:
        qos = message.qos if message.qos < member.qos else member.qos
        retain = message.retain and member.retain_as_published
        outgoing = Outgoing(message, qos, retain, member.ids, group)
        outgoing.ticket = ticket
        self.delivery.offer(member.session, outgoing, publisher)

    def _lend(self, group: Group, message: Message) -> Outgoing | None:
        """Note in the line that a member has it, until ``settle``. None: as many are lent as can be."""
        line = self.line_of(group)
        window = line.window
        if window is None:
            window = line.window = SendWindow(MAX_PACKET_ID)
        if len(window.entries) >= MAX_PACKET_ID:
            return None
        lent = Outgoing(message, message.qos, message.retain, b"", None)
        window.add(lent, self.ctx.now)
        self.ctx.note(WINDOW_PUT, line, lent)
        return lent

    def _done(self, group: Group, lent: Outgoing | None) -> None:
        """What was lent is somebody else's, or has been acknowledged."""
        line = group.line
        if lent is None or line is None or line.window is None:
            return
        if line.window.entries.get(lent.packet_id) is lent:
            line.window.discard(lent.packet_id)
            if line.kept:
                self.ctx.done(line, lent.packet_id)
            if self._has_line(group):
                self._stirred[group] = None

    def settle(self, outgoing: Outgoing) -> None:
        group = outgoing.source
        if outgoing.ticket == 0 or not isinstance(group, Group) or group.line is None or group.line.window is None:
            return
        self._done(group, group.line.window.entries.get(outgoing.ticket))

    def give_back(self, outgoing: Outgoing) -> bool:
        group = outgoing.source
        if not isinstance(group, Group):
            return False
        found = self.router.group(group.share())
        if found is None:
            return False
        if found is not group:
            outgoing.ticket = 0  # that line is gone
        found.redelivered += 1
        line = self.line_of(found)
        window = line.window
        lent = None if window is None or outgoing.ticket == 0 else window.entries.get(outgoing.ticket)
        if lent is None:
            lent = self._lend(found, outgoing.message)
            window = line.window
        if lent is None or window is None:
            self._line_up(found, outgoing.message, None)
            return True
        window.owed[lent.packet_id] = None
        self.changed(found)
        return True

    # The line moves up

    def stir(self, session: Session) -> None:
        shares = session.shares
        if shares is not None:
            for group in shares:
                if group.line is not None or self.news is not None:
                    self.changed(group)

    def changed(self, group: Group) -> None:
        self._stirred[group] = None
        if self.news is not None:
            self.news[group] = None

    def pending(self) -> bool:
        """Whether a next turn has something to do."""
        return len(self._stirred) != 0 or len(self._given) != 0

    def turn(self) -> None:
        """Have lines move up; what was written in the turn before is out of them."""
        if self._given:
            given = self._given
            self._given = []
            for lent in given:
                self.settle(lent)
        if self._stirred:
            stirred = list(self._stirred)[:GROUPS_PER_TURN]
            for group in stirred:
                del self._stirred[group]
                if group.primary and self.pump(group, GIVEN_PER_TURN) == 0:
                    self._stirred[group] = None
        if self._sweep_at != 0.0 and self.ctx.now >= self._sweep_at:
            self._sweep()

    def pump(self, group: Group, budget: int) -> int:
        """Give what is in line, oldest first, as far as somebody takes it; what is left of the budget."""
        line = group.line
        if line is None:
            return budget
        ctx = self.ctx
        window = line.window
        while window is not None and window.owed and budget > 0:
            packet_id = next(reversed(window.owed))
            lent = window.entries.get(packet_id)
            if lent is None:
                del window.owed[packet_id]
                continue
            if not lent.message.loaded:
                ctx.load(line)
                return budget
            if lent.message.expired(ctx.now):
                del window.owed[packet_id]
                self._done(group, lent)
                ctx.drop("expired", line.client_id)
                continue
            member = group.choose(lent.message, ctx.write_buffer)
            if member is None:
                return budget
            budget -= 1
            ctx.work -= 1
            del window.owed[packet_id]
            if not self._hand_over(group, member, lent.message, lent, None):
                return budget
        queue = line.queue
        while queue is not None and queue.items and budget > 0:
            waiting = queue.items[0]
            if waiting.message.expired(ctx.now):
                self.delivery.give_up(line, queue.pop(), "expired")
                continue
            member = group.choose(waiting.message, ctx.write_buffer)
            if member is None:
                break
            budget -= 1
            ctx.work -= 1
            if not self._hand_over(group, member, waiting.message, None, None):
                break
            queue.pop()
            ctx.note(QUEUE_DELETE, line, waiting)
        if queue is not None:
            self._moved_up(line, queue)
        return budget

    def _moved_up(self, line: Session, queue: MessageQueue) -> None:
        if len(queue) <= self._high_mark() // 2:
            line.stalled = False
            self.delivery.let_go(line)
        if len(queue) == 0:
            line.queue = None
        elif not queue.items:
            self.ctx.load(line)

    # A group's life

    def emptied(self, group: Group, lost: bool) -> None:
        grace = self.ctx.groups.grace
        if self.news is not None:
            self.news[group] = None
        if lost and grace != 0.0:
            group.gone_at = self.ctx.now + grace
            self._lingering[group] = None
            self._linger(group, True)
            if self._sweep_at == 0.0 or group.gone_at < self._sweep_at:
                self._sweep_at = group.gone_at
        else:
            self._end(group)

    def joined(self, group: Group) -> None:
        if group.gone_at != 0.0:
            group.gone_at = 0.0
            self._lingering.pop(group, None)
            self._linger(group, False)
        self.changed(group)

    def _linger(self, group: Group, lingers: bool) -> None:
        if self.ctx.interest is not None:
            self.ctx.interest.linger(group.share(), lingers)

    def _end(self, group: Group) -> None:
        """Nobody is left here. The group is over when nobody is elsewhere either."""
        group.gone_at = 0.0
        self._lingering.pop(group, None)
        self._linger(group, False)
        if not self.router.dissolve(group):
            return
        self._stirred.pop(group, None)
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
        if self._sweep_at == 0.0 and self.ctx.groups.retention != 0.0:
            self._sweep_at = self.ctx.now + SWEEP_SECONDS

    def _sweep(self) -> None:
        now = self.ctx.now
        self._sweep_at = 0.0
        for group in list(self._lingering):
            if group.gone_at <= now:
                self._end(group)
            elif self._sweep_at == 0.0 or group.gone_at < self._sweep_at:
                self._sweep_at = group.gone_at
        if self.ctx.groups.retention == 0.0:
            return
        before = now - self.ctx.groups.retention
        for group in self.lines:
            line = group.line
            if line is not None and line.queue is not None:
                self._retire(line, line.queue, before)
        if self._sweep_at == 0.0 or now + SWEEP_SECONDS < self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS

    def _retire(self, line: Session, queue: MessageQueue, before: float) -> None:
        """Drop what has waited for longer than it may."""
        while queue.items and queue.items[0].message.published_at < before:
            self.delivery.give_up(line, queue.pop(), "group_retention")
        self._moved_up(line, queue)
