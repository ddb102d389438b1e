"""What clients publish: PUBLISH and PUBREL in, acknowledgements out, messages on to their receivers.

The acknowledgement is put into its lane after the message went its way, so that the writes it stands for are in the
same turn before it. A QoS 2 message goes its way at PUBREL, not at PUBLISH: a handshake that is abandoned and begun
again elsewhere can then not deliver twice.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connection import ASKING, WORKING
from starlingmq.core.context import ISOLATED, Context
from starlingmq.core.groups.group_engine import GroupEngine
from starlingmq.core.limits.publish_admission import ADMITTED, COUNTED, MEMORY, POSTPONED, RESERVED, STREAM_FULL, admit
from starlingmq.core.limits.publish_admission import ISOLATED as ISOLATED_VERDICT
from starlingmq.core.message import Message
from starlingmq.core.mqtt.bridges import tells_state
from starlingmq.core.mqtt.unknown_pubrel import UnknownPubrels
from starlingmq.core.ready import (
    FACT_DELETE,
    FACT_PUT,
    INBOUND_COMPLETED,
    INBOUND_PUT,
    RETAINED_DELETE,
    RETAINED_PUT,
    HookAnswer,
    HookQuestion,
    Write,
)
from starlingmq.core.ready import PUBLISH as ASK_PUBLISH
from starlingmq.core.routing.delivery import Delivery
from starlingmq.core.routing.retained_outbox import DELETED_FACT, REPLICA
from starlingmq.core.routing.retained_store import RetainedTree
from starlingmq.core.routing.router import Router
from starlingmq.core.session.producers import Producers
from starlingmq.core.session.production import AGAIN, NEW, OTHER, Production
from starlingmq.core.session.qos import Inbound, Parking
from starlingmq.core.session.remote_qos2 import CANCELLED, COMPLETED, TIMED_OUT
from starlingmq.core.session.session import GROUP_PREFIX, Client, Session
from starlingmq.core.session.trail import Backlog
from starlingmq.core.timers import TimerWheel
from starlingmq.wire.mqtt import Publish, ack_frame, decode_publish, packet_id_bytes
from starlingmq.wire.reasons import MqttError, ProtocolError, Reason

HEARD_FACT: Final = b"heard/"
"""And a node's number: a fact, the sequence of the last message from there of which nothing else is kept."""


