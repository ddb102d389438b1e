"""From a message to its receivers: the sessions, groups and streams of its route, here and at other nodes; and from a
receiver's acknowledgements to the end of its message.

Invariants:

- At one QoS a session gets messages in the order of their publication: a message that comes while others of its kind
  are queued is queued behind them.
- A queue or a slow reader never makes memory grow past its limit. Above half the limit the publishers are held back (at
  most ``publisher_hold`` seconds); at the limit expired messages are dropped, then the oldest ones, each of them
  counted. Messages that another node has accepted while it could not know the limit are not counted
  (``Context.promised``).
- Only QoS 1 PUBLISH, QoS 2 PUBLISH and PUBREL are ever sent again, from the window, in their first order, with DUP.
- Messages to a node do not overtake each other, since that node recognises duplicates by the order of sequences.
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import QUEUE_DELETE, QUEUE_PUT, WINDOW_PUT
from starlingmq.core.delivery.forward_batch import FOR_THE_NODE, encode_forward
from starlingmq.core.groups.group_port import GroupPort
from starlingmq.core.messages.link_marks import is_link, put_on
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import RELEASED, Outgoing
from starlingmq.core.observe.audit import name_of
from starlingmq.core.observe.counters import DELAYS_MASK, NAME_CHARS_MAX
from starlingmq.core.router.router import Route
from starlingmq.core.router.stream import keep
from starlingmq.core.session.connection import HELD
from starlingmq.core.session.migration_state import Held, MigrationState
from starlingmq.core.session.packet_ids import KEYS, PUBACK_BYTE, PUBREC_BYTE, PUBREL_BYTE
from starlingmq.core.session.qos import SendWindow
from starlingmq.core.session.session import Client, Session, Subscription
from starlingmq.wire.mqtt import ack_frame, ack_run, frame_of_parts, packet_id_bytes, publish_frame, publish_parts

GROUP_WORK: Final = 4  # for the selection of a member
UNKNOWN_WORK: Final = 4  # for the answer to an acknowledgement of nothing
PUMP_BATCH: Final = 1024  # messages taken from one queue before others get their turn
# that all queues together take beyond their limits, each of 16 bytes: one may be for thousands of absent sessions
BEYOND_MAX: Final = 4_000_000
UNBOUNDED_HIGH: Final = 1000  # a queue without a limit holds back its publishers from here on
SHARED_SIZE: Final = 512  # a larger payload is not copied for each receiver: it is a frame part that all share


class Delivery:
    ctx: Context
    sharing: GroupPort  # handles the messages of groups, and of streams that are read; set after construction
    postponed: dict[Session, list[bytes]]  # they continue when storing works again; with frames for their clients
    links_postponed: list[tuple[Client, bytes]]  # frames for other nodes, sent then (see StorageFailure)

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.postponed = {}
        self.links_postponed = []

    # All receivers of a message

    def fan_out(self, message: Message, route: Route, publisher: Session | None, frame: bytes = b"") -> int:
        """Deliver a message to all receivers of its route. Returns their number. ``frame`` is the PUBLISH as received,
        if plain 3.x receivers at QoS 0 get exactly these bytes."""
        ctx = self.ctx
        frame4, frame5 = frame, b""  # QoS 0 frames for 3.x and 5: made for the first that needs one, shared by all
        audit = ctx.audit
        if audit is not None and (route.reserved or not audit.accepted(message, publisher)):
            audit = None
        acknowledged, found = message.qos != 0, len(route.subscriptions)
        for subscription in route.subscriptions:
            session = subscription.session
            client = session.client
            if (
                client is None
                or (not subscription.plain and (message.retain or not subscription.plain_from(publisher)))
                or not client.plain
                or client.blocked
                or client.size > ctx.write_buffer
            ):
                self.give(message, subscription, publisher)
                continue
            if acknowledged and subscription.qos != 0:
                if not self.transmit_shared(session, client, message, subscription.qos, found == 1):
                    self.give(message, subscription, publisher)
                continue
            if session.queue is not None and session.queue.qos0 != 0:
                self.give(message, subscription, publisher)
                continue
            if client.version == 5:
                if not frame5:
                    properties = message.properties
                    if message.expires_at != 0.0:
                        properties += message.expiry_property(ctx.now)
                    frame5 = publish_frame(message.topic, message.payload, 0, False, False, 0, 5, properties)
                whole = frame5
            else:
                if not frame4:
                    frame4 = publish_frame(message.topic, message.payload, 0, False, False, 0, 4, b"")
                whole = frame4
            client.frames.append(whole)
            client.size += len(whole)
            if audit is not None:
                audit.passed(session, message, 0)
            ctx.counters.publish_sent += 1
            if not client.dirty:
                client.dirty = True
                ctx.ready.dirty.append(client)
            if client.waiting != 0 and client.stored_from < 0:
                client.stored_from = 0
        if ctx.releasing:
            ctx.hold_frames(route.subscriptions)
        if publisher is None or publisher.node == 0:  # the node of a group has stored it already
            ctx.work -= GROUP_WORK * len(route.groups)
            for group in route.groups:
                if self.sharing.take(group, message, publisher):
                    found += 1
            if route.streams:
                found += keep(ctx, message, route.streams)
        if found == 0 and route.given_up:
            ctx.counters.drop("search_limit")
        ctx.work -= found
        return found

    def give(self, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        """Deliver a message to one session, with all options of its subscription."""
        session = subscription.session
        if session.node != 0:
            if publisher is None or publisher.node == 0:  # only the node where it entered forwards a message
                self.forward(message, subscription, publisher)
            return
        if subscription.no_local:
            client = session.client
            if client is not None and client.protocol_handler is not None:
                client.protocol_handler.deliver(client, message, subscription, publisher)
                return
            own = publisher is not None and publisher.node != 0 and message.publisher == session.client_id
            if own or session is publisher:  # own: it was held on another node from the time when its client was there
                instead = subscription.when_own
                if instead is None:
                    return  # [MQTT-3.8.3-3]
                subscription = instead
        if session.ended:
            return
        qos = message.qos if message.qos < subscription.qos else subscription.qos
        retain = message.retain and subscription.retain_as_published  # [MQTT-3.3.1-12] [MQTT-3.3.1-13]
        outgoing = Outgoing(message, qos, retain, subscription.ids, None)
        if subscription.no_local and is_link(session.client_id) and not put_on(session.client_id, outgoing):
            return
        if retain and session.client_id in self.ctx.linked:
            outgoing.qos = max(outgoing.qos, subscription.qos)  # two sites are to agree on what is retained
        moving = session.moving
        if moving is not None:
            if moving.target != 0:
                self.ctx.cluster.leave(session)
            if not self._takes(session, moving, outgoing, publisher):
                return
        if self.ctx.audit is not None:
            self.ctx.audit.due(session, message, qos)
        self.offer(session, outgoing, publisher)

    def _takes(self, session: Session, moving: MigrationState, outgoing: Outgoing, publisher: Session | None) -> bool:
        """Whether this node delivers it to a migrating session (see core.session.migration_state). A held message is
        stored, because no other node may have it."""
        node = self.ctx.node if publisher is None or publisher.node == 0 else publisher.node
        if moving.takes(node, outgoing):
            return True
        if moving.held and moving.held[-1].outgoing is outgoing:
            outgoing.promised = True  # as ``let_in`` offers it
            self.ctx.note(QUEUE_PUT, session, outgoing)
        return False

    def let_in(self, session: Session, opened: list[Held]) -> None:
        """Messages that were held for a session that migrated."""
        for held in opened:
            outgoing = held.outgoing
            self.ctx.note(QUEUE_DELETE, session, outgoing)
            if self.ctx.audit is not None:
                self.ctx.audit.due(session, outgoing.message, outgoing.qos)
            if outgoing.message.expired(self.ctx.now):
                self.drop(session, outgoing, "expired")
            elif self.barred(session, outgoing):
                self.drop(session, outgoing, "revoked")
            else:
                self.offer(session, outgoing, None, promised=True)
        if len(opened) != 0 and session.moving is not None and session.moving.target != 0:
            self.ctx.cluster.leave(session)

    def pass_on(self, session: Session, ended: bool) -> None:
        """A group member has disconnected: messages that it has not begun to receive go to other members.

        ``ended``: permanently, so that its unacknowledged QoS 1 messages are free, too. A QoS 2 message that it was
        sent stays its own [MQTT-4.8.2-5] [MQTT-4.8.2-6].
        """
        queue = session.queue
        if queue is not None and queue.shared != 0:  # the last one first: each goes before those that were given back
            passed = [outgoing for outgoing in reversed(queue.drawn()) if self.sharing.give_back(outgoing)]
            for outgoing in passed:
                self.ctx.note(QUEUE_DELETE, session, outgoing)
                if self.ctx.audit is not None:
                    self.ctx.audit.dropped(session.client_id, outgoing.message, outgoing.qos, "passed_on")
            queue.take_out(passed)
            if len(queue) == 0:
                session.queue = None
        window = session.window
        if ended and window is not None:
            for packet_id, outgoing in reversed(list(window.entries.items())):
                if outgoing.source is None:
                    continue
                if outgoing.qos == 1 or self.sharing.competes(outgoing):
                    if self.sharing.give_back(outgoing):
                        window.discard(packet_id)
                else:
                    self.sharing.settle(outgoing)

    # Another node

    def forward(self, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        """Forward a message to another node: at once if the link accepts it, else through its queue.

        It is kept until that node has stored it if a subscriber there is durable, and if it has to wait. Messages do
        not overtake each other: the receiver recognises duplicates by the order of sequences.
        """
        ctx = self.ctx
        session = subscription.session
        if session.ended:
            return
        if message.sequence == 0:
            if message.offset >= 0:  # it was held: its stored record has no sequence
                message = message.copy()
            ctx.sequence += 1
            message.sequence = ctx.sequence
            message.origin = ctx.node
        durable = subscription.durable and message.qos != 0
        self._pass_to_node(session, Outgoing(message, message.qos, message.retain, b"", None), durable, publisher)

    def forward_to_member(self, message: Message, session: Session, key: bytes, stored: bool) -> None:
        """Hand a message of the group ``key`` over to a node with members: from here on that node has it, or it waits
        for that node. It is sent beside the messages for the node's other subscribers, with a sequence of its own."""
        ctx = self.ctx
        message = message.copy()
        ctx.sequence += 1
        message.sequence = ctx.sequence
        message.origin = ctx.node
        self._pass_to_node(session, Outgoing(message, message.qos, message.retain, key, None), stored, None)

    def send_to_node(self, session: Session, payload: bytes, qos: int = 1) -> None:
        """A message for the node itself (see cluster.takeover.takeover), in order with its other messages, and as
        reliable. At ``qos`` 0 it is lost with the connection, and while there is none."""
        ctx = self.ctx
        ctx.sequence += 1
        message = Message(b"$node", payload, qos, False, b"", 0.0, "", ctx.now)
        message.sequence = ctx.sequence
        message.origin = ctx.node
        self._pass_to_node(session, Outgoing(message, qos, False, FOR_THE_NODE, None), qos != 0, None)

    def _pass_to_node(self, session: Session, outgoing: Outgoing, durable: bool, publisher: Session | None) -> None:
        ctx = self.ctx
        message = outgoing.message
        if ctx.audit is not None:
            ctx.audit.due(session, message, message.qos)
        client = session.client
        queue = session.queue
        if client is None:
            if message.qos == 0:
                self.drop(session, outgoing, "peer_unreachable")
            else:
                self.enqueue(session, outgoing, publisher)
            return
        window = session.window
        if (
            client.blocked
            or ctx.refusing
            or self.links_postponed
            or client.size > ctx.write_buffer
            or (queue is not None and len(queue) != 0)
            or (window is not None and window.full())
        ):
            if message.qos == 0 and not durable and queue is not None and queue.bytes > ctx.max_queue_bytes:
                self.drop(session, outgoing, "slow_peer_qos0")
            else:
                self.enqueue(session, outgoing, publisher)
                # the latter are sent after refused frames have been answered
                if ctx.refusing or self.links_postponed:
                    self.wait(session)
        elif durable and ctx.recording:
            self.transmit_acknowledged(session, client, self.window(session, client), outgoing)
        else:
            self.transmit(client, outgoing, 0, False)

    # One receiver: a client, or another node

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
            queue = session.queue = ctx.new_queue(session)
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
                self.give_up(session, gone, "expired" if gone.message.expired(ctx.now) else "queue_full")
                if not gone.message.topic:  # only the disk has it: that of the message that takes its place
                    ctx.counters.dropped_about(session.client_id[:NAME_CHARS_MAX], outgoing.message.topic)
        if publisher is not None and ctx.may_hold(session) and len(queue) >= self.high_mark():
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
        if session.stalled or client is None or ctx.hold_seconds == 0.0 or ctx.holds_nobody(session.client_id):
            return
        if receiver is None:
            if not session.is_group_queue and session.client_id not in ctx.bridge_holds:
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
        if session.shares is not None or session.reads is not None:
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

    # Acknowledgements, one at a time

    def puback(self, session: Session, packet_id: int, reason: int = 0) -> None:
        window = session.window
        outgoing = None if window is None else window.acknowledged(packet_id)
        if outgoing is not None:  # else it is late or repeated, and changes nothing
            self.forget(session, packet_id, outgoing, reason >= 0x80)

    def pubrec(self, session: Session, client: Client, packet_id: int, reason: int) -> None:
        ctx = self.ctx
        window = session.window
        if reason >= 0x80:
            refused = None if window is None else window.refused(packet_id)
            if refused is not None:
                self.forget(session, packet_id, refused, True)
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

    def forget(self, session: Session, packet_id: int, outgoing: Outgoing, refused: bool = False) -> None:
        """A packet id is free again: record it, and let the queue advance."""
        if outgoing.ticket != 0:
            self.sharing.settle(outgoing, refused)
        if len(outgoing.message.id) != 0 and self.ctx.audit is not None:
            self.ctx.audit.acknowledged(session.client_id, outgoing)
        if self.ctx.recording and session.expiry != 0:
            self.ctx.done(session, packet_id)
        if session.window is not None:
            session.window.credit(1, self.ctx.now - outgoing.sent_at)
        self.go_on(session)

    def unknown_packet_id(self, client: Client, first: int, packet_id: int) -> None:
        """PUBREL or PUBCOMP for an unknown packet id: with 0x92 in MQTT 5, without a code in 3.x, which has none."""
        self.ctx.work -= UNKNOWN_WORK
        frame = ack_frame(first, packet_id)
        if client.version == 5:
            frame = bytes((first, 3)) + packet_id_bytes(packet_id) + b"\x92"
        self.ctx.send(client, frame)

    # Retransmission

    def resume(self, session: Session, client: Client) -> None:
        """After a reconnection: all unacknowledged messages in their first order, then the queue [MQTT-4.4.0-1]."""
        if session.shares is not None or session.reads is not None:
            self.sharing.session_connected(session)
        window = session.window
        if window is not None:
            window.begin(client.window_limit, client.window_grows)
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

    # Acknowledgements in runs, as clients that take many messages send them. Whatever is unusual (an id that is not in
    # flight, a reason code, a group's message, one sent again) goes through ``puback`` and its like.

    def acknowledged(self, session: Session, client: Client, first: int, data: bytes, pos: int, end: int) -> int:
        """Handle a run of acknowledgements with this first byte, which begins at ``pos`` and may go on up to ``end``.
        The position after it: ``pos`` if already the first one has to go the long way."""
        window = session.window
        if window is None or window.owed:
            return pos
        if first == PUBREC_BYTE:
            return self._released(session, client, window, data, pos, end)
        return self._finished(session, window, first, data, pos, end)

    def _finished(self, session: Session, window: SendWindow, first: int, data: bytes, pos: int, end: int) -> int:
        """PUBACK or PUBCOMP: the messages leave the window."""
        ctx = self.ctx
        keyed = window.keyed
        recorded = ctx.recording and session.expiry != 0
        size, sent_at = 0, 0.0
        begin = pos
        while pos + 4 <= end and data[pos] == first and data[pos + 1] == 2:
            block = KEYS[data[pos + 2]]
            if not block:
                break
            key = block[data[pos + 3]]
            outgoing = keyed.get(key)
            if outgoing is None or outgoing.ticket != 0:
                break
            if outgoing.qos != 1 if first == PUBACK_BYTE else outgoing.stage != RELEASED:
                break
            if len(outgoing.message.id) != 0 and ctx.audit is not None:
                break
            del keyed[key]
            size += outgoing.message.octets
            sent_at = outgoing.sent_at
            if recorded:
                ctx.done(session, outgoing.packet_id)
            pos += 4
        if pos != begin:
            window.bytes -= size
            window.credit((pos - begin) // 4, ctx.now - sent_at)
            if session.queue is not None or session.shares is not None or session.reads is not None:
                self.go_on(session)
        return pos

    def _released(self, session: Session, client: Client, window: SendWindow, data: bytes, pos: int, end: int) -> int:
        """PUBREC: the messages stay in the window until PUBCOMP; the PUBRELs are one frame."""
        if client.max_packet != 0:
            return pos
        ctx = self.ctx
        keyed = window.keyed
        recorded = ctx.recording and session.expiry != 0
        now = ctx.now
        begin = pos
        while pos + 4 <= end and data[pos] == PUBREC_BYTE and data[pos + 1] == 2:
            block = KEYS[data[pos + 2]]
            if not block:
                break
            outgoing = keyed.get(block[data[pos + 3]])
            if outgoing is None or outgoing.qos != 2:
                break
            outgoing.stage = RELEASED
            outgoing.sent_at = now
            if recorded:
                ctx.ready.deliver(WINDOW_PUT, session, outgoing)
            pos += 4
        if pos != begin:
            released = ack_run(PUBREL_BYTE, data, begin, pos)
            if recorded:
                ctx.send_stored(client, released)
            else:
                ctx.send(client, released)
        return pos

    # From a message to the frames of one connection

    def window(self, session: Session, client: Client) -> SendWindow:
        window = session.window
        if window is None:
            window = session.window = SendWindow(client.window_limit, self.ctx.max_queue_bytes, client.window_grows)
        return window

    def transmit_acknowledged(self, session: Session, client: Client, window: SendWindow, outgoing: Outgoing) -> None:
        """Move a QoS 1 or 2 message into the window and send it."""
        ctx = self.ctx
        packet_id = window.add(outgoing, ctx.now)
        if ctx.recording and session.expiry != 0 and (outgoing.ticket == 0 or outgoing.qos == 2):
            ctx.ready.deliver(WINDOW_PUT, session, outgoing)
            if client.stored_from < 0 and not ctx.refusing:  # then it is QoS 1, which may arrive twice
                client.stored_from = len(client.frames)
        if not self.transmit(client, outgoing, packet_id, False):
            self.take_out(session, window, packet_id)
            return
        if client.version != 5 and ctx.retry_interval != 0.0:
            ctx.arm(session, ctx.now + ctx.retry_interval)

    def transmit_shared(self, session: Session, client: Client, message: Message, qos: int, alone: bool) -> bool:
        """Send a message at QoS 1 or 2 as every plain receiver gets it; False when this one does not take it now, or
        gets it in another form. ``qos`` is that of the subscription; ``alone``: there is no other receiver.

        The same as ``offer``, ``transmit_acknowledged`` and ``transmit`` for the common case, asked in one place."""
        ctx = self.ctx
        window = session.window
        version5 = client.version == 5
        if (
            window is None
            or session.queue is not None
            or session.ended
            or session.moving is not None
            or session.node != 0
            or ctx.refusing
            or (version5 and message.expires_at != 0.0)
            or window.full()
        ):
            return False
        if message.qos < qos:
            qos = message.qos
        now = ctx.now
        outgoing = Outgoing(message, qos, False, b"", None)
        packet_id = window.add(outgoing, now)
        if ctx.recording and session.expiry != 0:
            ctx.ready.deliver(WINDOW_PUT, session, outgoing)
            if client.stored_from < 0:
                client.stored_from = len(client.frames)
        elif client.waiting != 0 and client.stored_from < 0:
            client.stored_from = 0
        self._put_shared(client, message, qos, packet_id, alone)
        if ctx.audit is not None and len(message.id) != 0:
            ctx.audit.passed(session, message, qos)
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        counters = ctx.counters
        counters.publish_sent += 1
        if counters.publish_sent & DELAYS_MASK == 0:
            counters.delays.add(now - message.published_at)
        if qos == 1:
            counters.sent_qos1 += 1
        else:
            counters.sent_qos2 += 1
        if not version5 and ctx.retry_interval != 0.0:
            retry_at = now + ctx.retry_interval
            if session.armed_at == 0.0 or retry_at < session.armed_at:
                ctx.arm(session, retry_at)
        return True

    def _put_shared(self, client: Client, message: Message, qos: int, packet_id: int, alone: bool) -> None:
        """The PUBLISH for one of the receivers: in one frame, or a large one in parts that all of them share."""
        version = client.version
        if alone and len(message.payload) < SHARED_SIZE:
            frame = publish_frame(
                message.topic, message.payload, qos, False, False, packet_id, version, message.properties
            )
        else:
            shape = qos if version != 5 else qos + 4
            if message.shape != shape:
                message.head, message.tail = publish_parts(
                    message.topic, message.payload, qos, False, version, message.properties
                )
                message.shape = shape
            head = message.head
            tail = message.tail
            if len(tail) >= SHARED_SIZE:
                client.frames.append(head)
                client.frames.append(packet_id_bytes(packet_id))
                client.frames.append(tail)
                client.size += len(head) + 2 + len(tail)
                return
            frame = frame_of_parts(head, packet_id, tail)
        client.frames.append(frame)
        client.size += len(frame)

    def transmit(self, client: Client, outgoing: Outgoing, packet_id: int, dup: bool) -> bool:
        """Write a PUBLISH; False if the client does not accept one of this size [MQTT-3.1.2-24]."""
        if client.link:
            self._transmit_to_node(client, outgoing, packet_id)
            return True
        ctx = self.ctx
        message = outgoing.message
        if (
            client.plain
            and not dup
            and outgoing.qos != 0
            and (client.version != 5 or (len(outgoing.ids) == 0 and message.expires_at == 0.0))
        ):
            shape = outgoing.qos if client.version != 5 else outgoing.qos + 4
            if outgoing.retain:
                shape += 8
            if message.shape != shape:
                message.head, message.tail = publish_parts(
                    message.topic, message.payload, outgoing.qos, outgoing.retain, client.version, message.properties
                )
                message.shape = shape
            client.frames.append(message.head)
            client.frames.append(packet_id_bytes(packet_id))
            client.frames.append(message.tail)
            client.size += len(message.head) + 2 + len(message.tail)
        else:
            frame = self.frame(client, outgoing, packet_id, dup)
            if client.max_packet != 0 and len(frame) > client.max_packet:
                self.give_up(cast(Session, client.session), outgoing, "packet_too_large")
                return False
            client.frames.append(frame)
            client.size += len(frame)
        if (client.waiting != 0 or ctx.releasing) and client.stored_from < 0:  # also members of groups
            client.stored_from = 0
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        ctx.counters.publish_sent += 1
        if ctx.counters.publish_sent & DELAYS_MASK == 0 and not dup and not outgoing.retain:
            ctx.counters.delays.add(ctx.now - message.published_at)
        if outgoing.qos == 1:
            ctx.counters.sent_qos1 += 1
        elif outgoing.qos == 2:
            ctx.counters.sent_qos2 += 1
        if len(message.id) != 0 and ctx.audit is not None:
            ctx.audit.delivered(client.client_id, message, outgoing.qos, dup)
        return True

    def _transmit_to_node(self, client: Client, outgoing: Outgoing, packet_id: int) -> None:
        ctx = self.ctx
        frame = encode_forward(outgoing.message, outgoing.ids, packet_id != 0, ctx.now)
        # QoS 2, too, only when its cause is stored; otherwise a restart would route it again, with another sequence.
        if client.stored_from < 0 and (client.waiting != 0 or (outgoing.qos == 2 and ctx.recording)):
            client.stored_from = len(client.frames)
        client.frames.append(frame)
        client.size += len(frame)
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        ctx.counters.forwards_sent += 1

    def frame(self, client: Client, outgoing: Outgoing, packet_id: int, dup: bool) -> bytes:
        message = outgoing.message
        topic = message.topic
        if client.version != 5:
            return publish_frame(topic, message.payload, outgoing.qos, outgoing.retain, dup, packet_id, 4, b"")
        properties = message.properties
        if message.expires_at != 0.0:
            properties += message.expiry_property(self.ctx.now)
        properties += outgoing.ids
        aliases = client.aliases_out
        if client.alias_out_limit != 0 and not dup:
            if aliases is None:
                aliases = client.aliases_out = {}
            alias = aliases.get(topic, 0)
            if alias != 0:
                topic = b""
            elif len(aliases) < client.alias_out_limit:
                alias = len(aliases) + 1
                # A frame over the client's limit is not sent, so it must not be the one that sets an alias.
                if client.max_packet == 0 or message.size() + len(properties) + 32 <= client.max_packet:
                    aliases[topic] = alias
                else:
                    alias = 0
            if alias != 0:
                properties += b"\x23" + packet_id_bytes(alias)
        return publish_frame(topic, message.payload, outgoing.qos, outgoing.retain, dup, packet_id, 5, properties)

    def give_up(self, session: Session, outgoing: Outgoing, reason: str) -> None:
        self.drop(session, outgoing, reason)
        self.ctx.note(QUEUE_DELETE, session, outgoing)
        if outgoing.ticket != 0:
            self.sharing.settle(outgoing, True)

    def drop(self, session: Session, outgoing: Outgoing, reason: str) -> None:
        self.ctx.drop(reason, session.client_id, 1, outgoing.message.topic)
        session.dropped += 1
        if outgoing.retain:
            self.ctx.owe_link(session.client_id, reason)
        if self.ctx.audit is not None:
            self.ctx.audit.dropped(name_of(session), outgoing.message, outgoing.qos, reason)

    def take_out(self, session: Session, window: SendWindow, packet_id: int) -> None:
        """Remove a message that this client will never accept because of its size from the window."""
        outgoing = window.entries.get(packet_id)
        if outgoing is not None and outgoing.ticket != 0:
            self.sharing.settle(outgoing, True)
        window.discard(packet_id)
        if self.ctx.recording and session.expiry != 0:
            self.ctx.done(session, packet_id)
