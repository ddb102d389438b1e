"""Publications of clients: PUBLISH and PUBREL in, acknowledgements out, messages on to their receivers.

The acknowledgement is added to its lane after the message has been routed, so that the writes it stands for precede it
in the same turn. A QoS 2 message is routed at PUBREL, not at PUBLISH: so a handshake that is abandoned and begun again
elsewhere cannot deliver twice.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connection import ASKING, WORKING
from starlingmq.core.context import ISOLATED, PROPERTY_SHIFT, Context
from starlingmq.core.groups.group_engine import GroupEngine
from starlingmq.core.limits.publish_admission import ADMITTED, COUNTED, MEMORY, POSTPONED, RESERVED, STREAM_FULL, admit
from starlingmq.core.limits.publish_admission import ISOLATED as ISOLATED_VERDICT
from starlingmq.core.message import Message
from starlingmq.core.mqtt.bridges import tells_state
from starlingmq.core.mqtt.qos2_receiving import Qos2Receiving
from starlingmq.core.ready import (
    INBOUND_COMPLETED,
    HookAnswer,
    HookQuestion,
    Write,
)
from starlingmq.core.ready import PUBLISH as ASK_PUBLISH
from starlingmq.core.routing.delivery import Delivery
from starlingmq.core.routing.retained_store import RetainedTree
from starlingmq.core.routing.router import Router
from starlingmq.core.session.production import AGAIN, NEW, OTHER, Production
from starlingmq.core.session.session import Client, Session
from starlingmq.wire.mqtt import Publish, decode_publish, packet_id_bytes
from starlingmq.wire.reasons import ProtocolError, Reason

SHORT: Final = 128  # bytes after a fixed header of two
HEARD_FACT: Final = b"heard/"
"""With a node's number: the name of a fact, the sequence of the last message from that node of which nothing else is
stored."""


class Publishing(Qos2Receiving):
    _asked: dict[HookQuestion, int]  # packet id of the PUBLISH that a question is about

    def __init__(
        self, ctx: Context, router: Router, delivery: Delivery, groups: GroupEngine, retained: RetainedTree
    ) -> None:
        super().__init__(ctx, router, delivery, groups, retained)
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
            inbound = session.inbound
            trail = session.trail
            if inbound is not None and inbound.holds(packet.packet_id):
                if trail is None or trail.backlog is None or packet.packet_id not in trail.backlog.deferred:
                    self._acknowledge(client, 0x50, packet.packet_id, 0)  # again; the first message stays
                return
            if first & 8 and trail is not None:
                trail.waits().repeated[packet.packet_id] = None
        if client.production is not None:
            client.production.came(packet.topic, packet.payload, packet.retain)
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
        """The message is not accepted."""
        self.ctx.drop(reason, client.client_id)
        if self.ctx.audit is not None:
            self.ctx.audit.refused(client.client_id, message.topic, message.id, message.qos, reason)

    def _acknowledge_refused(self, client: Client, qos: int, packet_id: int, reason: int) -> None:
        """3.x has no code for a refusal: the client gets the normal acknowledgement [MQTT-3.3.5-2]."""
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
            message = self.retained.stamp(message)
            reason = self.retained.keep(message)
            if reason != 0:
                self.retained.count_refused(message)
                if message.qos == 1 and client.version == 5:
                    self._acknowledge(client, 0x40, packet_id, reason)
                    return
        if production is not None:
            self.producers.publish(production, production.number, production.digest, message)
        # If the client cannot be told that there is no room to retain it, the message is at least delivered.
        found = self.delivery.fan_out(message, route, session, frame)
        if message.qos == 1:
            self._acknowledge(client, 0x40, packet_id, 0 if found != 0 else 0x10)

    def _turn_down(self, client: Client, message: Message, packet_id: int, verdict: int) -> None:
        """Send the refusal of a message in the protocol of MQTT. Raises MqttError to end the connection."""
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
