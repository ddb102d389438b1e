"""Commands of NATS clients: CONNECT, PUB, SUB and the rest, on the same topics, routes and stores as MQTT. Delivery is
at most once, as in NATS: connected clients get a message. MQTT subscriptions may ask for more: if one of them wants QoS
1, the message is published as QoS 1: kept for disconnected sessions, and stored before ``+OK`` or the PONG of a flush
confirms it. Otherwise it is QoS 0, and not stored."""

from __future__ import annotations

from typing import Final, cast

from starlingmq.config.nats_section import NatsConfig
from starlingmq.core.connect.connecting import Connecting
from starlingmq.core.connect.deadlines import Deadlines
from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import HEAVY, SEQUENCE_SHIFT, Context
from starlingmq.core.context.ready import AUTHENTICATE, HookAnswer, HookQuestion
from starlingmq.core.context.ready import PUBLISH as ASK_PUBLISH
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.nats.jetstream_port import JetStreamPort
from starlingmq.core.nats.lame_duck import LameDuck
from starlingmq.core.nats.nats_client import NatsClient, NatsPort, NatsSubscription
from starlingmq.core.nats.nats_connecting import NatsConnecting
from starlingmq.core.nats.nats_errors import WORDS, NatsErrors
from starlingmq.core.nats.nats_publishing import NatsPublishing
from starlingmq.core.nats.nats_subscribing import NatsSubscribing
from starlingmq.core.nats.nkey_auth import NkeyAuth
from starlingmq.core.nats.publish_runs import PublishRuns
from starlingmq.core.nats.server_info import ServerInfo
from starlingmq.core.nats.subject_cache import SubjectCache
from starlingmq.core.nats.system_requests import SystemRequests
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import ASKING, CLOSED, NEW, OPEN, WORKING
from starlingmq.core.session.session import NATS_PREFIX, Client, Session
from starlingmq.core.subscribe.subscribing import FILTER_WORK, Subscribing
from starlingmq.core.turn.job import Job
from starlingmq.wire.nats import CONNECT, HPUB, LINE_TOO_LONG, MORE, PING, PONG, PUB, SUB, NatsError, NatsReader
from starlingmq.wire.nats_frames import PING_FRAME, PONG_FRAME, error_frame
from starlingmq.wire.reasons import Reason

LISTENERS: Final = ("nats://", "tls://", "nats+ws://", "nats+wss://")
INFOS_PER_TURN: Final = 1000  # to connected clients
LEAVING: Final = (Reason.SERVER_SHUTTING_DOWN, Reason.USE_ANOTHER_SERVER)


class SendInfoJob(Job):
    """Sends INFO again to the clients of ``left``, some per turn."""

    owner: Nats
    left: list[Client]

    def __init__(self, owner: Nats, left: list[Client]) -> None:
        self.owner = owner
        self.left = left

    def step(self) -> bool:
        for _ in range(min(INFOS_PER_TURN, len(self.left))):
            self.owner.send_info(self.left.pop())
        return not self.left


