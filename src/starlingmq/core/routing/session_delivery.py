"""From a message to the connection of one receiver: now, through the window, or through the queue.

Invariants:

- At one QoS a session gets messages in the order of their publication: a message that comes while others of its kind
  are queued is queued behind them.
- A queue or a slow reader never makes memory grow past its limit. Above half the limit the publishers are held back (at
  most ``publisher_hold`` seconds); at the limit expired messages are dropped, then the oldest ones, each of them
  counted. Messages that another node has accepted while it could not know the limit are not counted
  (``Context.promised``).
- Only QoS 1 PUBLISH, QoS 2 PUBLISH and PUBREL are ever sent again, from the window, in their first order, with DUP.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connection import HELD
from starlingmq.core.context import Context
from starlingmq.core.ready import QUEUE_DELETE, QUEUE_PUT, WINDOW_PUT
from starlingmq.core.routing.transmission import Transmission
from starlingmq.core.session.outgoing import RELEASED, Outgoing
from starlingmq.core.session.qos import SendWindow
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import Client, Session
from starlingmq.wire.mqtt import ack_frame, packet_id_bytes

UNKNOWN_WORK: Final = 4  # for the answer to an acknowledgement of nothing
PUMP_BATCH: Final = 1024  # messages taken from one queue before others get their turn
# messages that all queues together take beyond their limits, each of 16 bytes: one promised message may be for
# thousands of sessions whose clients are away
BEYOND_MAX: Final = 4_000_000
UNBOUNDED_HIGH: Final = 1000  # a queue without a limit holds back its publishers from here on


class SessionDelivery(Transmission):
    """One receiver: a client, or another node."""

    postponed: dict[Session, list[bytes]]  # they continue when storing works again; with frames for their clients
    links_postponed: list[tuple[Client, bytes]]  # frames for other nodes, sent then (see core.limits.storage_failure)

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.postponed = {}
        self.links_postponed = []

    def barred(self, session: Session, outgoing: Outgoing) -> bool:
        """Whether a connected client may no longer receive a message that has waited for it. Call it if the rules are
        not those that admitted the message. A message lent by a group goes to other members then."""
        client = session.client
        if client is None or client.rights is None or client.link or outgoing.source is not None:
            return False
        return not client.rights.may_receive(outgoing.message.topic)

    def nothing_waits(self, session: Session) -> None:
        """Later messages are admitted by subscriptions that the client may have."""
        if session.window is None or not session.window.owed:
            session.rules = self.ctx.rules

    def offer(self, session: Session, outgoing: Outgoing, publisher: Session | None, promised: bool = False) -> None:
        """Send at once if the client can take it, else queue, else drop. ``promised``: its queue takes it beyond its
        limits."""
        client = session.client
        queue = session.queue
        if client is None:
            if outgoing.qos == 0 and not self.ctx.store_qos0:
                self.give_up(session, outgoing, "offline_qos0")
            else:
                self.enqueue(session, outgoing, publisher, promised)
            return
        ready = not client.blocked and client.size <= self.ctx.write_buffer
        if outgoing.qos == 0:
            if ready and (queue is None or queue.qos0 == 0):
                self.transmit(client, outgoing, 0, False)
            elif self.ctx.store_qos0:
                self.enqueue(session, outgoing, publisher, promised)
            else:
                self.give_up(session, outgoing, "slow_receiver_qos0")
            return
        window = self.window(session, client)
        if ready and (queue is None or len(queue) == 0) and not window.full() and not self.waits(session, outgoing):
            self.transmit_acknowledged(session, client, window, outgoing)
        else:
            self.enqueue(session, outgoing, publisher, promised)

    def waits(self, session: Session, outgoing: Outgoing) -> bool:
        """Whether a message has to wait until storing works again: at QoS 2 it must arrive once, even if the broker
        dies."""
        if not self.ctx.refusing or outgoing.qos != 2 or session.expiry == 0:
            return False
        self.wait(session)
        return True

    def wait(self, session: Session) -> list[bytes]:
        """Make a session continue when storing works again. The caller may add frames for its client to the result."""
        frames = self.postponed.get(session)
        if frames is None:
            frames = self.postponed[session] = []
        return frames

    # The queue

    def enqueue(self, session: Session, outgoing: Outgoing, publisher: Session | None, promised: bool = False) -> None:
        ctx = self.ctx
        if ctx.refusing and outgoing.qos == 0 and session.expiry != 0:
            # messages that wait for the disk in memory must stay bounded
            self.drop(session, outgoing, "storage_failing")
            return
        queue = session.queue
        if queue is None:
            if session.node != 0:
                queue = session.queue = MessageQueue(0, 0)  # accepted messages for another node are not dropped
            else:
                queue = session.queue = MessageQueue(ctx.max_queue, ctx.max_queue_bytes)
        if ctx.recording and session.expiry != 0:
            ctx.ready.deliver(QUEUE_PUT, session, outgoing)
            ctx.spill(session)
        ctx.counters.messages_queued += 1
        promised = self._is_promised(session, promised)
        dropped = queue.push(outgoing, ctx.now, promised)
        if promised and queue.beyond() != 0:
            ctx.beyond_limits += 1
        if dropped is not None:
            for gone in dropped:
                if gone.message.expired(ctx.now):
                    self.give_up(session, gone, "expired")
                else:
                    self.give_up(session, gone, "queue_full")
        if session.client is not None and len(queue) >= self.high_mark() and publisher is not None:
            self.hold(session, publisher)

    def _is_promised(self, session: Session, promised: bool) -> bool:
        """Whether its queue takes a message beyond its limits. A session that ends with its connection is not stored,
        so memory would have to hold what is beyond them. What a session that moves away still gets is for its client,
        who is at the other node already."""
        if self.ctx.beyond_limits >= BEYOND_MAX:
            return False
        if session.moving is not None and session.moving.target != 0:
            return True
        return (promised or self.ctx.promised) and session.expiry != 0

    def high_mark(self) -> int:
        """Queue length above which publishers are held back."""
        bound = self.ctx.max_queue
        return UNBOUNDED_HIGH if bound == 0 else (bound + 1) // 2

    def hold(self, session: Session, publisher: Session) -> None:
        """Do not read a publisher until this queue has drained, or has had its time to.

        A receiver that is held itself cannot acknowledge anything: no publisher is held for it, least of all itself.
        The times of all slow receivers run concurrently; otherwise a publisher to many of them would be held by one
        after the other.
        """
        ctx = self.ctx
        client = publisher.client
        receiver = session.client
        if session.stalled or client is None or ctx.hold_seconds == 0.0:
            return
        if receiver is None:
            if not session.is_group_queue:
                return
        elif receiver is client or receiver.halted & HELD:
            return
        if session.waiters is None:
            session.waiters = []
            session.held_until = ctx.now + ctx.hold_seconds
            ctx.arm(session, session.held_until)
        if client.halted & HELD:
            return
        session.waiters.append(client)
        ctx.counters.held_publishers += 1
        ctx.halt(client, HELD)
        ctx.event("held", publisher.client_id, session.client_id)

    def let_go(self, session: Session) -> None:
        waiters = session.waiters
        if waiters is not None:
            session.waiters = None
            session.held_until = 0.0
            for client in waiters:
                self.ctx.unhalt(client, HELD)

    def go_on(self, session: Session) -> None:
        """The client accepts more: first the messages to be sent again, then the queue."""
        window = session.window
        if window is not None and window.owed and session.client is not None:
            self._send_owed(session, session.client, window)
        if session.queue is not None and not session.is_group_queue:
            self.pump(session)
        if session.shares is not None:
            self.sharing.relieve(session)

    def pump(self, session: Session) -> None:
        """Send from the queue what the client can take now."""
        queue = session.queue
        client = session.client
        if queue is None or client is None:
            return
        ctx = self.ctx
        if client.link:
            if ctx.refusing or self.links_postponed:
                self.wait(session)
                return
            if session.window is not None and session.window.owed:
                return  # not even a QoS 0 message overtakes those: their node would take them for known ones
        budget = PUMP_BATCH
        suspect = session.rules != ctx.rules and client.rights is not None
        while queue.items and budget != 0 and not client.blocked and client.size <= ctx.write_buffer:
            budget -= 1
            outgoing = queue.items[0]
            if outgoing.message.expired(ctx.now):
                self.give_up(session, queue.pop(), "expired")  # [MQTT-3.3.2-5]
                continue
            if suspect and self.barred(session, outgoing):
                self.give_up(session, queue.pop(), "revoked")
                continue
            if outgoing.qos == 0:
                queue.pop()
                ctx.note(QUEUE_DELETE, session, outgoing)
                self.transmit(client, outgoing, 0, False)
                continue
            window = self.window(session, client)
            if window.full() or self.waits(session, outgoing):
                break
            queue.pop()
            ctx.note(QUEUE_DELETE, session, outgoing)
            self.transmit_acknowledged(session, client, window, outgoing)
        if len(queue) <= self.high_mark() // 2:
            session.stalled = False
            self.let_go(session)
        if len(queue) == 0:
            session.queue = None
            if suspect:
                self.nothing_waits(session)
        elif not queue.items:
            self.ctx.load(session)
        elif budget == 0 and not client.dirty:
            client.dirty = True  # only expired messages so far: ``sent`` continues with the rest
            ctx.ready.dirty.append(client)

    def retire(self, session: Session, offset: int, limit: int) -> bool:
        """Drop messages of a session that are stored below ``offset``. Returns whether there may be more."""
        queue = session.queue
        if queue is None:
            return False
        gone = queue.before(offset, limit)
        for outgoing in gone:
            self.give_up(session, outgoing, "expired" if outgoing.message.expired(self.ctx.now) else "retention")
        if gone and len(queue) <= self.high_mark() // 2:
            session.stalled = False
            self.let_go(session)
        if len(queue) == 0:
            session.queue = None
        return len(gone) == limit

    # Acknowledgements from the receiver

    def puback(self, session: Session, packet_id: int) -> None:
        window = session.window
        outgoing = None if window is None else window.acknowledged(packet_id)
        if outgoing is not None:  # else it is late or repeated, and changes nothing
            self.forget(session, packet_id, outgoing)

    def pubrec(self, session: Session, client: Client, packet_id: int, reason: int) -> None:
        ctx = self.ctx
        window = session.window
        if reason >= 0x80:
            refused = None if window is None else window.refused(packet_id)
            if refused is not None:
                self.forget(session, packet_id, refused)
            return
        if window is None or not window.received(packet_id, ctx.now):
            self.unknown_packet_id(client, 0x62, packet_id)
            return
        if ctx.recording and session.expiry != 0:
            ctx.ready.deliver(WINDOW_PUT, session, window.entries[packet_id])
            ctx.send_stored(client, ack_frame(0x62, packet_id))
        else:
            ctx.send(client, ack_frame(0x62, packet_id))

    def pubcomp(self, session: Session, packet_id: int) -> None:
        window = session.window
        outgoing = None if window is None else window.completed(packet_id)
        if outgoing is not None:
            self.forget(session, packet_id, outgoing)

    def forget(self, session: Session, packet_id: int, outgoing: Outgoing) -> None:
        """A packet id is free again: record it, and let the queue advance."""
        if outgoing.ticket != 0:
            self.sharing.settle(outgoing)
        if len(outgoing.message.id) != 0 and self.ctx.audit is not None:
            self.ctx.audit.acknowledged(session.client_id, outgoing)
        if self.ctx.recording and session.expiry != 0:
            self.ctx.done(session, packet_id)
        self.go_on(session)

    def unknown_packet_id(self, client: Client, first: int, packet_id: int) -> None:
        """PUBREL or PUBCOMP for an unknown packet id: 0x92 in MQTT 5; 3.x has no code, so it gets the packet without
        one."""
        self.ctx.work -= UNKNOWN_WORK
        frame = ack_frame(first, packet_id)
        if client.version == 5:
            frame = bytes((first, 3)) + packet_id_bytes(packet_id) + b"\x92"
        self.ctx.send(client, frame)

    # Retransmission

    def resume(self, session: Session, client: Client) -> None:
        """After a reconnection: all unacknowledged messages in their first order, then the queue [MQTT-4.4.0-1]."""
        if session.shares is not None:
            self.sharing.session_connected(session)
        window = session.window
        if window is not None:
            window.limit = client.window_limit
            window.owe_all()
            self._send_owed(session, client, window)
            if client.version != 5 and window.entries and self.ctx.retry_interval != 0.0:
                self.ctx.arm(session, self.ctx.now + self.ctx.retry_interval)
        self.pump(session)

    def _send_owed(self, session: Session, client: Client, window: SendWindow) -> None:
        """Send again what the client can take now: as much as its write buffer has room for, and its Receive Maximum,
        which may be lower than last time."""
        size_max = self.ctx.write_buffer
        while window.owed and len(window.entries) - len(window.owed) < window.limit:
            if client.blocked or client.size > size_max:
                return
            packet_id = next(reversed(window.owed))
            outgoing = window.entries.get(packet_id)
            if outgoing is not None and not outgoing.message.loaded and outgoing.stage != RELEASED:
                self.ctx.load(session)
                return
            if outgoing is not None and self.waits(session, outgoing):
                return
            del window.owed[packet_id]
            if outgoing is None:
                continue
            # At QoS 2 the handshake continues: the receiver may take another message of this id for the same one.
            if outgoing.qos == 1 and session.rules != self.ctx.rules and self.barred(session, outgoing):
                self.drop(session, outgoing, "revoked")
                self.take_out(session, window, packet_id)
            else:
                self.send_again(session, client, window, packet_id, outgoing)

    def retry(self, session: Session) -> None:
        """Within a connection, for 3.x clients only: MQTT 5 forbids it (4.4)."""
        client = session.client
        window = session.window
        interval = self.ctx.retry_interval
        if client is None or client.version == 5 or window is None or not window.entries or interval == 0.0:
            return
        if not client.blocked and not window.owed:
            for packet_id, outgoing in window.due(self.ctx.now - interval):
                if client.size > self.ctx.write_buffer or self.waits(session, outgoing):
                    break  # the others stay due
                self.send_again(session, client, window, packet_id, outgoing)
        if window.entries:
            self.ctx.arm(session, max(window.oldest() + interval, self.ctx.now + 1.0))

    def send_again(
        self, session: Session, client: Client, window: SendWindow, packet_id: int, outgoing: Outgoing
    ) -> None:
        outgoing.sent_at = self.ctx.now
        self.ctx.counters.retransmitted += 1
        if outgoing.stage == RELEASED:
            self.ctx.send_stored(client, ack_frame(0x62, packet_id))
        elif not self.transmit(client, outgoing, packet_id, True):
            self.take_out(session, window, packet_id)

    def lose(self, session: Session, packet_id: int) -> None:
        """A message that is to be sent again cannot be read back any more."""
        window = session.window
        if window is not None:
            self.ctx.drop("lost_in_storage", session.client_id)
            session.dropped += 1
            self.take_out(session, window, packet_id)
