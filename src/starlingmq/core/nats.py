"""What NATS clients ask of the broker: CONNECT, PUB, SUB and the rest, on the same topics, routes and stores as MQTT.

At most once, as NATS has it: a message goes to who is connected. Whoever asked MQTT for more gets more. If some MQTT
subscription wants QoS 1, the message is published as QoS 1: kept for sessions that are away, and stored before ``+OK``
or the PONG of a flush says so. If nobody does, it is QoS 0 and no store hears of it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from starlingmq.config_nats import NatsConfig
from starlingmq.core.client import ASKING, AUTHENTICATING, CLOSED, NEW, OPEN, TURN_OVER, WORKING, Client
from starlingmq.core.connecting import Connecting
from starlingmq.core.context import ISOLATED, Context
from starlingmq.core.delivery import Delivery
from starlingmq.core.job import Job
from starlingmq.core.message import Message
from starlingmq.core.nats_client import NOT_STORED, NatsClient, NatsSubscription
from starlingmq.core.publishing import Publishing
from starlingmq.core.ready import AUTHENTICATE, Answer, Question
from starlingmq.core.ready import PUBLISH as ASK_PUBLISH
from starlingmq.core.ready import SUBSCRIBE as ASK_SUBSCRIBE
from starlingmq.core.router import Route, Router
from starlingmq.core.session import NATS_PREFIX, Session
from starlingmq.core.spellings import Spellings
from starlingmq.core.subscribing import HeldSuback, Subscribing
from starlingmq.core.topics import levels, valid_filter
from starlingmq.wire.mqtt import Connect, Subscribe, SubscribeRequest
from starlingmq.wire.nats import CONNECT, HPUB, MORE, PARSER_ERROR, PING, PONG, PUB, SUB, NatsError, NatsReader
from starlingmq.wire.nats_frames import (
    NO_RESPONDERS,
    OK_FRAME,
    PING_FRAME,
    PONG_FRAME,
    error_frame,
    info_frame,
    message_head,
    message_tail,
)
from starlingmq.wire.nats_headers import properties_of
from starlingmq.wire.nats_subjects import filter_of, subject_of, topic_of
from starlingmq.wire.reasons import ProtocolError, Reason

LISTENERS: Final = ("nats://", "tls://", "nats+ws://", "nats+wss://")
PROTOCOL: Final = 1  # clients may be sent INFO at any time

AUTHORIZATION_VIOLATION: Final = "Authorization Violation"
INVALID_SUBJECT: Final = "Invalid Subject"
INVALID_PUBLISH_SUBJECT: Final = "Invalid Publish Subject"

# Why a connection ends that MQTT would end too.
_WORDS: Final[dict[int, str]] = {
    Reason.NOT_AUTHORIZED: AUTHORIZATION_VIOLATION,
    Reason.SERVER_BUSY: "Maximum Connections Exceeded",
    Reason.KEEP_ALIVE_TIMEOUT: "Stale Connection",
    Reason.MAXIMUM_CONNECT_TIME: "Authentication Timeout",
    Reason.SERVER_UNAVAILABLE: "Node Is Isolated",
    Reason.QUOTA_EXCEEDED: NOT_STORED,
}
LEAVING: Final = (Reason.SERVER_SHUTTING_DOWN, Reason.USE_ANOTHER_SERVER)

SUBSCRIPTIONS_PER_TURN: Final = 1000  # of a connection that is over


class LeaveJob(Job):
    """The subscriptions of a connection that is over, taken out of the tree some a turn."""

    owner: Nats
    left: list[NatsSubscription]

    def __init__(self, owner: Nats, left: list[NatsSubscription]) -> None:
        self.owner = owner
        self.left = left

    def step(self) -> bool:
        for _ in range(min(SUBSCRIPTIONS_PER_TURN, len(self.left))):
            self.owner.forget(self.left.pop())
        return not self.left


class Nats:
    """``server_name`` and ``version`` are told in INFO; ``server_id`` is made from the broker's secret."""

    ctx: Context
    router: Router
    delivery: Delivery
    publishing: Publishing
    subscribing: Subscribing
    connecting: Connecting
    config: NatsConfig
    reader: NatsReader
    spellings: Spellings
    server_id: str
    server_name: str
    version: str
    waiting: list[Client]  # published while the routes of a node that has come are not all here yet
    _connections: int

    def __init__(
        self,
        ctx: Context,
        router: Router,
        delivery: Delivery,
        publishing: Publishing,
        subscribing: Subscribing,
        connecting: Connecting,
        config: NatsConfig,
        secret: bytes,
        version: str,
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.publishing = publishing
        self.subscribing = subscribing
        self.connecting = connecting
        self.reader = NatsReader()
        self.spellings = Spellings()
        self.server_id = hashlib.blake2b(b"nats", key=secret[:64], digest_size=16).hexdigest().upper()
        self.server_name = ""
        self.version = version
        self.waiting = []
        self._connections = 0
        self.configure(config)

    def configure(self, config: NatsConfig) -> None:
        self.config = config
        self.reader.line_max = config.max_control_line
        self.reader.payload_max = config.max_payload

    # A connection begins

    def open(self, client: Client) -> None:
        """The server speaks first."""
        self._connections += 1
        nats = NatsClient(self, self._connections, client.listener.startswith("tls://"))
        client.dialect = nats
        client.plain = False
        client.version = 0
        client.client_id = NATS_PREFIX + str(self._connections)
        self.ctx.send(client, self._info(client, nats, False))

    def _info(self, client: Client, nats: NatsClient, leaving: bool) -> bytes:
        ctx = self.ctx
        host, _, port = client.listener.partition("://")[2].partition("/")[0].rpartition(":")
        fields: dict[str, object] = {
            "server_id": self.server_id,
            "server_name": self.server_name or self.server_id,
            "version": self.version,
            "proto": PROTOCOL,
            "host": host.strip("[]"),
            "port": int(port) if port.isdigit() else 0,
            "headers": True,
            "max_payload": self.config.max_payload,
            "client_id": nats.number,
            "client_ip": client.peer.rpartition(":")[0].strip("[]"),
        }
        if ctx.ask_authenticate or not ctx.allow_anonymous:
            fields["auth_required"] = True
        if nats.tls:
            fields["tls_required"] = True
        if self.config.connect_urls:
            fields["connect_urls"] = list(self.config.connect_urls)
        if leaving:
            fields["ldm"] = True
        return info_frame(fields)

    # Commands

    def handle(self, client: Client, nats: NatsClient, data: bytes) -> None:
        ctx = self.ctx
        reader = self.reader
        size = len(data)
        pos = 0
        client.last_packet = ctx.now
        nats.heard(client)
        try:
            while pos < size:
                kind = reader.read(data, pos)
                if client.state == NEW and kind != CONNECT and (kind != MORE or reader.missing != 0):
                    self._come_in_unasked(client, nats)
                    if client.state == CLOSED:
                        return
                if kind == MORE:
                    if reader.missing != 0:
                        client.chunks = [data[pos:] if pos else data]
                        client.missing = reader.missing
                        return
                    break
                if kind == PUB or kind == HPUB:  # noqa: SIM109  a tuple would be made and searched
                    if ctx.catching_up:
                        self.waiting.append(client)
                        ctx.halt(client, WORKING)
                        break
                    pos = reader.end
                    self._publish(client, nats, kind)
                else:
                    pos = reader.end
                    ctx.work -= 1
                    self._on_command(client, nats, kind)
                if ctx.work <= 0:
                    ctx.halt(client, TURN_OVER)
                    ctx.resumable.append(client)
                if client.halted != 0 or client.state == CLOSED:
                    break
        except NatsError as error:
            self._fail(client, error.text)
        if client.state != CLOSED and pos != size:
            client.rest = data[pos:] + client.rest

    def _on_command(self, client: Client, nats: NatsClient, kind: int) -> None:
        reader = self.reader
        if kind == PING:
            self._flush(client, nats)
        elif kind == SUB:
            self._subscribe(client, nats, reader.subject, reader.queue, reader.sid)
        elif kind == CONNECT:
            self._connect(client, nats, reader.options)
        elif kind != PONG:
            sub = nats.subscriptions.get(reader.sid)
            if sub is not None:
                sub.limit = reader.number
                if sub.limit <= sub.count:
                    self.unsubscribe(nats, sub)
            self._ok(client, nats)

    def _ok(self, client: Client, nats: NatsClient) -> None:
        if nats.verbose:
            self.ctx.send(client, OK_FRAME)

    def _say(self, client: Client, text: str) -> None:
        """An error after which the connection goes on."""
        self.ctx.counters.error("nats")
        self.ctx.send(client, error_frame(text))

    def _fail(self, client: Client, text: str) -> None:
        """An error that ends the connection."""
        if client.state == CLOSED:
            return
        self.ctx.notice("nats", client, text)
        self.ctx.send(client, error_frame(text))
        self.connecting.close(client, text)

    def _flush(self, client: Client, nats: NatsClient) -> None:
        """PING: what came before it holds when PONG is sent: stored what is stored, known what was subscribed to."""
        if nats.unsettled:
            self._settle(client, nats, PONG_FRAME)
        elif nats.keeps:
            nats.keeps = False
            self.ctx.send_stored(client, PONG_FRAME)
        else:
            self.ctx.send(client, PONG_FRAME)

    # CONNECT

    def _come_in_unasked(self, client: Client, nats: NatsClient) -> None:
        """A first command without CONNECT: good enough where nobody is asked who they are."""
        if self.ctx.ask_authenticate or not self.ctx.allow_anonymous:
            self._fail(client, AUTHORIZATION_VIOLATION)
        else:
            self._accept(client, nats)

    def _connect(self, client: Client, nats: NatsClient, text: bytes) -> None:
        try:
            options = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            raise NatsError(PARSER_ERROR) from None
        if not isinstance(options, dict):
            raise NatsError(PARSER_ERROR)
        nats.verbose = options.get("verbose") is True
        nats.echo = options.get("echo") is not False
        nats.headers = options.get("headers") is True
        nats.no_responders = options.get("no_responders") is True
        if nats.no_responders and not nats.headers:
            raise NatsError("no responders requires headers support")
        if client.state != NEW:
            self._ok(client, nats)
            return
        user = _text(options, "user")
        password = _text(options, "pass")
        if password is None:
            password = _text(options, "auth_token")
        client.state = AUTHENTICATING
        client.username = client.certificate_name if client.identity else user or ""
        if self.ctx.ask_authenticate:
            question = Question(AUTHENTICATE, client)
            question.connect = Connect(
                5, client.client_id, True, 0, user, None if password is None else password.encode()
            )
            self.ctx.ready.questions.append(question)
            self.ctx.halt(client, ASKING)
        elif not self.ctx.allow_anonymous:
            self._fail(client, AUTHORIZATION_VIOLATION)
        else:
            self._accept(client, nats)
            self._ok(client, nats)

    def _accept(self, client: Client, nats: NatsClient) -> None:
        ctx = self.ctx
        if ctx.isolated:
            self.connecting.fail(client, Reason.SERVER_UNAVAILABLE, ISOLATED)
            return
        session = Session(client.client_id, ctx.next_number)
        ctx.next_number += 1
        ctx.sessions[client.client_id] = session
        session.client = client
        client.session = session
        client.state = OPEN
        client.keep_alive = self.config.ping_interval
        self.connecting.watch(client)
        ctx.counters.clients_connected += 1
        ctx.event("connected", client.client_id, client.peer)

    # Hooks

    def answered(self, client: Client, nats: NatsClient, question: Question, answer: Answer) -> None:
        self.ctx.unhalt(client, ASKING)
        if question.kind == AUTHENTICATE:
            if client.state != AUTHENTICATING:
                return
            if answer.username is not None:
                client.username = answer.username
            if answer.reason != 0:
                self._fail(client, AUTHORIZATION_VIOLATION)
                return
            self._accept(client, nats)
            if client.state == OPEN:
                self._ok(client, nats)
            return
        session = client.session
        if session is None or session.client is not client:
            return
        if question.kind == ASK_PUBLISH:
            asked = question.message
            assert asked is not None
            if answer.reason >= 0x80:
                self._may_not_publish(client, subject_of(asked.topic))
            elif answer.message is None:
                self.ctx.drop("hook", client.client_id)
                self._ok(client, nats)
            else:
                self._route(client, nats, session, answer.message, nats.reply)
            return
        sub = nats.waiting
        nats.waiting = None
        if sub is None:
            return
        denied = answer.reasons[0] if answer.reasons else answer.reason
        if denied >= 0x80:
            self._may_not_subscribe(client, sub.subject)
        else:
            self._take_in(client, nats, sub)

    def _may_not_publish(self, client: Client, subject: bytes) -> None:
        self.ctx.drop("not_authorized", client.client_id)
        self._say(client, f'Permissions Violation for Publish to "{subject.decode()}"')

    def _may_not_subscribe(self, client: Client, subject: bytes) -> None:
        self._say(client, f'Permissions Violation for Subscription to "{subject.decode()}"')

    # PUB, HPUB

    def _publish(self, client: Client, nats: NatsClient, kind: int) -> None:
        ctx = self.ctx
        reader = self.reader
        session = client.session
        assert session is not None
        ctx.counters.publish_received += 1
        ctx.work -= 1
        topic = self.spellings.topic_of(reader.subject)
        properties = b""
        reply = b""
        if reader.reply or kind == HPUB:
            if kind == HPUB and not nats.headers:
                raise NatsError("message headers not supported")
            if reader.reply:
                reply = topic_of(reader.reply)
                if not reply:
                    topic = b""
            try:
                properties = properties_of(reader.headers, reply)
            except ValueError:
                ctx.drop("bad_headers", client.client_id)
                self._say(client, "Invalid Message Headers")
                return
        if not topic:
            ctx.drop("no_topic", client.client_id)
            self._say(client, INVALID_PUBLISH_SUBJECT)
            return
        message = Message(topic, reader.payload, 0, False, properties, 0.0, session.client_id, ctx.now)
        if ctx.ask_publish:
            nats.reply = reply
            question = Question(ASK_PUBLISH, client)
            question.message = message
            ctx.ready.questions.append(question)
            ctx.halt(client, ASKING)
            return
        self._route(client, nats, session, message, reply)

    def _route(self, client: Client, nats: NatsClient, session: Session, message: Message, reply: bytes) -> None:
        """Send a message on its way, and tell who asks for it."""
        ctx = self.ctx
        try:
            route = self.router.resolve(message.topic)
        except ProtocolError:
            ctx.drop("no_topic", client.client_id)
            self._say(client, INVALID_PUBLISH_SUBJECT)
            return
        if route.reserved:
            self._may_not_publish(client, subject_of(message.topic))
            return
        if route.kept and not self._keep(client, nats, message, route):
            return
        if message.retain:  # a hook made it so
            found = self.publishing.route(message, session)
        else:
            found = self.delivery.fan_out(message, route, session)
        if found == 0 and reply and nats.no_responders:
            self._no_responders(client, session, reply)
        if nats.verbose:
            if message.qos != 0:
                ctx.send_stored(client, OK_FRAME)
            else:
                ctx.send(client, OK_FRAME)

    def _keep(self, client: Client, nats: NatsClient, message: Message, route: Route) -> bool:
        """Somebody wants the message at QoS 1: have it stored for who wants it kept; False if that can not be now."""
        ctx = self.ctx
        if ctx.isolated:
            self.connecting.fail(client, Reason.SERVER_UNAVAILABLE, ISOLATED)
            return False
        if ctx.refusing or (ctx.full_peers != 0 and self.publishing.too_much_waits(route)):
            ctx.drop("storage_failing", client.client_id)
            self._say(client, NOT_STORED)
            return False
        message.qos = 1
        nats.keeps = True
        return True

    def _no_responders(self, client: Client, session: Session, reply: bytes) -> None:
        """Tell a requester at once that nobody will answer."""
        for subscription in self.router.resolve(reply).subscriptions:
            if subscription.session is session and isinstance(subscription, NatsSubscription):
                head = b"H" + message_head(subject_of(reply))
                tail = message_tail(b"", NO_RESPONDERS, b"")
                self.ctx.send(client, b"%b%b%b" % (head, subscription.sid, tail))
                return

    # SUB, UNSUB

    def _subscribe(self, client: Client, nats: NatsClient, subject: bytes, name: bytes, sid: bytes) -> None:
        ctx = self.ctx
        session = client.session
        assert session is not None
        if sid in nats.subscriptions:  # as a NATS server has it: the first stands
            self._ok(client, nats)
            return
        filter = filter_of(subject)
        limits = ctx.limits
        if (
            not filter
            or filter.startswith(b"$share/")
            or not _may_name_a_group(name)
            or len(filter) > limits.max_topic_length
            or levels(filter) > limits.topic_levels
        ):
            self._say(client, INVALID_SUBJECT)
            return
        if limits.subscriptions_per_client != 0 and len(nats.subscriptions) >= limits.subscriptions_per_client:
            raise NatsError("Maximum Subscriptions Exceeded")
        if ctx.isolated:
            self.connecting.fail(client, Reason.SERVER_UNAVAILABLE, ISOLATED)
            return
        if name:
            session = Session(f"{client.client_id}/{sid.decode('latin-1')}", ctx.next_number)
            session.client = client
        sub = NatsSubscription(session, filter, subject, name, sid)
        if ctx.ask_subscribe:
            nats.waiting = sub
            question = Question(ASK_SUBSCRIBE, client)
            question.requests = [SubscribeRequest(sub.whole())]
            ctx.ready.questions.append(question)
            ctx.halt(client, ASKING)
            return
        self._take_in(client, nats, sub)

    def _take_in(self, client: Client, nats: NatsClient, sub: NatsSubscription) -> None:
        ctx = self.ctx
        nats.subscriptions[sub.sid] = sub
        if sub.name:
            self.router.join(sub.name, sub)
        else:
            self.router.subscribe(sub)
        ctx.event("subscribed", client.client_id, sub.whole().decode(errors="replace"))
        self.subscribing.count(sub.whole(), sub.session, None, sub)
        if ctx.interest is not None:
            nats.unsettled = True
            if nats.verbose:
                self._settle(client, nats, OK_FRAME)
        else:
            self._ok(client, nats)

    def unsubscribe(self, nats: NatsClient, sub: NatsSubscription) -> None:
        nats.subscriptions.pop(sub.sid, None)
        self.forget(sub)

    def forget(self, sub: NatsSubscription) -> None:
        session = sub.session
        if sub.name:
            session.ended = True
            self.router.leave(sub.name, sub.filter, session)
        else:
            self.router.unsubscribe(sub.filter, sub)
        self.subscribing.count(sub.whole(), session, sub, None)
        self.ctx.event("unsubscribed", session.client_id, sub.whole().decode(errors="replace"))

    def _settle(self, client: Client, nats: NatsClient, frame: bytes) -> None:
        """Say ``frame`` when every node that may be publishing knows what is subscribed to here."""
        session = client.session
        assert session is not None
        nats.wait(client, frame)
        self.subscribing.held.append(HeldSuback(client, session, Subscribe(0, []), [0], []))

    def settled(self, client: Client, nats: NatsClient, known: bool) -> None:
        if not known:
            self._fail(client, "Subscriptions Could Not Be Made Known")
            return
        if nats.keeps and nats.owed == PONG_FRAME:
            nats.keeps = False
            self.ctx.send_stored(client, nats.owed)
        else:
            self.ctx.send(client, nats.owed)
        nats.owed = b""
        self.ctx.unhalt(client, WORKING)

    # Time, slow clients, the end

    def caught_up(self) -> None:
        """All routes are here: what was to be published meanwhile is published now."""
        waiting = self.waiting
        self.waiting = []
        for client in waiting:
            self.ctx.unhalt(client, WORKING)

    def ping(self, client: Client, nats: NatsClient) -> None:
        nats.pings_out += 1
        client.keep_alive += self.config.ping_interval  # from the last sign of life
        self.ctx.send(client, PING_FRAME)

    def slow(self, client: Client, nats: NatsClient, size: int, publisher: Session | None) -> None:
        """A client takes less than it is sent: hold who sends for a while, then give it up.

        What waits for it is in the transport, and as large as the queue of an MQTT client may be.
        """
        ctx = self.ctx
        if client.blocked:
            nats.pending += size
        limit = ctx.max_queue_bytes
        waits = max(client.size, nats.pending)
        if limit == 0 or waits <= limit // 2:
            return
        if waits > limit:
            ctx.drop("slow_consumer", client.client_id)
            self._fail(client, "Slow Consumer")
        elif publisher is not None and client.session is not None:
            self.delivery.hold(client.session, publisher)

    def last_words(self, client: Client, nats: NatsClient, reason: int) -> None:
        if reason in LEAVING:
            self.ctx.send(client, self._info(client, nats, True))
        else:
            self.ctx.send(client, error_frame(_WORDS.get(reason, "Server Error")))

    def shut(self, nats: NatsClient) -> None:
        left = list(nats.subscriptions.values())
        nats.subscriptions = {}
        for sub in left:
            if sub.name:  # before the others of its group are chosen from
                sub.session.ended = True
                sub.session.client = None
        job = LeaveJob(self, left)
        if not job.step():
            self.ctx.jobs.append(job)


def _may_name_a_group(name: bytes) -> bool:
    """Whether MQTT clients can be members of it too; no name is no group."""
    return not name or (valid_filter(name) and len(name.translate(None, b"/+#")) == len(name))


def _text(options: dict[str, object], name: str) -> str | None:
    value = options.get(name)
    return value if isinstance(value, str) else None