class Nats(NatsPort):
    """All NATS connections of a broker. NatsClient has the state of one of them."""

    ending: Ending
    reader: NatsReader
    keys: NkeyAuth
    info: ServerInfo
    errors: NatsErrors
    entry: NatsConnecting
    system: SystemRequests
    publishing: NatsPublishing
    runs: PublishRuns
    subscribing: NatsSubscribing
    leaving: LameDuck
    clients: dict[int, Client]  # by the number of the connection, the oldest first
    jetstream: JetStreamPort  # set after construction
    waiting: list[Client]  # they published while the routes of a new node are incomplete
    _connections: int
    _sending_info: SendInfoJob | None  # the present job

    def __init__(
        self,
        ctx: Context,
        router: Router,
        delivery: Delivery,
        publishing: Publishing,
        subscribing: Subscribing,
        connecting: Connecting,
        ending: Ending,
        deadlines: Deadlines,
        config: NatsConfig,
        secret: bytes,
        version: str,
    ) -> None:
        self.ctx = ctx
        self.delivery = delivery
        self.ending = ending
        self.reader = NatsReader()
        self.spellings = SubjectCache()
        self.keys = NkeyAuth(secret)
        self.info = ServerInfo(ctx, self.keys, config, secret, version)
        self.errors = NatsErrors(ctx, ending)
        self.entry = NatsConnecting(ctx, connecting, ending, deadlines, self.errors, self.keys, config)
        self.system = SystemRequests(ctx, router)
        self.publishing = NatsPublishing(ctx, router, delivery, publishing, self.errors, self.spellings, self.system)
        self.runs = PublishRuns(ctx, router, self.spellings)
        self.subscribing = NatsSubscribing(ctx, router, subscribing, self.errors)
        self.clients = {}
        self.leaving = LameDuck(ctx, ending, self.clients, self.send_info_to_all)
        self.waiting = []
        self.jetstream = JetStreamPort()
        self._connections = 0
        self._sending_info = None
        self.config = config
        self.configure(config)

    def configure(self, config: NatsConfig) -> None:
        news = config.connect_urls != self.config.connect_urls
        self.config = config
        self.info.config = config
        self.entry.config = config
        self.keys.configure(config.nkeys)
        self.reader.line_max = config.max_control_line
        self.reader.payload_max = config.max_payload
        if news:
            self.send_info_to_all()

    def open(self, client: Client) -> None:
        """A connection begins: the server speaks first."""
        self._connections += 1
        nats = NatsClient(self, self._connections, client.listener.startswith("tls://"))
        client.protocol_handler = nats
        client.plain = False
        client.version = 0
        client.client_id = NATS_PREFIX + str(self._connections)
        if self.ctx.sequence != 0:  # in a cluster: no answer of before a restart is for another connection
            client.client_id += f".{self.ctx.sequence >> SEQUENCE_SHIFT}"
        self.clients[nats.number] = client
        self.ctx.send(client, self.info.frame(client, nats, self.leaving.begun))

    # Other nodes, and leaving

    def reach(self, own: tuple[str, ...], others: list[str]) -> None:
        """Set the URLs of listeners at which clients reach this node and the others. Clients are told of changes."""
        if self.info.reach(own, others, self.leaving.begun):
            self.send_info_to_all()

    def send_info_to_all(self) -> None:
        left = list(self.clients.values())
        left.reverse()
        job = self._sending_info
        if job is not None and job.left:
            job.left = left
            return
        job = self._sending_info = SendInfoJob(self, left)
        if not job.step():
            self.ctx.jobs.append(job)

    def send_info(self, client: Client) -> None:
        nats = cast(NatsClient, client.protocol_handler)
        if nats.protocol != 0 and client.state == OPEN:
            self.ctx.send(client, self.info.frame(client, nats, self.leaving.begun))

    # Commands

    def handle(self, client: Client, nats: NatsClient, data: bytes) -> None:
        ctx = self.ctx
        reader = self.reader
        size = len(data)
        pos = 0
        before = ctx.work
        client.last_packet = ctx.now
        nats.input_received(client)
        try:
            while pos < size:
                kind = reader.read(data, pos)
                if client.state == NEW and kind != CONNECT and (kind != MORE or reader.missing != 0):
                    self.entry.admit_without_connect(client, nats)
                    if client.state == CLOSED:
                        return
                if kind == MORE:
                    if reader.missing != 0:
                        client.chunks = [data[pos:] if pos else data]
                        client.missing = reader.missing
                        return
                    if client.state == NEW and size - pos > ctx.connect_size:
                        raise NatsError(LINE_TOO_LONG)
                    break
                if kind == PUB or kind == HPUB:  # noqa: SIM109  a tuple would be made and searched
                    if ctx.catching_up:
                        self.waiting.append(client)
                        ctx.halt(client, WORKING)
                        break
                    if reader.lead == 0 or not self.runs.publish(client, nats, reader, data, pos):
                        self.publishing.publish(client, nats, reader, kind)
                    pos = reader.end
                else:
                    pos = reader.end
                    ctx.work -= 1
                    self._on_command(client, nats, kind)
                if ctx.work <= 0:
                    client.heavy = before - ctx.work >= HEAVY
                    if pos != size:
                        ctx.turn_over(client)
                if client.halted != 0 or client.state == CLOSED:
                    break
        except NatsError as error:
            self.errors.fail(client, error.text)
        if client.state != CLOSED and pos != size:
            client.rest = data[pos:] + client.rest

    def _on_command(self, client: Client, nats: NatsClient, kind: int) -> None:
        ctx = self.ctx
        reader = self.reader
        if kind == PING:
            self._flush(client, nats)
        elif kind == SUB:
            ctx.work -= FILTER_WORK
            self.subscribing.subscribe(client, nats, reader.subject, reader.queue, reader.sid)
        elif kind == CONNECT:
            self.entry.connect(client, nats, reader.options)
        elif kind != PONG:
            ctx.work -= FILTER_WORK
            self.subscribing.limit(client, nats, reader.sid, reader.number)

    def _flush(self, client: Client, nats: NatsClient) -> None:
        """PING. PONG is sent when everything before it is in effect: published messages are stored, and other nodes
        know the subscriptions."""
        if nats.unsettled:
            self.subscribing.settle(client, nats, PONG_FRAME)
        elif nats.keeps:
            nats.keeps = False
            self.ctx.send_stored(client, PONG_FRAME)
        else:
            self.ctx.send(client, PONG_FRAME)

    def answered(self, question: HookQuestion, answer: HookAnswer) -> None:
        """The answer of a hook. Raises MqttError as MQTT does."""
        client = question.client
        nats = cast(NatsClient, client.protocol_handler)
        self.ctx.unhalt(client, ASKING)
        if question.kind == AUTHENTICATE:
            self.entry.answered(client, nats, answer)
            return
        session = client.session
        if session is None or session.client is not client:
            return
        if question.kind == ASK_PUBLISH:
            self.publishing.answered(client, nats, session, question, answer)
        else:
            self.subscribing.answered(client, nats, answer)

    # Subscriptions

    def settled(self, client: Client, nats: NatsClient, known: bool) -> None:
        self.subscribing.settled(client, nats, known)

    def unsubscribe(self, nats: NatsClient, sub: NatsSubscription) -> None:
        self.subscribing.unsubscribe(nats, sub)

    def revoke(self, client: Client, nats: NatsClient) -> None:
        self.subscribing.revoke(client, nats)

    # Deadlines, slow clients, closing

    def caught_up(self) -> None:
        """All routes are known: handle publishes that were held meanwhile."""
        waiting = self.waiting
        self.waiting = []
        for client in waiting:
            self.ctx.unhalt(client, WORKING)

    def ping(self, client: Client, nats: NatsClient) -> None:
        nats.pings_out += 1
        client.keep_alive += self.config.ping_interval  # counted from the last input
        self.ctx.send(client, PING_FRAME)

    def slow(self, client: Client, nats: NatsClient, size: int, publisher: Session | None) -> None:
        """A client reads more slowly than it is sent messages: hold the publishers for a while, then close the client.

        Its waiting messages are in the transport, bounded like the queue of an MQTT client.
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
            self.errors.end(client, "slow consumer")
        elif publisher is not None and client.session is not None:
            self.delivery.hold(client.session, publisher)

    def last_words(self, client: Client, nats: NatsClient, reason: int) -> None:
        if reason in LEAVING:
            self.ctx.send(client, self.info.frame(client, nats, True))
        elif reason in WORDS:
            self.ctx.send(client, error_frame(WORDS[reason]))

    def shut(self, nats: NatsClient) -> None:
        client = self.clients.pop(nats.number, None)
        if client is not None and self.jetstream.enabled:
            self.jetstream.gone(client)
        self.subscribing.shut(nats)
