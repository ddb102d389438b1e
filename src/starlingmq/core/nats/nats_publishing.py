"""PUB and HPUB: a subject becomes a topic, headers become properties, and the message is routed like those of MQTT."""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import PROPERTY_SHIFT, Context
from starlingmq.core.context.ready import BROKER_ONLY, BY_HOOK, HookAnswer, HookQuestion
from starlingmq.core.context.ready import PUBLISH as ASK_PUBLISH
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.jetstream_port import JetStreamPort
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.nats.nats_errors import NatsErrors
from starlingmq.core.nats.no_responders import has_no_receivers, send_no_responders
from starlingmq.core.nats.subject_cache import SubjectCache
from starlingmq.core.nats.system_requests import FOR_MESSAGES, JETSTREAM, USER_INFO, SystemRequests
from starlingmq.core.publish.dead_letters import letter_of
from starlingmq.core.publish.publish_admission import (
    ADMITTED,
    COUNTED,
    ISOLATED,
    MEMORY,
    NOT_STORED,
    POSTPONED,
    RESERVED,
    STREAM_FULL,
    UNCHECKED,
    admit,
)
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.router.contract import Contract
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import ASKING
from starlingmq.core.session.session import BRIDGE_LISTENER, Client, Session
from starlingmq.wire.nats import HPUB, PUB, NatsError, NatsReader
from starlingmq.wire.nats_frames import OK_FRAME
from starlingmq.wire.nats_headers import properties_of
from starlingmq.wire.nats_subjects import DIRECT_GET, subject_of, topic_of, without_filter
from starlingmq.wire.properties import PROPERTIES_MAX
from starlingmq.wire.reasons import MqttError

JETSTREAM_TOPICS: Final = b"$JS/"
API: Final = b"$JS.API."
ACK: Final = b"$JS.ACK."
ACKNOWLEDGEMENTS: Final = (ACK, b"$JS.FC.")
REPLY_PROPERTY: Final = 3  # bytes of the Response Topic beside the topic: the first one of a message's properties

BREAKS: Final = "Payload Breaks A Contract"
WHY: Final[dict[int, str]] = {
    NOT_STORED: "Not Stored",
    MEMORY: "Not Enough Memory",
    RESERVED: "",
    STREAM_FULL: "Stream Is Full",
}


