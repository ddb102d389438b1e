"""From a message to the connections of its receivers: now, through the window, or by way of the queue.

The laws:

- At one QoS a session gets messages in the order in which they were published: what comes while others of its kind
  are queued is queued behind them.
- A queue or a slow reader never makes memory grow past its bound. Past half the bound the publishers are held back
  (``publisher_hold`` seconds at most); past the bound expired messages go, then the oldest, each one counted.
- Only QoS 1 PUBLISH, QoS 2 PUBLISH and PUBREL are ever sent again, from the window, in their first order, with DUP.
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.core.connection import HELD
from starlingmq.core.context import Context
from starlingmq.core.groups.group_port import GroupPort
from starlingmq.core.message import Message
from starlingmq.core.observe.audit import name_of
from starlingmq.core.observe.counters import DELAYS_MASK
from starlingmq.core.ready import QUEUE_DELETE, QUEUE_PUT, STREAM_PUT, WINDOW_PUT
from starlingmq.core.routing.forward_batch import FOR_THE_NODE, encode_forward
from starlingmq.core.routing.router import Route
from starlingmq.core.routing.stream import Stream
from starlingmq.core.session.migration_state import Held, MigrationState
from starlingmq.core.session.outgoing import RELEASED, Outgoing
from starlingmq.core.session.qos import SendWindow
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import Client, Session, Subscription
from starlingmq.wire.mqtt import ack_frame, packet_id_bytes, publish_frame, publish_parts

PUMP_BATCH: Final = 1024  # messages taken from one queue before others get their turn
UNBOUNDED_HIGH: Final = 1000  # a queue without a bound holds its publishers back from here on


def expiry_property(message: Message, now: float) -> bytes:
    """Message Expiry Interval with what is left of it, in whole seconds [MQTT-3.3.2-6]."""
    left = max(0, int(message.expires_at - now + 0.999))
    return bytes((2, left >> 24 & 255, left >> 16 & 255, left >> 8 & 255, left & 255))


def _unadorned(outgoing: Outgoing) -> bool:
    """Whether an MQTT 5 receiver gets nothing but the properties that every other gets too."""
    return len(outgoing.ids) == 0 and outgoing.message.expires_at == 0.0


class Delivery:
    ctx: Context
    sharing: GroupPort  # looks after the messages of groups; it is set once it is there
    postponed: dict[Session, list[bytes]]  # go on when storing works again; frames their clients get then
    links_postponed: list[tuple[Client, bytes]]  # what other nodes get then (see core.limits.storage_failure)

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.postponed = {}
        self.links_postponed = []

    def fan_out(self, message: Message, route: Route, publisher: Session | None) -> int:
        """Give a message to everyone on its route; how many receivers it found."""
        ctx = self.ctx
        frame4 = b""  # QoS 0 frames for 3.x and for 5, made when the first receiver needs one, shared by all
        frame5 = b""
        audited = ctx.audit is not None and not route.reserved
        if ctx.audit is not None and audited:
            audited = ctx.audit.accepted(message, publisher)
        for subscription in route.subscriptions:
            session = subscription.session
            client = session.client
            if (
                client is None
                or audited
                or not subscription.plain
                or not client.plain
                or (message.qos != 0 and subscription.qos != 0)
                or client.blocked
                or client.size > ctx.write_buffer
                or (session.queue is not None and session.queue.qos0 != 0)
            ):
                self.give(message, subscription, publisher)
                continue
            if client.version == 5:
                if not frame5:
                    properties = message.properties
                    if message.expires_at != 0.0:
                        properties += expiry_property(message, ctx.now)
                    frame5 = publish_frame(message.topic, message.payload, 0, False, False, 0, 5, properties)
                frame = frame5
            else:
                if not frame4:
                    frame4 = publish_frame(message.topic, message.payload, 0, False, False, 0, 4, b"")
                frame = frame4
            client.frames.append(frame)
            client.size += len(frame)
            ctx.counters.publish_sent += 1
            if not client.dirty:
                client.dirty = True
                ctx.ready.dirty.append(client)
            if client.waiting != 0 and client.stored_from < 0:
                client.stored_from = 0
        found = len(route.subscriptions)
        if publisher is None or publisher.node == 0:  # of a group it has kept it there
            for group in route.groups:
                if self.sharing.take(group, message, publisher):
                    found += 1
            if route.streams:
                found += self.keep(message, route.streams)
        ctx.work -= found
        return found

    def keep(self, message: Message, streams: list[Stream]) -> int:
        """Put a message that enters here into the streams that want it; how many took it. At QoS 1 and 2 all do: they
        were asked whether they are full before the message was accepted."""
        ctx = self.ctx
        kept = 0
        for stream in streams:
            if message.qos == 0 and (stream.full or ctx.refusing):
                ctx.drop("stream_full" if stream.full else "storage_failing", stream.client_id)
                stream.dropped += 1
                continue
            kept += 1
            ctx.note(STREAM_PUT, stream, Outgoing(message, message.qos, message.retain, b"", None))
        return kept

    def give(self, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        """Give a message to one session, with every option of its subscription."""
        session = subscription.session
        if session.node != 0:
            if publisher is None or publisher.node == 0:  # only the node where it entered passes a message on
                self.forward(message, subscription, publisher)
            return
        if subscription.no_local:
            client = session.client
            if client is not None and client.dialect is not None:
                client.dialect.deliver(client, message, subscription, publisher)
                return
            own = publisher is not None and publisher.node != 0 and message.publisher == session.client_id
            if own or session is publisher:  # own: held at another node since its client was there
                instead = subscription.when_own
                if instead is None:
                    return  # [MQTT-3.8.3-3]
                subscription = instead
        if session.ended:
            return
        qos = message.qos if message.qos < subscription.qos else subscription.qos
        retain = message.retain and subscription.retain_as_published  # [MQTT-3.3.1-12] [MQTT-3.3.1-13]
        outgoing = Outgoing(message, qos, retain, subscription.ids, None)
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
        """Whether this node is the one to give it to a session that moves (see core.session.migration_state). What is
        held is stored: perhaps nobody else has it."""
        node = self.ctx.node if publisher is None or publisher.node == 0 else publisher.node
        if moving.takes(node, outgoing):
            return True
        if moving.held and moving.held[-1].outgoing is outgoing:
            self.ctx.note(QUEUE_PUT, session, outgoing)
        return False

    def let_in(self, session: Session, opened: list[Held]) -> None:
        """What a session that moved was not to get before."""
        for held in opened:
            outgoing = held.outgoing
            self.ctx.note(QUEUE_DELETE, session, outgoing)
            if self.ctx.audit is not None:
                self.ctx.audit.due(session, outgoing.message, outgoing.qos)
            if outgoing.message.expired(self.ctx.now):
                self._drop(session, outgoing, "expired")
            elif self.barred(session, outgoing):
                self._drop(session, outgoing, "revoked")
            else:
                self.offer(session, outgoing, None)
        if len(opened) != 0 and session.moving is not None and session.moving.target != 0:
            self.ctx.cluster.leave(session)

    def barred(self, session: Session, outgoing: Outgoing) -> bool:
        """Whether a client that is there may not have any more what has waited for it. To be asked where the rules are
        not those by which it was let in. What was drawn from a group has gone to other members then."""
        client = session.client
        if client is None or client.rights is None or client.link or outgoing.source is not None:
            return False
        return not client.rights.may_receive(outgoing.message.topic)

    def nothing_waits(self, session: Session) -> None:
        """What comes now is let in by subscriptions that its client may have."""
        if session.window is None or not session.window.owed:
            session.rules = self.ctx.rules

    def offer(self, session: Session, outgoing: Outgoing, publisher: Session | None) -> None:
        """Send at once if the client can take it, else queue, else drop."""
        client = session.client
        queue = session.queue
        if client is None:
            if outgoing.qos == 0 and not self.ctx.store_qos0:
                self.give_up(session, outgoing, "offline_qos0")
            else:
                self.enqueue(session, outgoing, publisher)
            return
        ready = not client.blocked and client.size <= self.ctx.write_buffer
        if outgoing.qos == 0:
            if ready and (queue is None or queue.qos0 == 0):
                self.transmit(client, outgoing, 0, False)
            elif self.ctx.store_qos0:
                self.enqueue(session, outgoing, publisher)
            else:
                self.give_up(session, outgoing, "slow_receiver_qos0")
            return
        window = self.window(session, client)
        if ready and (queue is None or len(queue) == 0) and not window.full() and not self.waits(session, outgoing):
            self.transmit_acknowledged(session, client, window, outgoing)
        else:
            self.enqueue(session, outgoing, publisher)

    def waits(self, session: Session, outgoing: Outgoing) -> bool:
        """Whether a message has to wait until storing works again: at QoS 2 it comes once, also if the broker dies."""
        if not self.ctx.refusing or outgoing.qos != 2 or session.expiry == 0:
            return False
        self.wait(session)
        return True

    def wait(self, session: Session) -> list[bytes]:
        """Have a session go on when storing works again; frames for its client to get then can be added."""
        frames = self.postponed.get(session)
        if frames is None:
            frames = self.postponed[session] = []
        return frames

    # Other nodes

    def forward(self, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        """Pass a message on to another node: at once if the link takes it, else through its queue.

        It is kept until that node has stored it if somebody there wants it durably, and if it has to wait. Nothing
        overtakes anything on its way: the receiver tells what it has seen by the order of sequences.
        """
        ctx = self.ctx
        session = subscription.session
        if session.ended:
            return
        if message.sequence == 0:
            if message.offset >= 0:  # it was held: what is stored of it has no sequence, and would be sent without
                message = message.copy()
            ctx.sequence += 1
            message.sequence = ctx.sequence
            message.origin = ctx.node
        durable = subscription.durable and message.qos != 0
        self._pass_to_node(session, Outgoing(message, message.qos, message.retain, b"", None), durable, publisher)

    def forward_to_member(self, message: Message, session: Session, key: bytes, stored: bool) -> None:
        """Hand a message of the group ``key`` over to a node with members: from here on it is that node's, or waits for
        it. It goes beside what the node's other subscribers get, with a sequence of its own."""
        ctx = self.ctx
        message = message.copy()
        ctx.sequence += 1
        message.sequence = ctx.sequence
        message.origin = ctx.node
        self._pass_to_node(session, Outgoing(message, message.qos, message.retain, key, None), stored, None)

    def tell(self, session: Session, payload: bytes) -> None:
        """Something for the node itself (see cluster.takeover.takeover), in order with its messages and as surely."""
        ctx = self.ctx
        ctx.sequence += 1
        message = Message(b"$node", payload, 1, False, b"", 0.0, "", ctx.now)
        message.sequence = ctx.sequence
        message.origin = ctx.node
        self._pass_to_node(session, Outgoing(message, 1, False, FOR_THE_NODE, None), True, None)

    def _pass_to_node(self, session: Session, outgoing: Outgoing, durable: bool, publisher: Session | None) -> None:
        ctx = self.ctx
        message = outgoing.message
        if ctx.audit is not None:
            ctx.audit.due(session, message, message.qos)
        client = session.client
        queue = session.queue
        if client is None:
            if message.qos == 0:
                self._drop(session, outgoing, "peer_unreachable")
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
                self._drop(session, outgoing, "slow_peer_qos0")
            else:
                self.enqueue(session, outgoing, publisher)
                if ctx.refusing or self.links_postponed:  # the latter go when what was refused was told
                    self.wait(session)
        elif durable and ctx.recording:
            self.transmit_acknowledged(session, client, self.window(session, client), outgoing)
        else:
            self.transmit(client, outgoing, 0, False)

    def _transmit_forward(self, client: Client, outgoing: Outgoing, packet_id: int) -> None:
        ctx = self.ctx
        frame = encode_forward(outgoing.message, outgoing.ids, packet_id != 0, ctx.now)
        # QoS 2 too only once what led to it is stored: or a restart would route it again, with another sequence.
        if client.stored_from < 0 and (client.waiting != 0 or (outgoing.qos == 2 and ctx.recording)):
            client.stored_from = len(client.frames)
        client.frames.append(frame)
        client.size += len(frame)
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        ctx.counters.forwards_sent += 1

    def window(self, session: Session, client: Client) -> SendWindow:
        window = session.window
        if window is None:
            window = session.window = SendWindow(client.window_limit, self.ctx.max_queue_bytes)
        return window

    def transmit_acknowledged(self, session: Session, client: Client, window: SendWindow, outgoing: Outgoing) -> None:
        """Move a QoS 1 or 2 message into the window and send it."""
        ctx = self.ctx
        packet_id = window.add(outgoing, ctx.now)
        if ctx.recording and session.expiry != 0:
            ctx.ready.deliver(WINDOW_PUT, session, outgoing)
            if client.stored_from < 0 and not ctx.refusing:  # then it is QoS 1, which may come twice
                client.stored_from = len(client.frames)
        if not self.transmit(client, outgoing, packet_id, False):
            self._take_out(session, window, packet_id)
            return
        if client.version != 5 and ctx.retry_interval != 0.0:
            ctx.arm(session, ctx.now + ctx.retry_interval)

    def transmit(self, client: Client, outgoing: Outgoing, packet_id: int, dup: bool) -> bool:
        """Write a PUBLISH; False when the client will not take one of this size [MQTT-3.1.2-24]."""
        if client.link:
            self._transmit_forward(client, outgoing, packet_id)
            return True
        ctx = self.ctx
        message = outgoing.message
        if client.plain and not dup and outgoing.qos != 0 and (client.version != 5 or _unadorned(outgoing)):
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
        if client.waiting != 0 and client.stored_from < 0:
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

    def frame(self, client: Client, outgoing: Outgoing, packet_id: int, dup: bool) -> bytes:
        message = outgoing.message
        topic = message.topic
        if client.version != 5:
            return publish_frame(topic, message.payload, outgoing.qos, outgoing.retain, dup, packet_id, 4, b"")
        properties = message.properties
        if message.expires_at != 0.0:
            properties += expiry_property(message, self.ctx.now)
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

    # The queue

    def enqueue(self, session: Session, outgoing: Outgoing, publisher: Session | None) -> None:
        ctx = self.ctx
        if ctx.refusing and outgoing.qos == 0 and session.expiry != 0:
            self._drop(session, outgoing, "storage_failing")  # what waits for the disk must not grow for ever
            return
        queue = session.queue
        if queue is None:
            if session.node != 0:
                queue = session.queue = MessageQueue(0, 0)  # what is accepted for another node is not dropped
            else:
                queue = session.queue = MessageQueue(ctx.max_queue, ctx.max_queue_bytes)
        if ctx.recording and session.expiry != 0:
            ctx.ready.deliver(QUEUE_PUT, session, outgoing)
            ctx.spill(session)
        ctx.counters.messages_queued += 1
        dropped = queue.push(outgoing, ctx.now)
        if dropped is not None:
            for gone in dropped:
                if gone.message.expired(ctx.now):
                    self.give_up(session, gone, "expired")
                else:
                    self.give_up(session, gone, "queue_full")
        if session.client is not None and len(queue) >= self.high_mark() and publisher is not None:
            self.hold(session, publisher)

    def high_mark(self) -> int:
        """Queue length from which on publishers are held back."""
        bound = self.ctx.max_queue
        return UNBOUNDED_HIGH if bound == 0 else (bound + 1) // 2

    def hold(self, session: Session, publisher: Session) -> None:
        """Do not read a publisher until this queue has drained, or has had its time to.

        A receiver that is held itself can not acknowledge anything: nobody is held for it, least of all itself. The
        time of every slow receiver runs at once, or a publisher to many of them would be held by one after the other.
        """
        ctx = self.ctx
        client = publisher.client
        receiver = session.client
        if session.stalled or client is None or ctx.hold_seconds == 0.0:
            return
        if receiver is None:
            if not session.is_line:
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
        """The client takes more: first what is to be sent again, then the queue."""
        window = session.window
        if window is not None and window.owed and session.client is not None:
            self._send_owed(session, session.client, window)
        if session.queue is not None and not session.is_line:
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
        if client.link and (ctx.refusing or self.links_postponed):
            self.wait(session)
            return
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
            client.dirty = True  # nothing but expired messages so far: ``sent`` is to go on with the rest
            ctx.ready.dirty.append(client)

    def retire(self, session: Session, offset: int, limit: int) -> bool:
        """Give up what waits for a session and is kept below ``offset``; whether there may be more of it."""
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

    def give_up(self, session: Session, outgoing: Outgoing, reason: str) -> None:
        self._drop(session, outgoing, reason)
        self.ctx.note(QUEUE_DELETE, session, outgoing)
        if outgoing.ticket != 0:
            self.sharing.settle(outgoing)

    def _drop(self, session: Session, outgoing: Outgoing, reason: str) -> None:
        self.ctx.drop(reason, session.client_id)
        session.dropped += 1
        if self.ctx.audit is not None:
            self.ctx.audit.dropped(name_of(session), outgoing.message, outgoing.qos, reason)

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
        """An id is free again: note it, and let the queue move up."""
        if outgoing.ticket != 0:
            self.sharing.settle(outgoing)
        if len(outgoing.message.id) != 0 and self.ctx.audit is not None:
            self.ctx.audit.acknowledged(session.client_id, outgoing)
        if self.ctx.recording and session.expiry != 0:
            self.ctx.done(session, packet_id)
        self.go_on(session)

    def unknown_packet_id(self, client: Client, first: int, packet_id: int) -> None:
        """PUBREL or PUBCOMP for an id nobody knows: 0x92 in MQTT 5; 3.x has no code for it, the bare packet must do."""
        frame = ack_frame(first, packet_id)
        if client.version == 5:
            frame = bytes((first, 3)) + packet_id_bytes(packet_id) + b"\x92"
        self.ctx.send(client, frame)

    # Sending again

    def resume(self, session: Session, client: Client) -> None:
        """After a reconnection: everything unacknowledged in its first order, then the queue [MQTT-4.4.0-1]."""
        if session.shares is not None:
            self.sharing.come(session)
        window = session.window
        if window is not None:
            window.limit = client.window_limit
            window.owe_all()
            self._send_owed(session, client, window)
            if client.version != 5 and window.entries and self.ctx.retry_interval != 0.0:
                self.ctx.arm(session, self.ctx.now + self.ctx.retry_interval)
        self.pump(session)

    def _send_owed(self, session: Session, client: Client, window: SendWindow) -> None:
        """Send again what the client takes now: what its write buffer, and its Receive Maximum, which may be smaller
        than last time, have room for."""
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
            # At QoS 2 the handshake goes on: its receiver may take another message of this id for the same one.
            if outgoing.qos == 1 and session.rules != self.ctx.rules and self.barred(session, outgoing):
                self._drop(session, outgoing, "revoked")
                self._take_out(session, window, packet_id)
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
            self._take_out(session, window, packet_id)

    def _take_out(self, session: Session, window: SendWindow, packet_id: int) -> None:
        """What this client will never take because of its size leaves the window."""
        outgoing = window.entries.get(packet_id)
        if outgoing is not None and outgoing.ticket != 0:
            self.sharing.settle(outgoing)
        window.discard(packet_id)
        if self.ctx.recording and session.expiry != 0:
            self.ctx.done(session, packet_id)

    def lose(self, session: Session, packet_id: int) -> None:
        """A message that is to be sent again can not be read back any more."""
        window = session.window
        if window is not None:
            self.ctx.drop("lost_in_storage", session.client_id)
            session.dropped += 1
            self._take_out(session, window, packet_id)

    # Shared groups

    def pass_on(self, session: Session, ended: bool) -> None:
        """A group member went away: what it has not begun to receive goes to other members.

        ``ended``: for good, so that its unacknowledged QoS 1 messages are free too. A QoS 2 message it has been sent
        is nobody else's [MQTT-4.8.2-5] [MQTT-4.8.2-6].
        """
        queue = session.queue
        if queue is not None and queue.shared != 0:  # the last first: each goes before those that were given back
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
                if outgoing.qos == 1:
                    if self.sharing.give_back(outgoing):
                        window.discard(packet_id)
                else:
                    self.sharing.settle(outgoing)
