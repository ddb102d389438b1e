"""Restores the content of a store at start: sessions, subscriptions, messages in flight, retained messages.

A client that was connected when the broker stopped counts as disconnected from now on: its deadlines begin here, and
its will is due as if the connection had just been lost.
"""

from __future__ import annotations

from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import SESSION_PUT, Write
from starlingmq.core.delivery.group_engine import GroupEngine
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.messages.stored_messages import References
from starlingmq.core.retained.retained_store import RetainedTree
from starlingmq.core.router.router import Router
from starlingmq.core.session.qos import MAX_PACKET_ID, Handshake, Inbound, SendWindow
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import GROUP_PREFIX, NEVER, NODE_PREFIX, Session, Subscription, Will
from starlingmq.core.session.will_rule import due_after
from starlingmq.core.streams.read_port import ReadPort
from starlingmq.core.topics.topics import OF_STREAMS, parse_share
from starlingmq.core.turn.timers import TimerWheel


class Restoring:
    ctx: Context
    router: Router
    retained: RetainedTree
    retained_wheel: TimerWheel
    ending: Ending
    sharing: GroupEngine
    reads: ReadPort  # set after construction

    def __init__(
        self,
        ctx: Context,
        router: Router,
        retained: RetainedTree,
        retained_wheel: TimerWheel,
        ending: Ending,
        sharing: GroupEngine,
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.retained = retained
        self.retained_wheel = retained_wheel
        self.ending = ending
        self.sharing = sharing

    def session(self, number: int, client_id: str, expiry: int) -> Session:
        """A session without a connection. The other methods fill it, and ``away`` sets its deadlines."""
        session = Session(client_id, number)
        session.kept = True
        session.expiry = expiry
        if client_id.startswith(NODE_PREFIX):
            session.node = int(client_id[len(NODE_PREFIX) :])
            self.ctx.cluster.links[session.node] = session
        elif client_id.startswith(GROUP_PREFIX):
            name, _, filter = client_id[len(GROUP_PREFIX) :].partition("/")
            self.sharing.adopt(self.router.waits_for(name.encode(), filter.encode()), session)
        self.ctx.sessions[client_id] = session
        self.ctx.numbers_from(number + 1)
        return session

    def subscription(
        self, session: Session, whole: bytes, qos: int, no_local: bool, retain_as_published: bool, ids: bytes
    ) -> None:
        share = parse_share(whole)
        filter = whole if share is None else share[1]
        subscription = Subscription(session, filter, qos, no_local, retain_as_published, ids)
        if filter.startswith(OF_STREAMS):
            self.reads.restore(session, whole, subscription)
            return
        session.add_subscription(whole, subscription)
        if share is None:
            self.router.subscribe(subscription)
        else:
            self.router.join(share[0], subscription)

    def queue(self, session: Session, references: References) -> None:
        if len(references) != 0:
            if session.is_group_queue:
                session.queue = self.sharing.queue()
            else:
                session.queue = self.ctx.new_queue(session) if session.node == 0 else MessageQueue(0, 0)
            session.queue.restore(references)

    def window(self, session: Session, packet_id: int, outgoing: Outgoing) -> None:
        """An unacknowledged message; they come in the order of their first transmission."""
        if session.window is None:
            session.window = SendWindow(MAX_PACKET_ID, 0 if session.is_group_queue else self.ctx.max_queue_bytes)
        session.window.restore(packet_id, outgoing)

    def handshake(self, session: Session, packet_id: int, message: Message | None, since: float) -> None:
        """An inbound QoS 2 handshake: held with its message, or completed."""
        if session.inbound is None:
            session.inbound = Inbound()
            self.ctx.arm(session, self.ctx.now + self.ctx.await_rel_timeout)
        inbound = session.inbound
        inbound.entries[packet_id] = Handshake(message, since or self.ctx.now)
        if message is not None:
            inbound.held += 1
            inbound.bytes += message.size()

    def away(self, session: Session, connected: bool, expires_at: float, will: Will | None, will_at: float) -> None:
        """Set the deadlines. Expired ones are handled in the first turn."""
        ctx = self.ctx
        session.will = will
        if connected:
            if will is not None:
                session.will_at = ctx.now + due_after(will.delay, session.expiry)
            if session.expiry != NEVER:
                session.expires_at = ctx.now + session.expiry
        else:
            session.will_at = will_at if will is not None else 0.0
            session.expires_at = expires_at
        if connected and ctx.recording:
            ctx.write(Write(SESSION_PUT, session))  # otherwise the next start would begin the deadlines again
        for deadline in (session.will_at, session.expires_at):
            if deadline != 0.0:
                ctx.arm(session, max(deadline, ctx.now))

    def retain(self, message: Message) -> None:
        self.retained.put(message)
        if message.expires_at != 0.0:
            self.retained_wheel.add(message, message.expires_at)