class NatsPublishing:
    ctx: Context
    router: Router
    delivery: Delivery
    publishing: Publishing
    errors: NatsErrors
    spellings: SubjectCache
    system: SystemRequests
    jetstream: JetStreamPort  # set after construction

    def __init__(
        self,
        ctx: Context,
        router: Router,
        delivery: Delivery,
        publishing: Publishing,
        errors: NatsErrors,
        spellings: SubjectCache,
        system: SystemRequests,
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.publishing = publishing
        self.errors = errors
        self.spellings = spellings
        self.system = system
        self.jetstream = JetStreamPort()

    def publish(self, client: Client, nats: NatsClient, reader: NatsReader, kind: int) -> None:
        """Publish what ``reader`` has just read. Raises NatsError."""
        ctx = self.ctx
        session = client.session
        assert session is not None
        ctx.counters.publish_received += 1
        client.published += 1
        ctx.work -= 1
        if self.jetstream.enabled and kind == PUB and self._is_acknowledgement(client, nats, reader):
            return
        topic = self.spellings.topic_of(reader.subject) or topic_of(without_filter(reader.subject))
        properties = b""
        reply = b""
        if reader.reply or kind == HPUB:
            if kind == HPUB and not nats.headers:
                raise NatsError("message headers not supported")
            if reader.reply:
                reply = topic_of(reader.reply)
                if not reply:
                    topic = b""
            ctx.work -= len(reader.headers) >> PROPERTY_SHIFT
            try:
                if reader.headers.count(b"\n") > PROPERTIES_MAX:
                    raise ValueError("too many headers")
                properties = properties_of(reader.headers, reply)
            except ValueError:
                self.errors.may_not_publish(client, reader.subject, "bad_headers", "Invalid Message Headers")
                return
        if not topic:
            self.errors.no_topic(client, nats.pedantic, reader.subject)
            return
        message = Message(topic, reader.payload, 0, False, properties, 0.0, session.client_id, ctx.now)
        rights = client.rights
        if (
            rights is not None
            and not rights.may_publish(topic, 0, False)
            and topic != USER_INFO
            and not nats.may_reply(client, topic)
        ):
            self.errors.may_not_publish(client, reader.subject, "not_authorized")
            return
        if (
            topic.startswith(JETSTREAM_TOPICS)
            and self.jetstream.enabled
            and self._is_for_jetstream(client, nats, topic, reader, reply)
        ):
            return
        if ctx.ask_publish:
            nats.reply = reply
            question = HookQuestion(ASK_PUBLISH, client)
            question.message = message
            ctx.ready.questions.append(question)
            ctx.halt(client, ASKING)
            return
        self._route(client, nats, session, message, reply)

    def _is_acknowledgement(self, client: Client, nats: NatsClient, reader: NatsReader) -> bool:
        """Whether it is one for a consumer here: they are many, and each has a subject of its own, which is not
        translated."""
        ctx = self.ctx
        if client.rights is not None or ctx.ask_publish or ctx.isolated or not reader.subject.startswith(ACK):
            return False
        reply = topic_of(reader.reply) if reader.reply else b""
        if not self.jetstream.acknowledge(client, nats, reader.subject, reader.payload, reply):
            return False
        nats.ok(client)
        return True

    def _is_for_jetstream(
        self, client: Client, nats: NatsClient, topic: bytes, reader: NatsReader, reply: bytes
    ) -> bool:
        """Whether JetStream here takes an acknowledgement or a request. Requests that a bridge passes on are not for
        it."""
        subject = reader.subject
        taken = False
        if self.ctx.isolated:  # another node may serve the streams of this one
            self.errors.isolated(client)
            return True
        if subject.startswith(ACKNOWLEDGEMENTS):
            taken = self.jetstream.acknowledge(client, nats, subject, reader.payload, reply)
        elif subject.startswith(API):
            if not self._is_passed_on(topic):
                taken = self.jetstream.request(client, nats, subject, reader.headers, reader.payload, reply)
            elif subject.startswith(DIRECT_GET) and not self.spellings.topic_of(subject):
                # The topic that would be passed on asks for something else.
                self.errors.no_topic(client, nats.pedantic, subject)
                return True
        if taken:
            nats.ok(client)
        return taken

    def _is_passed_on(self, topic: bytes) -> bool:
        try:
            route = self.router.resolve(topic)
        except MqttError:
            return False
        for subscription in route.subscriptions:
            client = subscription.session.client
            if client is not None and client.listener == BRIDGE_LISTENER:
                return True
        return False

    def answered(
        self, client: Client, nats: NatsClient, session: Session, question: HookQuestion, answer: HookAnswer
    ) -> None:
        """The answer of hooks about a message."""
        asked = question.message
        assert asked is not None
        if answer.reason >= 0x80:
            self.errors.may_not_publish(client, subject_of(asked.topic), "not_authorized", detail=BY_HOOK)
        elif answer.message is None:
            self.ctx.drop("hook", client.client_id)
            nats.ok(client)
        else:
            self._route(client, nats, session, answer.message, nats.reply)

    def _route(self, client: Client, nats: NatsClient, session: Session, message: Message, reply: bytes) -> None:
        """Route a message, and tell a client that wants to know."""
        ctx = self.ctx
        try:
            route = self.router.resolve(message.topic)
        except MqttError:
            self.errors.no_topic(client, nats.pedantic, subject_of(message.topic))
            return
        verdict = admit(ctx, route, route.kept)
        if verdict == UNCHECKED:
            contract = route.contract
            broken = "" if contract is None else contract.broken_by(message)
            if contract is not None and broken:
                self._breaks(client, nats, message, contract, broken)
                if reply and route.sequenced is not None and not contract.letters:
                    self.jetstream.turned_down(client, nats, route.sequenced, reply, BREAKS)
                return
        elif verdict != ADMITTED and verdict != POSTPONED:  # ``Nats.handle`` has waited if it was POSTPONED
            if not route.reserved or not self.system.take(client, nats, message, reply):
                self._turn_down(client, message, verdict)
                if reply and route.sequenced is not None:
                    self.jetstream.turned_down(client, nats, route.sequenced, reply, WHY.get(verdict, ""))
            return
        if route.kept:  # a receiver wants QoS 1: the message is stored for receivers that are stored
            message.qos = 1
            nats.keeps = True
        if nats.verbose:  # before output that the message causes, which may be a MSG for this client
            if message.qos != 0:
                ctx.send_stored(client, OK_FRAME)
            else:
                ctx.send(client, OK_FRAME)
        asks = reply != b"" and (nats.no_responders or message.topic.startswith(JETSTREAM))
        if asks and has_no_receivers(route, None if nats.echo else session):
            self._say_that_nothing_answers(client, nats, message.topic, reply)
            return
        sequenced = route.sequenced
        if sequenced is not None and reply and len(route.subscriptions) + len(route.groups) == 0:
            message.properties = message.properties[
                REPLY_PROPERTY + len(reply) :
            ]  # for the stream alone, which answers
            message.octets -= REPLY_PROPERTY + len(reply)
        if message.retain:  # set by a hook
            found = self.publishing.route(message, session)
        else:
            found = self.delivery.fan_out(message, route, session)
        if sequenced is not None:
            if reply:
                self.jetstream.published(client, nats, sequenced, reply)
            return
        if asks and found == len(route.streams):  # a stream does not answer
            self._say_that_nothing_answers(client, nats, message.topic, reply)

    def _say_that_nothing_answers(self, client: Client, nats: NatsClient, topic: bytes, reply: bytes) -> None:
        if topic.startswith(JETSTREAM) and not topic.startswith(FOR_MESSAGES):
            self.system.refuse_jetstream(client, topic, reply)
        elif nats.no_responders:
            send_no_responders(self.ctx, self.router, client, reply)

    def _breaks(self, client: Client, nats: NatsClient, message: Message, contract: Contract, why: str) -> None:
        """The payload breaks the contract of its topic."""
        if contract.letters:
            self.ctx.drop("contract", client.client_id, 1, message.topic)
            self.publishing.route(letter_of(message, contract, why, self.ctx.now), None)
            nats.ok(client)
        else:
            self.errors.may_not_publish(client, subject_of(message.topic), "contract", BREAKS, why)

    def _turn_down(self, client: Client, message: Message, verdict: int) -> None:
        """Send the refusal of a message in the protocol of NATS."""
        if verdict == ISOLATED:
            self.errors.isolated(client)
        else:
            subject, counted = subject_of(message.topic), COUNTED[verdict]
            self.errors.may_not_publish(client, subject, counted, WHY[verdict], BROKER_ONLY)