class Publishing:
    ctx: Context
    router: Router
    delivery: Delivery
    groups: GroupEngine
    retained: RetainedTree
    producers: Producers
    unknown_pubrels: UnknownPubrels
    retained_wheel: TimerWheel  # retained messages that expire
    postponed: list[tuple[Client, Message | None, int]]  # until all routes are here: at most one of each connection
    _asked: dict[HookQuestion, int]  # packet id of the PUBLISH a question is about

    def __init__(
        self, ctx: Context, router: Router, delivery: Delivery, groups: GroupEngine, retained: RetainedTree
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.groups = groups
        self.retained = retained
        self.producers = Producers(ctx)
        self.unknown_pubrels = UnknownPubrels()
        self.retained_wheel = TimerWheel()
        self.postponed = []
        self._asked = {}

    def on_publish(self, client: Client, session: Session, first: int, data: bytes, start: int, end: int) -> None:
        """Handle the PUBLISH whose body is ``data[start:end]``. Raises MqttError to end the connection."""
        ctx = self.ctx
        packet = decode_publish(first, data, start, end, client.version)
        ctx.counters.publish_received += 1
        client.published += 1
        ctx.work -= 1
        if packet.subscription_ids is not None:
            raise ProtocolError("a PUBLISH with a subscription identifier from a client")  # [MQTT-3.3.4-6]
        if client.version == 5 and (packet.topic_alias != 0 or not packet.topic):
            self._resolve_alias(client, packet)
        if packet.qos > ctx.max_qos:
            raise ProtocolError("the QoS is higher than this server's maximum", Reason.QOS_NOT_SUPPORTED)
        if packet.retain and not ctx.retain_available:
            raise ProtocolError("retained messages are not available here", Reason.RETAIN_NOT_SUPPORTED)
        message = Message(
            packet.topic,
            packet.payload,
            packet.qos,
            packet.retain,
            packet.properties,
            0.0 if packet.expiry < 0 else ctx.now + packet.expiry,
            session.client_id,
            ctx.now,
        )
        if packet.qos == 1:
            ctx.counters.received_qos1 += 1
        elif packet.qos == 2:
            ctx.counters.received_qos2 += 1
            inbound = session.inbound
            trail = session.trail
            if inbound is not None and inbound.holds(packet.packet_id):
                if trail is None or trail.backlog is None or packet.packet_id not in trail.backlog.deferred:
                    self._acknowledge(client, 0x50, packet.packet_id, 0)  # again; the first message stands
                return
            if first & 8 and trail is not None:
                trail.waits().repeated[packet.packet_id] = None
        if client.production is not None:
            client.production.came(packet.topic, packet.payload)
        if ctx.refusing and packet.qos != 0:
            self._not_now(client, message, packet.packet_id)
            return
        rights = client.rights
        if rights is not None and not rights.may_publish(packet.topic, packet.qos, packet.retain):
            self.router.resolve(packet.topic)  # a bad topic is worse
            self._refuse(client, message, packet.packet_id, Reason.NOT_AUTHORIZED)
            return
        if ctx.ask_publish:
            self.router.resolve(packet.topic)  # a bad topic is nothing to ask about
            self._ask(client, message, packet.packet_id)
            return
        self.accept(client, session, message, packet.packet_id)

    def _resolve_alias(self, client: Client, packet: Publish) -> None:
        alias = packet.topic_alias
        if alias == 0:
            raise ProtocolError("neither a topic nor a topic alias")  # [MQTT-4.7.3-1]
        if alias > client.alias_limit:
            raise ProtocolError("the topic alias is higher than agreed", Reason.TOPIC_ALIAS_INVALID)
        aliases = client.aliases
        if aliases is None:
            aliases = client.aliases = {}
        if packet.topic:
            self.router.resolve(packet.topic)  # only a valid topic may be remembered
            aliases[alias] = packet.topic
            return
        topic = aliases.get(alias)
        if topic is None:
            raise ProtocolError("the topic alias was never set")
        packet.topic = topic

    # Hooks

    def _ask(self, client: Client, message: Message, packet_id: int) -> None:
        question = HookQuestion(ASK_PUBLISH, client)
        question.message = message
        self._asked[question] = packet_id
        self.ctx.ready.questions.append(question)
        self.ctx.halt(client, ASKING)

    def ask_for_will(self, client: Client, message: Message) -> None:
        """A will is published under the rights of the client that left it; the answer comes with packet id -1."""
        self._ask(client, message, -1)

    def answered(self, question: HookQuestion, answer: HookAnswer) -> None:
        client = question.client
        asked = question.message
        packet_id = self._asked.pop(question, -2)
        self.ctx.unhalt(client, ASKING)
        session = client.session
        if packet_id == -2 or asked is None:
            return
        if packet_id == -1:
            if answer.reason < 0x80 and answer.message is not None:
                self.route(answer.message, None)
            return
        if session is None or session.client is not client:
            # The connection is gone. What was to be acknowledged the client will send again, QoS 0 it will not.
            if asked.qos == 0 and answer.reason < 0x80 and answer.message is not None and session is not None:
                self.route(answer.message, session)
            return
        if self.ctx.refusing and asked.qos != 0:
            self._not_now(client, asked, packet_id)
        elif answer.reason >= 0x80:
            self._refuse(client, asked, packet_id, answer.reason)
        elif answer.message is None:
            self._drop("hook", client, asked)
            self._acknowledge_refused(client, asked.qos, packet_id, 0)
        else:
            self.accept(client, session, answer.message, packet_id)

    def _refuse(self, client: Client, message: Message, packet_id: int, reason: int) -> None:
        self._drop("not_authorized" if reason == Reason.NOT_AUTHORIZED else "refused", client, message)
        self._acknowledge_refused(client, message.qos, packet_id, reason)

    def _drop(self, reason: str, client: Client, message: Message) -> None:
        """It is not accepted."""
        self.ctx.drop(reason, client.client_id)
        if self.ctx.audit is not None:
            self.ctx.audit.refused(client.client_id, message.topic, message.id, message.qos, reason)

    def _acknowledge_refused(self, client: Client, qos: int, packet_id: int, reason: int) -> None:
        """3.x has no code for a refusal: it gets the plain acknowledgement [MQTT-3.3.5-2]."""
        if qos == 1:
            self._acknowledge(client, 0x40, packet_id, reason)
        elif qos == 2:
            session = client.session
            if session is not None and (reason < 0x80 or client.version != 5):
                self.inbound(session).answered(packet_id, self.ctx.now)  # a PUBREL will follow
                self.ctx.arm(session, self.ctx.now + self.ctx.await_rel_timeout)
                if self.ctx.recording and session.expiry != 0:
                    self.ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
            self._acknowledge(client, 0x50, packet_id, reason)

    # Taking a message

    def accept(self, client: Client, session: Session, message: Message, packet_id: int) -> None:
        """The message may be published: route it (QoS 2: hold it) and acknowledge."""
        route = self.router.resolve(message.topic)
        verdict = admit(self.ctx, route, message.qos != 0)
        if verdict == RESERVED and tells_state(client, message.topic, message.payload, message.qos):
            verdict = ADMITTED
        if verdict != ADMITTED:
            self._turn_down(client, message, packet_id, verdict)
            return
        production = client.production
        if message.qos == 2:
            if production is not None:
                production.hold(packet_id)
            self._hold(client, session, packet_id, message)
            return
        if production is not None and not self._is_new(client, production, message, packet_id):
            return
        if message.retain:
            message = self._stamp(message)
            reason = self._retain(message)
            if reason != 0:
                self._not_retained(message)
                if message.qos == 1 and client.version == 5:
                    self._acknowledge(client, 0x40, packet_id, reason)
                    return
        if production is not None:
            self.producers.publish(production, production.number, production.digest, message)
        # Who can not be told that there is no room to retain it at least has it delivered.
        found = self.delivery.fan_out(message, route, session)
        if message.qos == 1:
            self._acknowledge(client, 0x40, packet_id, 0 if found != 0 else 0x10)

    def _turn_down(self, client: Client, message: Message, packet_id: int, verdict: int) -> None:
        """A message that is not admitted, in the words of MQTT. Raises MqttError to end the connection."""
        if verdict == POSTPONED:
            self._postpone(client, message, packet_id)
        elif verdict == ISOLATED_VERDICT:
            self._isolated(client, message, packet_id)
        elif verdict == MEMORY:
            self._no_memory(client, message, packet_id)
        elif verdict == RESERVED:
            self._refuse(client, message, packet_id, Reason.NOT_AUTHORIZED)
        elif verdict == STREAM_FULL:
            self._not_now(client, message, packet_id, COUNTED[verdict], "a stream is full")
        else:
            self._not_now(client, message, packet_id)

    def _is_new(self, client: Client, production: Production, message: Message, packet_id: int) -> bool:
        """Whether a numbered message of QoS 0 or 1 is to be published; if not, it is answered."""
        verdict = production.judge(production.number, production.digest, message.qos)
        if verdict == NEW:
            return True
        if verdict == AGAIN:
            self.ctx.drop("published_again", client.client_id)
            if message.qos == 1:
                self._acknowledge(client, 0x40, packet_id, 0)
            return False
        self.ctx.drop("numbered_wrong", client.client_id)
        reason = Reason.PAYLOAD_FORMAT_INVALID if verdict == OTHER else Reason.IMPLEMENTATION_SPECIFIC_ERROR
        self._acknowledge(client, 0x40, packet_id, reason)
        return False

    def _release_numbered(self, client: Client, production: Production, message: Message, packet_id: int) -> bool:
        """A QoS 2 message of a producer may go its way; False if it is not to be acknowledged: one before it is
        missing, or another one had its number."""
        number, digest = production.held.pop(packet_id, (-1, 0))
        verdict = production.judge(number, digest, 2)
        if verdict == NEW:
            if message.offset >= 0:
                message = message.copy()  # with what is known of the producer it is one record
            self.producers.publish(production, number, digest, message)
            self.route(message, client.session)
            return True
        self.ctx.drop("published_again" if verdict == AGAIN else "numbered_wrong", client.client_id)
        return verdict == AGAIN

    def _not_now(
        self,
        client: Client,
        message: Message,
        packet_id: int,
        reason: str = "storage_failing",
        text: str = "nothing can be stored at the moment",
    ) -> None:
        """What can not be stored is not accepted: MQTT 5 has a code for it; a 3.x client must not be acknowledged, and
        publishes again when it is back."""
        if client.version != 5:
            raise ProtocolError(text, Reason.QUOTA_EXCEEDED)
        self._drop(reason, client, message)
        first = 0x40 if message.qos == 1 else 0x50
        # Now: the lane for what is stored stands still until it can be.
        self.ctx.send(client, bytes((first, 3)) + packet_id_bytes(packet_id) + bytes((Reason.QUOTA_EXCEEDED,)))

    def _no_memory(self, client: Client, message: Message, packet_id: int) -> None:
        """Nothing is taken in until receivers have taken out what is there."""
        if message.qos == 0:
            self._drop("memory", client, message)
        elif client.version != 5:
            raise ProtocolError("there is too little memory at the moment", Reason.QUOTA_EXCEEDED)
        else:
            self._drop("memory", client, message)
            self._acknowledge_refused(client, message.qos, packet_id, Reason.QUOTA_EXCEEDED)

    def _postpone(self, client: Client, message: Message | None, packet_id: int) -> None:
        """``message`` None: a PUBREL. It is done, and the connection read again, with ``resume``."""
        self.postponed.append((client, message, packet_id))
        self.ctx.halt(client, WORKING)

    def resume(self, client: Client, message: Message | None, packet_id: int) -> None:
        """Go on with what was postponed. Raises MqttError to end the connection."""
        self.ctx.unhalt(client, WORKING)
        session = client.session
        if session is None or session.client is not client:
            return
        if message is None:
            self.on_pubrel(client, session, packet_id)
        else:
            self.accept(client, session, message, packet_id)

    def _isolated(self, client: Client, message: Message, packet_id: int) -> None:
        """What a node accepts must reach everyone, and it can not now: MQTT 5 is told, 3.x is not acknowledged."""
        if client.version != 5:
            raise ProtocolError(ISOLATED, Reason.SERVER_UNAVAILABLE)
        self._drop("isolated", client, message)
        first = 0x40 if message.qos == 1 else 0x50
        code = bytes((Reason.IMPLEMENTATION_SPECIFIC_ERROR,))
        self.ctx.send(client, bytes((first, 3)) + packet_id_bytes(packet_id) + code)

    def _acknowledge(self, client: Client, first: int, packet_id: int, reason: int) -> None:
        if reason != 0 and client.version == 5:
            self.ctx.send_stored(client, bytes((first, 3)) + packet_id_bytes(packet_id) + bytes((reason,)))
        else:
            self.ctx.send_stored(client, ack_frame(first, packet_id))

    def inbound(self, session: Session) -> Inbound:
        inbound = session.inbound
        if inbound is None:
            inbound = session.inbound = Inbound()
        return inbound

    def _hold(self, client: Client, session: Session, packet_id: int, message: Message) -> None:
        ctx = self.ctx
        inbound = self.inbound(session)
        limit = ctx.max_awaiting_rel
        if limit != 0 and inbound.held >= limit:
            if client.version == 5:
                raise ProtocolError("more QoS 2 messages than the receive maximum", Reason.RECEIVE_MAXIMUM_EXCEEDED)
            self._park(session, packet_id, message)
            return
        if inbound.held == 0:
            ctx.arm(session, ctx.now + ctx.await_rel_timeout)
        if ctx.max_queue_bytes != 0 and inbound.bytes + message.size() > ctx.max_queue_bytes:
            raise ProtocolError("too much waits for its PUBREL", Reason.QUOTA_EXCEEDED)
        if ctx.audit is not None:
            ctx.audit.identify(message)  # before it is stored
        if self.unknown_pubrels.total != 0:
            self.unknown_pubrels.take(session.client_id, packet_id)  # the id means a new message
        inbound.hold(packet_id, message, ctx.now)
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(INBOUND_PUT, session, packet_id, message=message))
        trail = session.trail
        if (
            trail is not None
            and ctx.cluster.qos2 is not None
            and ctx.cluster.qos2.defer(client, session, trail, packet_id)
        ):
            return  # PUBREC follows when no other node holds it, in the order of the PUBLISHes [MQTT-4.6.0-3]
        self._acknowledge(client, 0x50, packet_id, 0)

    def _park(self, session: Session, packet_id: int, message: Message) -> None:
        """A 3.x client went past ``max_awaiting_rel``, of which it can not know. Its PUBREC waits for a free place,
        and so, before long, does the client. It has to be read on all the same:

        1. With a limit of 2 it sends PUBLISH 1 to 5 in one go; 1 and 2 get PUBREC.
        2. It sends PUBREL 1 and 2. They come behind PUBLISH 5.
        3. Whoever does not read before a place is free does not read what frees it.

        What is parked counts against ``limits.queue_bytes``; a client with more than that begins again.
        """
        parked = session.parked
        if parked is None:
            parked = session.parked = Parking()
        parked.add(packet_id, message)
        if self.ctx.max_queue_bytes != 0 and parked.bytes > self.ctx.max_queue_bytes:
            raise ProtocolError("too much waits behind unfinished QoS 2 messages", Reason.QUOTA_EXCEEDED)

    def unpark(self, session: Session) -> None:
        """A place has become free: the longest waiting PUBLISH is held and answered."""
        parked = session.parked
        client = session.client
        if parked is None or client is None:
            return
        inbound = self.inbound(session)
        while parked.entries and (self.ctx.max_awaiting_rel == 0 or inbound.held < self.ctx.max_awaiting_rel):
            packet_id, message = parked.take()
            self._hold(client, session, packet_id, message)
        if not parked.entries:
            session.parked = None

    def on_pubrel(self, client: Client, session: Session, packet_id: int) -> None:
        ctx = self.ctx
        inbound = session.inbound
        trail = session.trail
        asking = trail is not None and trail.backlog is not None and len(trail.backlog.asked) != 0
        if asking and trail is not None and inbound is not None and inbound.holds(packet_id):
            trail.waits().behind.append(packet_id)  # an earlier one goes its way first, from another node
            return
        if ctx.isolated and inbound is not None and inbound.holds(packet_id):
            raise MqttError(ISOLATED, Reason.USE_ANOTHER_SERVER)  # it stays held: nothing is answered, nothing is lost
        if ctx.catching_up and inbound is not None and inbound.holds(packet_id):
            self._postpone(client, None, packet_id)
            return
        message = None if inbound is None else inbound.release(packet_id, ctx.now)
        if message is None:
            if inbound is not None and inbound.completed(packet_id):
                ctx.send_stored(client, ack_frame(0x70, packet_id))
            elif ctx.cluster.qos2 is not None and trail is not None:
                if ctx.isolated:
                    raise MqttError(ISOLATED, Reason.USE_ANOTHER_SERVER)  # it may be where nobody can be asked
                ctx.cluster.qos2.ask(client, session, trail, packet_id)
            else:
                self._unknown_handshake(client, session, packet_id)
            return
        if client.production is None:
            self.route(message, session)
        elif not self._release_numbered(client, client.production, message, packet_id):
            self._unknown_handshake(client, session, packet_id)
            return
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
        ctx.send_stored(client, ack_frame(0x70, packet_id))
        if session.parked is not None:
            self.unpark(session)

    def resolved(self, client: Client, session: Session, packet_id: int, outcome: int) -> None:
        """What other nodes said of a handshake of this client. Raises MqttError to end the connection."""
        if session.client is not client or session.ended:
            return  # it asks again, from wherever it is
        inbound = self.inbound(session)
        backlog = Backlog() if session.trail is None else session.trail.waits()
        if outcome == CANCELLED:
            backlog.deferred[packet_id] = True
            for deferred in list(backlog.deferred):
                if not backlog.deferred[deferred]:
                    break
                del backlog.deferred[deferred]
                if inbound.holds(deferred):
                    self._acknowledge(client, 0x50, deferred, 0)
            return
        backlog.asked.pop(packet_id, None)
        self._answer_pubrel(client, session, inbound, packet_id, outcome)
        if backlog.asked:
            return
        behind = backlog.behind
        backlog.behind = []
        for waiting in behind:
            self.on_pubrel(client, session, waiting)

    def _answer_pubrel(self, client: Client, session: Session, inbound: Inbound, packet_id: int, outcome: int) -> None:
        ctx = self.ctx
        if inbound.holds(packet_id):
            return  # the id was used anew before the answer came
        if outcome == COMPLETED:
            self._complete(client, session, packet_id)
        elif ctx.isolated:
            raise MqttError(ISOLATED, Reason.USE_ANOTHER_SERVER)
        elif outcome == TIMED_OUT and client.version != 5:
            # PUBCOMP would acknowledge a message that is held there; the client repeats its PUBREL until it is known.
            text = f"PUBREL {packet_id}: a node that may hold its message could not be reached in time"
            raise MqttError(text, Reason.SERVER_UNAVAILABLE)
        else:
            self._unknown_handshake(client, session, packet_id)

    def _unknown_handshake(self, client: Client, session: Session, packet_id: int) -> None:
        """A PUBREL that no node knows. MQTT 5 has 0x92 for it. 3.x has no code: the connection is closed once, and the
        same PUBREL again is answered with PUBCOMP [MQTT-4.3.3-2], counted and logged (see core.mqtt.unknown_pubrel)."""
        ctx = self.ctx
        if client.version == 5:
            ctx.counters.error("pubrel_unknown")
            self.delivery.unknown_packet_id(client, 0x70, packet_id)
            return
        again = self.unknown_pubrels.take(client.client_id, packet_id)
        if not again and ctx.mqtt.unknown_pubrel != "complete":
            self.unknown_pubrels.note(client.client_id, packet_id)
            waits = None if session.trail is None else session.trail.backlog
            if waits is not None:
                self.unknown_pubrels.note_too(client.client_id, [*waits.asked, *waits.behind])
            text = f"PUBREL {packet_id} is of an unknown handshake; the same PUBREL again will get PUBCOMP"
            raise ProtocolError(text, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        text = f"PUBREL {packet_id} is of an unknown handshake, answered with PUBCOMP: the message may be lost"
        ctx.notice("pubrel_unknown", client, text, closing=False)
        self._complete(client, session, packet_id)

    def closed_for(self, client: Client, data: bytes, pos: int) -> None:
        """The connection is closed for a PUBREL; those that follow at ``pos`` will not close another one."""
        others: list[int] = []
        while len(data) - pos >= 4 and data[pos] == 0x62 and data[pos + 1] == 2:
            others.append(data[pos + 2] << 8 | data[pos + 3])
            pos += 4
        self.unknown_pubrels.note_too(client.client_id, others)

    def _complete(self, client: Client, session: Session, packet_id: int) -> None:
        """A handshake that is not held here is over: PUBCOMP, now and for each repetition."""
        ctx = self.ctx
        self.inbound(session).answered(packet_id, ctx.now)
        ctx.arm(session, ctx.now + ctx.await_rel_timeout)
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
        ctx.send_stored(client, ack_frame(0x70, packet_id))

    def route(self, message: Message, publisher: Session | None) -> int:
        """Send a message on its way; how many receivers it found. The topic is valid."""
        if message.expired(self.ctx.now):
            self.ctx.drop("expired", message.publisher)
            if self.ctx.audit is not None:
                self.ctx.audit.refused(message.publisher, message.topic, message.id, message.qos, "expired")
            return 0
        route = self.router.resolve(message.topic)
        if route.reserved and publisher is not None:
            self.ctx.drop("not_authorized", publisher.client_id)
            return 0
        if message.retain:
            message = self._stamp(message)
            if self._retain(message) != 0:
                self._not_retained(message)
        return self.delivery.fan_out(message, route, publisher)

    def deliver(self, message: Message, group: bytes, source: Session) -> None:
        """A message that entered at the node of ``source``: for our own subscribers, or for one member of ``group``."""
        ctx = self.ctx
        if message.expired(ctx.now):
            ctx.drop("expired", message.publisher)
            return
        try:
            route = self.router.resolve(message.topic)
        except MqttError:
            ctx.drop("beyond_limits_here", source.client_id)
            return
        if not group:
            if message.retain and ctx.cluster.retained is not None:
                ctx.cluster.retained.tell(source.node, message.sequence)
            self.delivery.fan_out(message, route, source)
            return
        found = self.router.group(group)
        if found is None:
            ctx.drop("no_group_member", source.client_id)
            if ctx.audit is not None:
                ctx.audit.dropped(GROUP_PREFIX + group[7:].decode(), message, message.qos, "no_group_member")
        else:
            self.groups.arrived(found, message)

    # Retained messages

    def _stamp(self, message: Message) -> Message:
        """In a cluster what is retained has a sequence before it goes anywhere: by it the others know what is here."""
        ctx = self.ctx
        retaining = ctx.cluster.retained
        if retaining is None or ctx.node == 0 or message.topic.startswith(b"$SYS/"):
            return message
        if message.offset >= 0:  # it was held, and what is stored of it has none
            message = message.copy()
        ctx.sequence += 1
        message.sequence = retaining.last = ctx.sequence
        message.origin = ctx.node
        return message

    def _retain(self, message: Message) -> int:
        """Keep it as the topic's retained message, or remove that [MQTT-3.3.1-6]; a reason code."""
        ctx = self.ctx
        retaining = None if message.sequence == 0 else ctx.cluster.retained
        if retaining is not None and retaining.full:
            return Reason.QUOTA_EXCEEDED
        if not message.payload:
            previous = self.retained.remove(message.topic)
            if previous is not None:
                self._let_expire(previous)
                if ctx.recording:
                    ctx.write(Write(RETAINED_DELETE, topic=message.topic))
            if retaining is not None:
                retaining.change(message.topic, message.sequence, None)
                if ctx.recording:
                    retaining.deleted[message.topic] = message.sequence
                    sequence = message.sequence.to_bytes(8, "big")
                    ctx.write(Write(FACT_PUT, topic=DELETED_FACT + message.topic, value=sequence))
            return 0
        if ctx.refusing and message.qos == 0 and not message.topic.startswith(b"$SYS/"):
            return Reason.QUOTA_EXCEEDED  # whoever publishes on would fill the memory with what waits for the disk
        limit = ctx.limits.retained_messages
        limit_bytes = ctx.limits.retained_bytes
        crowded = (limit != 0 and len(self.retained) >= limit) or (retaining is not None and retaining.crowded)
        if crowded and self.retained.get(message.topic) is None:
            return Reason.QUOTA_EXCEEDED
        if limit_bytes != 0 and self.retained.total_bytes + message.size() > limit_bytes:
            replaced = self.retained.get(message.topic)
            if replaced is None or message.size() > replaced.size():
                return Reason.QUOTA_EXCEEDED
        self._put_retained(message)
        if ctx.recording and not message.topic.startswith(b"$SYS/"):
            ctx.write(Write(RETAINED_PUT, message=message))
        if retaining is not None:
            retaining.change(message.topic, message.sequence, message)
            if retaining.deleted.pop(message.topic, 0) != 0:
                ctx.write(Write(FACT_DELETE, topic=DELETED_FACT + message.topic))
        return 0

    def _put_retained(self, message: Message) -> Message | None:
        previous = self.retained.put(message)
        if previous is not None:
            self._let_expire(previous)
        if message.expires_at != 0.0:
            self.retained_wheel.add(message, message.expires_at)
        return previous

    def show_retained(self, message: Message) -> None:
        """What another node retains takes the place of what is here. It is not stored here; what it replaces may be."""
        message.origin = REPLICA
        previous = self._put_retained(message)
        if previous is not None and previous.origin != REPLICA and self.ctx.recording:
            self.ctx.write(Write(RETAINED_DELETE, topic=message.topic))

    def store_retained(self, message: Message) -> None:
        """What was retained before this node came into the cluster is of the cluster from now on."""
        message = self._stamp(message.copy())
        if self._retain(message) != 0:
            self._not_retained(message)

    def hide_retained(self, topic: bytes) -> None:
        """Nothing is retained for this topic any more, as others know."""
        previous = self.retained.remove(topic)
        if previous is not None:
            self._let_expire(previous)
            if previous.origin != REPLICA and self.ctx.recording:
                self.ctx.write(Write(RETAINED_DELETE, topic=topic))

    def _not_retained(self, message: Message) -> None:
        failing = self.ctx.refusing and message.qos == 0
        self.ctx.drop("storage_failing" if failing else "retained_quota", message.publisher)

    def _let_expire(self, previous: Message) -> None:
        """Nobody has to look at it any more: the wheel must not keep it until its time."""
        if previous.expires_at != 0.0:
            self.retained_wheel.remove(previous, previous.expires_at)

    def expire_retained(self, limit: int) -> None:
        for item in self.retained_wheel.due(self.ctx.now, limit):
            assert isinstance(item, Message)
            if self.retained.get(item.topic) is item and item.expired(self.ctx.now):
                self.retained.remove(item.topic)
                if self.ctx.recording:
                    self.ctx.write(Write(RETAINED_DELETE, topic=item.topic))
                if self.ctx.cluster.retained is not None:
                    self.ctx.cluster.retained.expired.append(item.topic)
