"""The messages of shared groups: accepted where they enter, given to a member that can take them (docs/GROUPS.md).

Invariant: a message of a group has one holder at a time. Waiting messages are in the group queue, a session without a
client, one per group on each node; messages that were lent to a member that has not acknowledged them are in the window
of the group queue. Messages that a member holds for itself (in a persistent session), or that went to another node,
leave the group queue in the same commit.
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.config.settings import QueueGroupsConfig
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import QUEUE_DELETE, QUEUE_PUT, SESSION_DELETE, SESSION_PUT, WINDOW_PUT, Write
from starlingmq.core.delivery.delivery import UNBOUNDED_HIGH, Delivery
from starlingmq.core.delivery.stale_requests import REASON as STALE
from starlingmq.core.delivery.stale_requests import stale
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_port import GroupPort
from starlingmq.core.groups.member_selection import LOCAL_FIRST
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.observe.audit import group_name
from starlingmq.core.router.router import Router
from starlingmq.core.session.qos import MAX_PACKET_ID, SendWindow
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import GROUP_PREFIX, NATS_PREFIX, NEVER, Session, Subscription
from starlingmq.core.streams.read_port import ReadPort
from starlingmq.core.topics.topics import parse_share

SWEEP_SECONDS: Final = 1.0  # between two searches for messages that have waited too long
SWEPT_PER_TURN: Final = 1000  # messages of one group queue
GIVEN_PER_TURN: Final = 1024  # of one group queue before others get their turn
GROUPS_PER_TURN: Final = 256
GROUPS_PER_UNIT: Final = 32  # of one member that are looked at for the work of one message
KEPT_SECONDS: Final = 7 * 86400.0  # for which a group keeps its position in a stream after it has lost its last member
TOO_LARGE: Final = "packet_too_large"  # reason of messages that no connected member accepts


class GroupEngine(GroupPort):
    ctx: Context
    router: Router
    delivery: Delivery
    reads: ReadPort  # set after construction
    lines: dict[Group, None]  # groups with a group queue
    news: dict[Group, None] | None  # in a cluster: groups whose group queue, members or room changed
    ended: list[bytes]  # in a cluster: groups that have ended
    advancing: dict[Group, None]  # groups that may advance
    brief: dict[Group, None]  # their group queue may have messages that wait for ``nats_wait`` at most
    _lingering: dict[Group, None]
    _sweep_at: float
    at_once: int  # messages that entered here and went to another node's members before the primary knew of them
    _given: list[Outgoing]  # written to connections in the previous turn; they leave the group queue in this one

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
        self.at_once = 0
        self._given = []

    # Input

    def take(self, group: Group, message: Message, publisher: Session | None) -> bool:
        group.received += 1
        if self.ctx.audit is not None:
            self.ctx.audit.due_to_group(group, message)
        chooses = group.primary or group.standing or group.orphaned()
        if (chooses or group.strategy == LOCAL_FIRST) and not self.has_line(group):
            write_buffer = self.ctx.write_buffer
            member = group.choose(message, write_buffer) if chooses else group.choose_here(message, write_buffer)
            if member is not None and self._hand_over(group, member, message, None, publisher):
                if not group.primary and member.session.node != 0:
                    self.at_once += 1
                return True
        return self.line_up(group, message, publisher)

    def passes_through(self, group: Group) -> bool:
        ctx = self.ctx
        if not group.primary or group.rooms or group.limited or self.has_line(group):
            return False
        return not ctx.recording or ctx.groups.storage != "journal"

    def hand(self, group: Group, member: Subscription, message: Message, publisher: Session | None) -> None:
        self._hand_over(group, member, message, None, publisher)

    def arrived(self, group: Group, message: Message) -> None:
        """Another node has sent a message for a member here. If earlier ones wait, it gets the first of them."""
        if self.ctx.audit is not None:
            self.ctx.audit.due_to_group(group, message)
        if self.too_old(group, message):
            self.ctx.drop(STALE, group_name(group))
            self.tell_dropped(group, message, STALE)
            return
        if self.has_line(group):
            self.line_up(group, message, None, promised=True)
            self.pump(group, 1, here=True)
            return
        member = group.choose_here(message, self.ctx.write_buffer)
        if member is None or not self._hand_over(group, member, message, None, None):
            self.line_up(group, message, None, promised=True)

    def reach(self, node: int, reached: bool) -> None:
        """Another node became unreachable or reachable."""
        unreached = self.router.unreached
        if reached != (node in unreached):
            return
        if reached:
            del unreached[node]
        else:
            unreached[node] = None
        self.router.awaited_changes += 1
        for group in self.router.groups():
            if group.chooser == node or node in group.counts:
                self.changed(group)

    def restored(self) -> None:
        """All stored groups are restored: the group queues advance, beginning with the messages that were lent."""
        for group, line in [(group, group.line) for group in self.lines]:
            assert line is not None
            if line.window is not None:
                line.window.owe_all()
            self.advancing[group] = None
            self.brief[group] = None
            self._arm_sweep()
            if not group.members:
                self.emptied(group, True)

    # Handing over

    def _hand_over(
        self, group: Group, member: Subscription, message: Message, lent: Outgoing | None, publisher: Session | None
    ) -> bool:
        """Give a message to a member here, or to the node of members. Returns False if it has to stay in the group
        queue after all.

        ``lent``: it is in the window of the group queue already.
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
            self._tell_given(group, member, message)
            self.delivery.forward_to_member(message, session, group.share(), stored)
            self._done(group, lent)
            return True
        client = session.client
        assert client is not None
        group.given += 1
        acknowledged = message.qos != 0 and member.qos != 0 and client.protocol_handler is None
        if acknowledged and session.expiry != 0 and ctx.recording:  # it belongs to the session from here on
            self._done(group, lent)
            self._tell_given(group, member, message)
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
        self._tell_given(group, member, message)
        if client.protocol_handler is not None:
            client.protocol_handler.deliver(client, message, member, publisher)
        else:
            self._offer(group, member, message, ticket if acknowledged else 0, publisher)
        if lent is not None and not acknowledged:
            lent.source = group
            lent.ticket = ticket
            self._given.append(lent)
        return True

    def _tell_given(self, group: Group, member: Subscription, message: Message) -> None:
        audit = self.ctx.audit
        if audit is not None:
            audit.given(group, member.session, message, min(message.qos, member.qos))

    def _offer(
        self, group: Group, member: Subscription, message: Message, ticket: int, publisher: Session | None
    ) -> None:
        qos = message.qos if message.qos < member.qos else member.qos
        retain = message.retain and member.retain_as_published
        outgoing = Outgoing(message, qos, retain, member.ids, group)
        outgoing.ticket = ticket
        self.delivery.offer(member.session, outgoing, publisher)

    def _lend(self, group: Group, message: Message) -> Outgoing | None:
        """Record in the group queue that a member has it, until ``settle``. None: the limit of lent messages is
        reached."""
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
        """A lent message belongs to another holder, or has been acknowledged."""
        line = group.line
        if lent is None or line is None or line.window is None:
            return
        if line.window.entries.get(lent.packet_id) is lent:
            line.window.discard(lent.packet_id)
            if line.kept:
                self.ctx.done(line, lent.packet_id)
            if self.has_line(group):
                self.advancing[group] = None

    def settle(self, outgoing: Outgoing, refused: bool = False) -> None:
        group = outgoing.source
        if outgoing.ticket != 0 and group is not None and not isinstance(group, Group):
            self.reads.settle(outgoing, refused)
            return
        if outgoing.ticket == 0 or not isinstance(group, Group) or group.line is None or group.line.window is None:
            return
        self._done(group, group.line.window.entries.get(outgoing.ticket))

    def give_back(self, outgoing: Outgoing) -> bool:
        group = outgoing.source
        if not isinstance(group, Group):
            if group is not None:
                self.reads.give_back(outgoing)
            return group is not None
        found = self.router.group(group.share())
        if found is None:
            return False
        if found is not group:
            outgoing.ticket = 0  # that group queue does not exist any more
        if outgoing.message.qos == 0 and not found.has_members():
            self.settle(outgoing)
            return False
        found.redelivered += 1
        line = self.line_of(found)
        window = line.window
        lent = None if window is None or outgoing.ticket == 0 else window.entries.get(outgoing.ticket)
        if lent is None:
            lent = self._lend(found, outgoing.message)
            window = line.window
        if lent is None or window is None:
            self.line_up(found, outgoing.message, None, promised=True)
            return True
        window.owed[lent.packet_id] = None
        self.changed(found)
        return True

    def competes(self, outgoing: Outgoing) -> bool:
        return outgoing.source is not None and not isinstance(outgoing.source, Group)

    # Advancing the group queue

    def session_connected(self, session: Session) -> None:
        shares = session.shares
        if shares is not None:
            self.ctx.spend(len(shares) // GROUPS_PER_UNIT)
            for each in shares:
                cast(Group, each).member_connected(session)
            for each in shares:
                group = cast(Group, each)
                if group.line is not None or self.news is not None or group.feeder is not None:
                    self.changed(group)
        if session.reads is not None:
            self.reads.session_connected(session)

    def relieve(self, session: Session) -> None:
        """Called after each write to a member, and each acknowledgement. A member of many groups has waiting messages
        in few of them; the other groups are not touched."""
        shares = session.shares
        if shares is not None:
            self.ctx.spend(len(shares) // GROUPS_PER_UNIT)
            for each in shares:
                group = cast(Group, each)
                if group.full or self.has_line(group):
                    group.full = False
                    self.changed(group)
        if session.reads is not None:
            self.reads.relieve(session)

    def pending(self) -> bool:
        """Whether there is work for the next turn."""
        return len(self.advancing) != 0 or len(self._given) != 0

    def turn(self) -> None:
        """Advance the group queues. Messages written in the previous turn leave them."""
        if self._given:
            given = self._given
            self._given = []
            for lent in given:
                self.settle(lent)
        if self.advancing:
            advancing = list(self.advancing)[:GROUPS_PER_TURN]
            for group in advancing:
                del self.advancing[group]
                if (group.primary or group.orphaned()) and self.pump(group, GIVEN_PER_TURN) == 0:
                    self.advancing[group] = None
                elif group.feeder is not None and not self.has_line(group):
                    self.reads.group_advanced(group.feeder)
        if self._sweep_at != 0.0 and self.ctx.now >= self._sweep_at:
            self._sweep()

    def pump(self, group: Group, budget: int, here: bool = False) -> int:
        """Give waiting messages, oldest first, to members that can take them. Returns the rest of the budget."""
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
            expired = lent.message.expired(ctx.now)
            if expired or self.too_old(group, lent.message):
                self._drop_lent(group, line, window, lent, "expired" if expired else STALE)
                continue
            member = self._member(group, lent.message, here)
            if member is None:
                if not group.too_large(lent.message):
                    return budget
                self._drop_lent(group, line, window, lent, TOO_LARGE)
                self.tell_dropped(group, lent.message, TOO_LARGE)
                budget -= 1
                continue
            budget -= 1
            ctx.work -= 1
            del window.owed[packet_id]
            if ctx.audit is not None:
                ctx.audit.due_to_group(group, lent.message)  # again
            if not self._hand_over(group, member, lent.message, lent, None):
                return budget
        queue = line.queue
        while queue is not None and queue.items and budget > 0:
            waiting = queue.items[0]
            if waiting.message.expired(ctx.now):
                self.delivery.give_up(line, queue.pop(), "expired")
                continue
            if self.too_old(group, waiting.message):
                self.delivery.give_up(line, queue.pop(), STALE)
                budget -= 1
                continue
            member = self._member(group, waiting.message, here)
            if member is None:
                if not group.too_large(waiting.message):
                    break
                self.delivery.give_up(line, queue.pop(), TOO_LARGE)
                budget -= 1
                continue
            budget -= 1
            ctx.work -= 1
            if not self._hand_over(group, member, waiting.message, None, None):
                break
            queue.pop()
            ctx.note(QUEUE_DELETE, line, waiting)
        if queue is not None:
            self.moved_up(line, queue)
        return budget

    def _member(self, group: Group, message: Message, here: bool) -> Subscription | None:
        write_buffer = self.ctx.write_buffer
        return group.choose_here(message, write_buffer) if here else group.choose(message, write_buffer)

    def _drop_lent(self, group: Group, line: Session, window: SendWindow, lent: Outgoing, reason: str) -> None:
        """A member has left without acknowledging this message, and no other one gets it."""
        del window.owed[lent.packet_id]
        self._done(group, lent)
        self.ctx.drop(reason, line.client_id)

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
        grace = self.ctx.groups.grace if group.feeder is None else KEPT_SECONDS
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
        if group.feeder is not None:
            self.reads.group_ended(group.feeder)
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
