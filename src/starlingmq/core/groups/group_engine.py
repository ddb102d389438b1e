"""The messages of shared groups: accepted where they enter, given to a member that can take them (docs/GROUPS.md).

Invariant: a message of a group has one holder at a time. Waiting messages are in the group queue
(core.groups.group_queues); messages that were lent to a member that has not acknowledged them are in the window of the
group queue. Messages that a member holds for itself (in a persistent session), or that went to another node, leave the
group queue in the same commit.
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.core.context import Context
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_queues import GroupQueues
from starlingmq.core.groups.member_selection import LOCAL_FIRST
from starlingmq.core.message import Message
from starlingmq.core.nats.stale_requests import REASON as STALE
from starlingmq.core.observe.audit import group_name
from starlingmq.core.ready import QUEUE_DELETE, WINDOW_PUT
from starlingmq.core.routing.delivery import Delivery
from starlingmq.core.routing.router import Router
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.qos import MAX_PACKET_ID, SendWindow
from starlingmq.core.session.session import Session, Subscription

GIVEN_PER_TURN: Final = 1024  # of one group queue before others get their turn
GROUPS_PER_TURN: Final = 256
GROUPS_PER_UNIT: Final = 32  # of one member that are looked at for the work of one message
TOO_LARGE: Final = "packet_too_large"  # reason of messages that no connected member accepts


class GroupEngine(GroupQueues):
    at_once: int  # messages that entered here and went to another node's members before the primary knew of them
    _given: list[Outgoing]  # written to connections in the previous turn; they leave the group queue in this one

    def __init__(self, ctx: Context, router: Router, delivery: Delivery) -> None:
        super().__init__(ctx, router, delivery)
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
        """Another node has sent a message for a member here."""
        if self.ctx.audit is not None:
            self.ctx.audit.due_to_group(group, message)
        if self.too_old(group, message):
            self.ctx.drop(STALE, group_name(group))
            self.tell_dropped(group, message, STALE)
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

    # Advancing the group queue

    def session_connected(self, session: Session) -> None:
        shares = session.shares
        if shares is not None:
            self.ctx.spend(len(shares) // GROUPS_PER_UNIT)
            for each in shares:
                cast(Group, each).member_connected(session)
            for each in shares:
                group = cast(Group, each)
                if group.line is not None or self.news is not None:
                    self.changed(group)

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
        if self._sweep_at != 0.0 and self.ctx.now >= self._sweep_at:
            self._sweep()

    def pump(self, group: Group, budget: int) -> int:
        """Give waiting messages, oldest first, as long as members can take them. Returns the rest of the budget."""
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
            member = group.choose(lent.message, ctx.write_buffer)
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
            member = group.choose(waiting.message, ctx.write_buffer)
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

    def _drop_lent(self, group: Group, line: Session, window: SendWindow, lent: Outgoing, reason: str) -> None:
        """A member has left without acknowledging this message, and no other one gets it."""
        del window.owed[lent.packet_id]
        self._done(group, lent)
        self.ctx.drop(reason, line.client_id)
