"""Publications of clients: PUBLISH and PUBREL in, acknowledgements out, messages on to their receivers; and the entry
of messages of the broker itself, and of other nodes.

The acknowledgement is added to its lane after the message has been routed, so that the writes it stands for precede it
in the same turn. A QoS 2 message is held at PUBLISH and routed at PUBREL (core.session.qos, Inbound): so a handshake
that is abandoned and begun again elsewhere cannot deliver twice.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be

from starlingmq.core.context.context import ISOLATED, PROPERTY_SHIFT, Context
from starlingmq.core.context.ready import (
    BROKER_ONLY,
    BY_HOOK,
    INBOUND_COMPLETED,
    INBOUND_PUT,
    PUBLISH_REFUSED,
    HookAnswer,
    HookQuestion,
    Write,
)
from starlingmq.core.context.ready import PUBLISH as ASK_PUBLISH
from starlingmq.core.context.remote_qos2 import CANCELLED, COMPLETED, TIMED_OUT
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.delivery.group_engine import GroupEngine
from starlingmq.core.messages.link_marks import unmark
from starlingmq.core.messages.message import Message
from starlingmq.core.publish.bridges import has_been_here, tells_state
from starlingmq.core.publish.dead_letters import letter_of
from starlingmq.core.publish.producers import Producers
from starlingmq.core.publish.publish_admission import (
    ADMITTED,
    COUNTED,
    MEMORY,
    POSTPONED,
    RESERVED,
    STREAM_FULL,
    UNCHECKED,
    admit,
)
from starlingmq.core.publish.publish_admission import ISOLATED as ISOLATED_VERDICT
from starlingmq.core.publish.unknown_pubrel import CLIENT_MAX, UnknownPubrels
from starlingmq.core.retained.retained_messages import RetainedMessages
from starlingmq.core.retained.retained_store import RetainedTree
from starlingmq.core.router.contract import Contract
from starlingmq.core.router.router import Route, Router
from starlingmq.core.router.stream import Stream, refusing
from starlingmq.core.session.connection import ASKING, CLOSED, WORKING
from starlingmq.core.session.production import AGAIN, NEW, OTHER, Production
from starlingmq.core.session.qos import Inbound, Parking
from starlingmq.core.session.session import BRIDGE_LISTENER, GROUP_PREFIX, Client, Session, Subscription
from starlingmq.core.session.trail import Backlog
from starlingmq.wire.mqtt import PUBACK, Ack, Publish, ack_frame, ack_run, decode_publish, encode, packet_id_bytes
from starlingmq.wire.properties import REASON_STRING
from starlingmq.wire.reasons import MqttError, ProtocolError, Reason

RETURNED: Final = "returned_qos2"  # why messages of a node that was removed were dropped
NOTICE_WORK: Final = 16  # for a line of the log
SHORT: Final = 128  # bytes after a fixed header of two
HEARD_FACT: Final = b"heard/"
"""With a node's number: the name of a fact, the sequence of the last message from that node of which nothing else is
stored."""


class StreamPort:
    """The streams with one sequence (core.jetstream.hub)."""

    def arrived(self, message: Message, stream: Stream, source: Session, alone: bool) -> None:
        """A message from another node, for a stream of this one. ``alone``: it has no other receiver here."""


class Publishing:
    ctx: Context
    router: Router
    delivery: Delivery
    groups: GroupEngine
    retained: RetainedMessages
    streams: StreamPort  # set after construction
    producers: Producers
    unknown_pubrels: UnknownPubrels
    _answers: BytesWriter  # PUBACKs and PUBRECs for ...
    _answered: Client | None  # ... the client whose packets are being handled
    postponed: list[tuple[Client, Message | None, int]]  # until all routes are here: at most one of each connection
    _asked: dict[HookQuestion, int]  # packet id of the PUBLISH that a question is about

    def __init__(
        self, ctx: Context, router: Router, delivery: Delivery, groups: GroupEngine, retained: RetainedTree
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.groups = groups
        self.retained = RetainedMessages(ctx, retained)
        self.streams = StreamPort()
        self.producers = Producers(ctx)
        self.unknown_pubrels = UnknownPubrels()
        self.postponed = []
        self._answers = BytesWriter()
        self._answered = None
        self._asked = {}

    def on_publish(self, client: Client, session: Session, first: int, data: bytes, start: int, end: int) -> None:
        """Handle the PUBLISH whose body is ``data[start:end]``. Raises MqttError to end the connection."""
        ctx = self.ctx
        packet = decode_publish(first, data, start, end, client.version)
        ctx.counters.publish_received += 1
        client.published += 1
        ctx.work -= 1
        if packet.subscription_ids is not None:
            raise ProtocolError("PUBLISH of a client with a subscription identifier")  # [MQTT-3.3.4-6]
        if client.version == 5:
            ctx.work -= len(packet.properties) >> PROPERTY_SHIFT
            if packet.topic_alias != 0 or not packet.topic:
                self._resolve_alias(client, packet)
        if packet.qos > ctx.max_qos:
            raise ProtocolError("the QoS is above the server's maximum", Reason.QOS_NOT_SUPPORTED)
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
            inbound, trail = session.inbound, session.trail
            at_once = client.production is not None and client.production.at_once  # it holds those of others only
            if inbound is not None and not at_once and inbound.holds(packet.packet_id):
                if trail is None or trail.backlog is None or packet.packet_id not in trail.backlog.deferred:
                    self._acknowledge(client, 0x50, packet.packet_id, 0)  # again; the first message stays
                return
            if first & 8 and trail is not None:
                trail.waits().repeated[packet.packet_id] = None
        if client.production is not None:
            client.production.came(packet.topic, packet.payload, packet.retain)
        if packet.properties and client.bridge and has_been_here(ctx.site, packet.properties):
            self._drop("bridge_loop", client, message)
            self._acknowledge_refused(client, packet.qos, packet.packet_id, 0)
            return
        if ctx.refusing and packet.qos != 0:
            self._not_now(client, message, packet.packet_id)
            return
        rights = client.rights
        if rights is not None and not rights.may_publish(packet.topic, packet.qos, packet.retain):
            self.router.check(packet.topic)  # an invalid topic is the more severe error
            self._refuse(client, message, packet.packet_id, Reason.NOT_AUTHORIZED)
            return
        if ctx.ask_publish:
            self.router.check(packet.topic)  # hooks are not called for an invalid topic
            self._ask(client, message, packet.packet_id)
            return
        frame = b""
        if first == 0x30 and client.version != 5 and end - start < SHORT and data[start - 1] == end - start:
            frame = data[start - 2 : end]  # not copied if the read brought one packet
        self.accept(client, session, message, packet.packet_id, frame)

    def _resolve_alias(self, client: Client, packet: Publish) -> None:
        alias = packet.topic_alias
        if alias == 0:
            raise ProtocolError("PUBLISH without topic and topic alias")  # [MQTT-4.7.3-1]
        if alias > client.alias_limit:
            raise ProtocolError("the topic alias is above the agreed maximum", Reason.TOPIC_ALIAS_INVALID)
        aliases = client.aliases
        if aliases is None:
            aliases = client.aliases = {}
        if packet.topic:
            self.router.check(packet.topic)  # only valid topics may be remembered
            aliases[alias] = packet.topic
            return
        topic = aliases.get(alias)
        if topic is None:
            raise ProtocolError("the topic alias has not been defined")
        packet.topic = topic

    # Hooks

    def _ask(self, client: Client, message: Message, packet_id: int) -> None:
        question = HookQuestion(ASK_PUBLISH, client)
        question.message = message
        self._asked[question] = packet_id
        self.ctx.ready.questions.append(question)
        self.ctx.halt(client, ASKING)

    def ask_for_will(self, client: Client, message: Message) -> None:
        """A will is published under the rights of the client that left it; its answer has packet id -1."""
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
            # The connection is closed. The client will send QoS 1 and 2 messages again, but not those of QoS 0.
            if asked.qos == 0 and answer.reason < 0x80 and answer.message is not None and session is not None:
                self.route(answer.message, session)
            return
        if self.ctx.refusing and asked.qos != 0:
            self._not_now(client, asked, packet_id)
        elif answer.reason >= 0x80:
            self._refuse(client, asked, packet_id, answer.reason, BY_HOOK)
        elif answer.message is None:
            self._drop("hook", client, asked)
            self._acknowledge_refused(client, asked.qos, packet_id, 0)
        else:
            self.accept(client, session, answer.message, packet_id)

    def _refuse(self, client: Client, message: Message, packet_id: int, reason: int, detail: str = "") -> None:
        self.ctx.refused(PUBLISH_REFUSED, client, message.topic, message.qos, message.retain, b"", detail)
        self._drop("not_authorized" if reason == Reason.NOT_AUTHORIZED else "refused", client, message)
        self._acknowledge_refused(client, message.qos, packet_id, reason)

    def _drop(self, reason: str, client: Client, message: Message) -> None:
        """The message is not accepted."""
        self.ctx.drop(reason, client.client_id, 1, message.topic)
        if self.ctx.audit is not None:
            self.ctx.audit.refused(client.client_id, message.topic, message.id, message.qos, reason)

    def _acknowledge_refused(self, client: Client, qos: int, packet_id: int, reason: int) -> None:
        """3.x has no code for a refusal: the client gets the normal acknowledgement [MQTT-3.3.5-2]."""
        production = client.production
        if production is not None:
            if reason != Reason.QUOTA_EXCEEDED:
                production.pass_by()
            if qos == 2 and production.at_once:
                qos = 1
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

    # Accepting a message

    def accept(self, client: Client, session: Session, message: Message, packet_id: int, frame: bytes = b"") -> None:
        """The message may be published: route it (QoS 2: hold it) and acknowledge. ``frame`` as in ``fan_out``."""
        route = self.router.resolve(message.topic)
        verdict = admit(self.ctx, route, message.qos != 0)
        if verdict == RESERVED and tells_state(client, message.topic, message.payload, message.qos):
            verdict = ADMITTED
        if verdict == UNCHECKED:
            contract = route.contract
            broken = "" if contract is None else contract.broken_by(message)
            if contract is not None and broken:
                self._breaks(client, message, packet_id, contract, broken)
                return
        elif verdict != ADMITTED:
            self._turn_down(client, message, packet_id, verdict)
            return
        production = client.production
        if message.qos == 2 and (production is None or not production.at_once):
            if production is not None:
                production.hold(packet_id)
            self._hold(client, session, packet_id, message)
            return
        if production is not None and not self._is_new(client, production, message, packet_id):
            return
        if message.retain:
            judged = self.retained.judge(message, session)
            if judged is None:
                if production is not None:
                    production.pass_by()
                if message.qos != 0:
                    self._acknowledge(client, 0x40, packet_id, 0)
                return
            message = self.retained.stamp(judged)
            reason = self.retained.keep(message) if message.retain else 0
            if reason != 0:
                message = self.retained.count_refused(message)
                if message.qos != 0 and client.version == 5:
                    self._acknowledge(client, 0x40, packet_id, reason)
                    return
        if production is not None:
            self.producers.publish(production, production.number, production.digest, message)
        # If the client cannot be told that there is no room to retain it, the message is at least delivered.
        found = self.delivery.fan_out(message, route, session, frame)
        if message.qos != 0:
            if len(route.streams) != 0 and client.version == 5:
                stream = refusing(route.streams)
                if stream is not None:
                    self._not_kept(client, packet_id, stream)
                    return
            self._acknowledge(client, 0x40, packet_id, 0 if found != 0 else 0x10)

    def _breaks(self, client: Client, message: Message, packet_id: int, contract: Contract, why: str) -> None:
        """The payload breaks the contract of its topic: the message is refused, or becomes a dead letter."""
        self.ctx.refused(PUBLISH_REFUSED, client, message.topic, message.qos, message.retain, b"", why)
        self._drop("contract", client, message)
        if contract.letters:
            self.route(letter_of(message, contract, why, self.ctx.now), None)
            self._acknowledge_refused(client, message.qos, packet_id, 0)
        elif message.qos == 1 and client.version == 5 and client.production is None:
            self._say(client, packet_id, Reason.PAYLOAD_FORMAT_INVALID, why)
        else:
            self._acknowledge_refused(client, message.qos, packet_id, Reason.PAYLOAD_FORMAT_INVALID)

    def _not_kept(self, client: Client, packet_id: int, stream: Stream) -> None:
        """A message was delivered, but a stream did not take it."""
        self._say(client, packet_id, stream.refusal_reason(), stream.refusal_text())

    def _say(self, client: Client, packet_id: int, reason: int, text: str) -> None:
        """PUBACK with a reason, for MQTT 5."""
        if client.problem_information and client.max_packet == 0:
            frame = encode(Ack(PUBACK, packet_id, reason, {REASON_STRING: text}), 5)
            if client is self._answered:
                self._answers.write(frame)
            else:
                self.ctx.send_stored(client, frame)
            return
        self._acknowledge(client, 0x40, packet_id, reason)

    def _turn_down(self, client: Client, message: Message, packet_id: int, verdict: int) -> None:
        """Send the refusal of a message in the protocol of MQTT. Raises MqttError to end the connection."""
        if verdict == POSTPONED:
            self._postpone(client, message, packet_id)
        elif verdict == ISOLATED_VERDICT:
            self._isolated(client, message, packet_id)
        elif verdict == MEMORY:
            self._no_memory(client, message, packet_id)
        elif verdict == RESERVED:
            self._refuse(client, message, packet_id, Reason.NOT_AUTHORIZED, BROKER_ONLY)
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
            if message.qos != 0:
                self._acknowledge(client, 0x40, packet_id, 0)
            return False
        self.ctx.drop("numbered_wrong", client.client_id)
        reason = Reason.PAYLOAD_FORMAT_INVALID if verdict == OTHER else Reason.IMPLEMENTATION_SPECIFIC_ERROR
        self._acknowledge(client, 0x40, packet_id, reason)
        return False

    def _not_now(
        self,
        client: Client,
        message: Message,
        packet_id: int,
        reason: str = "storage_failing",
        text: str = "nothing can be stored at the moment",
    ) -> None:
        """A message that cannot be stored is not accepted: MQTT 5 has a code for it; a 3.x client must not get an
        acknowledgement, and publishes again when it reconnects."""
        if client.version != 5:
            raise ProtocolError(text, Reason.QUOTA_EXCEEDED)
        self._drop(reason, client, message)
        first = 0x40 if message.qos == 1 else 0x50
        # In the lane for now: that for stored frames stops until storing works.
        self.ctx.send(client, bytes((first, 3)) + packet_id_bytes(packet_id) + bytes((Reason.QUOTA_EXCEEDED,)))

    def _no_memory(self, client: Client, message: Message, packet_id: int) -> None:
        """Nothing is accepted until receivers have taken messages out."""
        if message.qos == 0:
            self._drop("memory", client, message)
        elif client.version != 5:
            raise ProtocolError("memory is short at the moment", Reason.QUOTA_EXCEEDED)
        else:
            self._drop("memory", client, message)
            self._acknowledge_refused(client, message.qos, packet_id, Reason.QUOTA_EXCEEDED)

    def resume(self, client: Client, message: Message | None, packet_id: int) -> None:
        """Continue with a postponed packet. Raises MqttError to end the connection."""
        self.ctx.unhalt(client, WORKING)
        session = client.session
        if session is None or session.client is not client:
            return
        if message is None:
            self.on_pubrel(client, session, packet_id)
        else:
            self.accept(client, session, message, packet_id)

    def _isolated(self, client: Client, message: Message, packet_id: int) -> None:
        """An accepted message must reach all nodes, which is impossible now: MQTT 5 is told, 3.x gets no
        acknowledgement."""
        if client.version != 5:
            raise ProtocolError(ISOLATED, Reason.SERVER_UNAVAILABLE)
        self._drop("isolated", client, message)
        first = 0x40 if message.qos == 1 else 0x50
        code = bytes((Reason.IMPLEMENTATION_SPECIFIC_ERROR,))
        self.ctx.send(client, bytes((first, 3)) + packet_id_bytes(packet_id) + code)

    # QoS 2: PUBREL

    def on_pubrel(self, client: Client, session: Session, packet_id: int) -> None:
        ctx = self.ctx
        inbound = session.inbound
        trail = session.trail
        asking = trail is not None and trail.backlog is not None and len(trail.backlog.asked) != 0
        if asking and trail is not None and inbound is not None and inbound.holds(packet_id):
            trail.waits().behind.append(packet_id)  # an earlier message, held on another node, is routed first
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
                    # the handshake may be on a node that cannot be asked
                    raise MqttError(ISOLATED, Reason.USE_ANOTHER_SERVER)
                ctx.cluster.qos2.ask(client, session, trail, packet_id)
            else:
                self._unknown_handshake(client, session, packet_id)
            return
        ctx.releasing = ctx.recording and session.expiry != 0
        try:
            released = client.production is None or self._release_numbered(
                client, client.production, message, packet_id
            )
            if client.production is None:
                self.route(message, session)
        finally:
            ctx.releasing = False
        if not released:
            self._unknown_handshake(client, session, packet_id)
            return
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
        ctx.send_stored(client, ack_frame(0x70, packet_id))
        if session.parked is not None:
            self.unpark(session)

    def resolved(self, client: Client, session: Session, packet_id: int, outcome: int) -> None:
        """The result of the lookup of a handshake on other nodes. Raises MqttError to end the connection."""
        if session.client is not client or session.ended:
            return  # the client will repeat its PUBREL, wherever it connects
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
            return  # the packet id was used again before the result came
        if outcome == COMPLETED:
            self._complete(client, session, packet_id)
        elif ctx.isolated:
            raise MqttError(ISOLATED, Reason.USE_ANOTHER_SERVER)
        elif outcome == TIMED_OUT and client.version != 5:
            # PUBCOMP would acknowledge a message that is held there; the client repeats its PUBREL until the result is
            # known.
            text = f"PUBREL {packet_id}: a node that may have its message could not be reached in time"
            raise MqttError(text, Reason.SERVER_UNAVAILABLE)
        else:
            self._unknown_handshake(client, session, packet_id)

    def _unknown_handshake(self, client: Client, session: Session, packet_id: int) -> None:
        """A PUBREL that no node knows. MQTT 5 has 0x92 for it. 3.x has no code: the connection is closed once, and the
        same PUBREL again is answered by PUBCOMP [MQTT-4.3.3-2], counted and logged (see UnknownPubrels)."""
        ctx = self.ctx
        if client.version == 5:
            ctx.counters.note("pubrel_unknown")
            self.delivery.unknown_packet_id(client, 0x70, packet_id)
            return
        again = self.unknown_pubrels.take(client.client_id, packet_id)
        if not again and ctx.mqtt.unknown_pubrel != "complete":
            self.unknown_pubrels.note(client.client_id, packet_id)
            waits = None if session.trail is None else session.trail.backlog
            if waits is not None:
                self.unknown_pubrels.note_too(client.client_id, [*waits.asked, *waits.behind])
            text = f"PUBREL {packet_id} has an unknown packet identifier; repeating this PUBREL gets PUBCOMP"
            raise ProtocolError(text, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        text = (
            f"PUBREL {packet_id} has an unknown packet identifier and was answered with PUBCOMP; the message "
            "may be lost"
        )
        ctx.notice("pubrel_unknown", client, text, closing=False)
        ctx.work -= NOTICE_WORK
        self._complete(client, session, packet_id)

    def closed_for(self, client: Client, data: bytes, pos: int) -> None:
        """The connection is closed for a PUBREL. The PUBRELs that follow at ``pos`` will not close another one."""
        others: list[int] = []
        while len(data) - pos >= 4 and data[pos] == 0x62 and data[pos + 1] == 2 and len(others) < CLIENT_MAX:
            others.append(data[pos + 2] << 8 | data[pos + 3])
            pos += 4
        self.unknown_pubrels.note_too(client.client_id, others)

    def _complete(self, client: Client, session: Session, packet_id: int) -> None:
        """A handshake that is not held here is complete: send PUBCOMP, now and for each repetition."""
        ctx = self.ctx
        self.inbound(session).answered(packet_id, ctx.now)
        ctx.arm(session, ctx.now + ctx.await_rel_timeout)
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
        ctx.send_stored(client, ack_frame(0x70, packet_id))

    def _hold(self, client: Client, session: Session, packet_id: int, message: Message) -> None:
        ctx = self.ctx
        inbound = self.inbound(session)
        limit = ctx.max_awaiting_rel
        # The broker behind a bridge does not know this limit, nor perhaps messages held of a session that it has lost.
        if limit != 0 and inbound.held >= limit and client.listener != BRIDGE_LISTENER:
            if client.version == 5:
                raise ProtocolError("more QoS 2 messages than Receive Maximum", Reason.RECEIVE_MAXIMUM_EXCEEDED)
            self._park(session, packet_id, message)
            return
        if inbound.held == 0:
            ctx.arm(session, ctx.now + ctx.await_rel_timeout)
        if ctx.max_queue_bytes != 0 and inbound.bytes + message.size() > ctx.max_queue_bytes:
            raise ProtocolError("too many QoS 2 messages wait for their PUBREL", Reason.QUOTA_EXCEEDED)
        if ctx.audit is not None:
            ctx.audit.identify(message)  # before it is stored
        if self.unknown_pubrels.total != 0:
            self.unknown_pubrels.take(session.client_id, packet_id)  # the packet id stands for a new message
        if client.bridge and message.properties:
            unmark(message)
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
        """A client of 3.x has exceeded ``max_awaiting_rel``, which it cannot know.
        Its PUBREC waits for a free place, and so, before long, does the client. The client must be read all the same:

        1. With a limit of 2 it sends PUBLISH 1 to 5 in one go; 1 and 2 get PUBREC.
        2. It sends PUBREL 1 and 2. They come after PUBLISH 5.
        3. A broker that does not read before a place is free does not read the PUBRELs that free it.

        Parked messages count against ``limits.queue_bytes``; a client that exceeds it is disconnected.
        """
        parked = session.parked
        if parked is None:
            parked = session.parked = Parking()
        parked.add(packet_id, message)
        if self.ctx.max_queue_bytes != 0 and parked.bytes > self.ctx.max_queue_bytes:
            raise ProtocolError("too many messages wait behind unfinished QoS 2 messages", Reason.QUOTA_EXCEEDED)

    def unpark(self, session: Session) -> None:
        """A place is free: the PUBLISH that has waited longest is held and answered."""
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

    def inbound(self, session: Session) -> Inbound:
        inbound = session.inbound
        if inbound is None:
            inbound = session.inbound = Inbound()
        return inbound

    def _release_numbered(self, client: Client, production: Production, message: Message, packet_id: int) -> bool:
        """Whether a QoS 2 message of a producer may be routed. False if it must not be acknowledged: an earlier number
        is missing, or another message had its number."""
        number, digest = production.held.pop(packet_id, (-1, 0))
        verdict = production.judge(number, digest, 2)
        if verdict == NEW:
            if message.offset >= 0:
                message = message.copy()  # the state of the producer is stored in its record
            self.producers.publish(production, number, digest, message)
            self.route(message, client.session)
            return True
        self.ctx.drop("published_again" if verdict == AGAIN else "numbered_wrong", client.client_id)
        return verdict == AGAIN

    def _postpone(self, client: Client, message: Message | None, packet_id: int) -> None:
        """``message`` None: a PUBREL. ``resume`` handles it, and the connection is read again."""
        self.postponed.append((client, message, packet_id))
        self.ctx.halt(client, WORKING)

    def on_pubrels(self, client: Client, session: Session, data: bytes, pos: int, end: int) -> int:
        """Handle a run of PUBRELs that begins at ``pos`` and may go on up to ``end``; the position after it. One with
        anything unusual about it ends the run, and ``on_pubrel`` is to handle it. The PUBCOMPs are one frame."""
        ctx = self.ctx
        inbound = session.inbound
        if (
            inbound is None
            or session.trail is not None
            or session.parked is not None
            or client.production is not None
            or client.max_packet != 0
            or ctx.isolated
            or ctx.catching_up
        ):
            return pos
        recorded = ctx.releasing = ctx.recording and session.expiry != 0
        begin = pos
        try:
            while pos + 4 <= end and data[pos] == 0x62 and data[pos + 1] == 2:
                if ctx.work <= 0 or client.halted != 0 or client.state == CLOSED:
                    break
                packet_id = data[pos + 2] << 8 | data[pos + 3]
                message = inbound.release(packet_id, ctx.now)
                if message is None:
                    break
                self.route(message, session)
                if recorded:
                    ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
                ctx.work -= 1
                pos += 4
        finally:
            ctx.releasing = False
            if pos != begin:
                ctx.send_stored(client, ack_run(0x70, data, begin, pos))
        return pos

    # Answers

    def answer_together(self, client: Client) -> None:
        """From now on the PUBACKs and PUBRECs for this client go into one frame, which ``answer_now`` sends."""
        self._answered = client

    def answered_together(self, client: Client) -> None:
        """All that it has sent is handled."""
        self.answer_now(client)
        self._answered = None

    def answer_now(self, client: Client) -> None:
        """Send the answers so far: another packet of this client is handled next."""
        if len(self._answers) != 0:
            frames = self._answers.getvalue()
            self._answers.truncate(0)
            if client.state != CLOSED:
                self.ctx.send_stored(client, frames)

    def _acknowledge(self, client: Client, first: int, packet_id: int, reason: int) -> None:
        if client is self._answered and client.max_packet == 0:
            answers = self._answers
            if reason != 0 and client.version == 5:
                write_i32_be(answers, first << 24 | 3 << 16 | packet_id)
                answers.append(reason)
            else:
                write_i32_be(answers, first << 24 | 2 << 16 | packet_id)
            return
        if reason != 0 and client.version == 5:
            self.ctx.send_stored(client, bytes((first, 3)) + packet_id_bytes(packet_id) + bytes((reason,)))
        else:
            self.ctx.send_stored(client, ack_frame(first, packet_id))

    # Entry: of clients, of the broker itself, and of other nodes

    def route(self, message: Message, publisher: Session | None) -> int:
        """Route a message with a valid topic. Returns the number of receivers."""
        if message.expired(self.ctx.now):
            self.ctx.drop("expired", message.publisher, 1, message.topic)
            if self.ctx.audit is not None:
                self.ctx.audit.refused(message.publisher, message.topic, message.id, message.qos, "expired")
            return 0
        route = self.router.resolve(message.topic)
        if route.reserved and publisher is not None:
            self.ctx.drop("not_authorized", publisher.client_id, 1, message.topic)
            return 0
        if message.retain:
            judged = self.retained.judge(message, publisher)
            if judged is None:
                return 0
            message = self.retained.stamp(judged)
            if message.retain and self.retained.keep(message) != 0:
                message = self.retained.count_refused(message)
        return self.delivery.fan_out(message, route, publisher)

    def deliver(self, message: Message, group: bytes, source: Session) -> None:
        """A message that entered at the node of ``source``: for the subscribers here, or for one member of
        ``group``."""
        ctx = self.ctx
        if message.expired(ctx.now):
            ctx.drop("expired", message.publisher, 1, message.topic)
            return
        try:
            route = self.router.resolve(message.topic)
        except MqttError:
            ctx.drop("beyond_limits_here", source.client_id)
            return
        if not group:
            if message.retain:
                self.retained.heard(source.node, message)
            if ctx.cluster.interest is not None and ctx.cluster.interest.summarises and not route.wanted_here():
                ctx.counters.forwards_unwanted += 1
                ctx.cluster.interest.note_unwanted(message.topic)
            self.delivery.fan_out(message, route, source)
            if route.sequenced is not None:
                self.streams.arrived(message, route.sequenced, source, not route.has_subscribers_here())
            return
        found = self.router.group(group)
        if found is None:
            ctx.drop("no_group_member", source.client_id)
            if ctx.audit is not None:
                ctx.audit.dropped(GROUP_PREFIX + group[7:].decode(), message, message.qos, "no_group_member")
        else:
            self.groups.arrived(found, message)

    def deliver_returned(self, message: Message, group: bytes, source: Session, settled: int) -> None:
        """The node of ``source`` accepted the message, was removed from the cluster, and has joined again. A session of
        an epoch after ``settled`` may have been at another node when that one was given the same message. At QoS 2 such
        a session does not get it: it could be a duplicate."""
        ctx = self.ctx
        if group or message.qos != 2 or message.expired(ctx.now):
            self.deliver(message, group, source)
            return
        try:
            route = self.router.resolve(message.topic)
        except MqttError:
            ctx.drop("beyond_limits_here", source.client_id)
            return
        if message.retain:
            self.retained.heard(source.node, message)
        kept: list[Subscription] = []
        for subscription in route.subscriptions:
            session = subscription.session
            moved = session.epoch > settled or session.moving is not None
            if subscription.qos == 2 and session.node == 0 and moved and not session.ended:
                self._give_up_returned(session, message)
            else:
                kept.append(subscription)
        others = Route(kept, route.groups, route.streams, route.version, route.reserved)
        others.given_up = route.given_up
        self.delivery.fan_out(message, others, source)
        if route.sequenced is not None:
            self.streams.arrived(message, route.sequenced, source, not route.has_subscribers_here())

    def _give_up_returned(self, session: Session, message: Message) -> None:
        client_id = session.client_id if session.moving is None else session.moving.client_id
        self.ctx.drop(RETURNED, client_id)
        session.dropped += 1
        if self.ctx.audit is not None:
            self.ctx.audit.dropped(client_id, message, 2, RETURNED)
