"""The broker as one state machine without I/O: bytes and ``now`` in, a Ready out.

The *shell* is the code around it that has the sockets, the disk and the clock (``net.driver``). A *Ready* is the result
of a turn: the records to store, and the frames to send before and after they are stored (``core.context.ready``).

The shell calls ``open``, ``receive``, ``closed``, ``blocked``, ``drained`` and ``answer`` when these events happen, and
at the end of its turn ``turn`` and ``take_ready``. It carries out the Ready, and calls ``sent`` for each client that it
wrote to. Without events it calls ``turn`` at ``wake_at``. All of this happens in one thread.
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.config.settings import LimitsConfig, MqttConfig, NatsConfig, QueueGroupsConfig
from starlingmq.core.conditions.caches import Caches
from starlingmq.core.conditions.reauthorization import ReauthorizeJob
from starlingmq.core.conditions.storage_failure import StorageFailure
from starlingmq.core.connect.connecting import Connecting
from starlingmq.core.connect.deadlines import Deadlines
from starlingmq.core.connect.ending import Ending
from starlingmq.core.connect.restoring import Restoring
from starlingmq.core.connect.turned_away import CLIENT_PACKET_LIMIT, DETAILS, OF_ALL, WORDS
from starlingmq.core.context.context import TURN_WORK, Context
from starlingmq.core.context.ready import AUTHENTICATE, SUBSCRIBE, HookAnswer, HookQuestion, Ready
from starlingmq.core.context.ready import PUBLISH as ASK_PUBLISH
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.delivery.group_engine import GroupEngine
from starlingmq.core.intake.packet_intake import PacketIntake
from starlingmq.core.jetstream.hub import JetStream
from starlingmq.core.jetstream.stream_readers import MqttReaders
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.commands import LISTENERS, Nats
from starlingmq.core.observe.audit import Audit
from starlingmq.core.peers.peer_receivers import PeerReceivers
from starlingmq.core.peers.session_transfer import SessionTransfer
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.reports.event_topics import EventTopics
from starlingmq.core.reports.sys_topics import SysTopics
from starlingmq.core.retained.retained_store import RetainedTree
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import CLOSED, DEAF, NEW, PACED
from starlingmq.core.session.queue import KEPT_IN_MEMORY
from starlingmq.core.session.session import BRIDGE_LISTENER, Client, Session
from starlingmq.core.subscribe.subscribing import Subscribing
from starlingmq.core.turn.timers import sooner
from starlingmq.wire.reasons import MqttError, Reason

LOOKS_PER_TURN: Final = 500  # sessions, connections or retained messages that are due, per turn
JOBS_PER_TURN: Final = 8  # pieces of long work per turn: about half of the turn
FEW_BYTES: Final = 4096  # a client that has sent more comes after the others
JOB_WORK: Final = 500  # the work that such a piece counts for
STRANGER_BYTES: Final = 4096  # bytes of an incomplete packet that are kept when memory is short
# connections above max_connections that are read, so that they get a CONNACK; further ones are closed at once
TURNED_AWAY: Final = 256


class BrokerState:
    """One broker. ``secret`` (16 bytes or more) is the source of assigned client ids and of choices in groups."""

    ctx: Context
    intake: PacketIntake
    router: Router
    delivery: Delivery
    publishing: Publishing
    subscribing: Subscribing
    ending: Ending
    connecting: Connecting
    retained: RetainedTree
    groups: GroupEngine
    deadlines: Deadlines
    restoring: Restoring
    refusal: StorageFailure
    peers: PeerReceivers
    mover: SessionTransfer
    sys: SysTopics
    audit: Audit
    events: EventTopics
    nats: Nats
    jetstream: JetStream
    caches: Caches
    _spare: Ready
    _rested: bool  # the last turn resumed no clients
    _last_first: bool  # the clients that come after all others were passed over, and come first in the next turn

    def __init__(
        self,
        mqtt: MqttConfig,
        limits: LimitsConfig,
        now: float,
        secret: bytes,
        version: str = "",
        nats: NatsConfig | None = None,
        groups: QueueGroupsConfig | None = None,
    ) -> None:
        self.ctx = Context(mqtt, limits, now)
        self.router = Router(int.from_bytes(secret[:8], "big"), limits.max_topic_length, limits.topic_levels)
        self.router.ctx = self.ctx
        self.retained = RetainedTree()
        self.delivery = Delivery(self.ctx)
        self.groups = GroupEngine(self.ctx, self.router, self.delivery)
        self.delivery.sharing = self.router.sharing = self.groups
        self.groups.configure(QueueGroupsConfig() if groups is None else groups)
        self.publishing = Publishing(self.ctx, self.router, self.delivery, self.groups, self.retained)
        self.subscribing = Subscribing(
            self.ctx, self.router, self.delivery, self.retained, self.publishing.retained.deletions
        )
        self.ending = Ending(self.ctx, self.delivery, self.publishing, self.subscribing)
        self.deadlines = Deadlines(self.ctx, self.ending, self.delivery, self.publishing)
        self.connecting = Connecting(
            self.ctx, self.router, self.delivery, self.publishing, self.subscribing, self.ending, self.deadlines, secret
        )
        self.intake = PacketIntake(
            self.ctx, self.delivery, self.publishing, self.subscribing, self.ending, self.connecting
        )
        self.peers = PeerReceivers(self.ctx, self.router, self.delivery, self.publishing, self.ending)
        self._spare = Ready()
        self._rested = self._last_first = False
        self.refusal = StorageFailure(self.ctx, self.ending, self.delivery)
        self.restoring = Restoring(
            self.ctx, self.router, self.retained, self.publishing.retained.wheel, self.ending, self.groups
        )
        self.mover = SessionTransfer(
            self.ctx, self.router, self.delivery, self.connecting, self.ending, self.subscribing, self.restoring
        )
        self.sys = SysTopics(self.ctx, self.publishing, version)
        self.audit = Audit(self.ctx)
        self.events = EventTopics(self.ctx, self.router, self.delivery, self.audit)
        self.nats = Nats(
            self.ctx,
            self.router,
            self.delivery,
            self.publishing,
            self.subscribing,
            self.connecting,
            self.ending,
            self.deadlines,
            NatsConfig() if nats is None else nats,
            secret,
            version,
        )
        self.jetstream = JetStream(self.ctx, self.router, self.delivery, self.nats.spellings)
        self.nats.info.jetstream = self.nats.publishing.jetstream = self.nats.jetstream = self.jetstream
        self._connect_streams()
        self.caches = Caches(self.router, self.nats.spellings)

    def _connect_streams(self) -> None:
        """Let messages of other nodes reach streams, and MQTT clients read them."""
        self.publishing.streams = self.jetstream
        reads = self.jetstream.reads = MqttReaders(
            self.ctx,
            self.router,
            self.delivery,
            self.groups,
            self.subscribing,
            self.jetstream.streams,
            self.jetstream,
        )
        self.groups.reads = self.subscribing.reads = self.restoring.reads = reads

    def configure(
        self,
        mqtt: MqttConfig,
        limits: LimitsConfig,
        nats: NatsConfig | None = None,
        groups: QueueGroupsConfig | None = None,
    ) -> None:
        """Apply new settings. What was agreed with connected clients stays."""
        self.ctx.configure(mqtt, limits)
        self.router.configure(limits.max_topic_length, limits.topic_levels)
        if nats is not None:
            self.nats.configure(nats)
        if groups is not None:
            self.groups.configure(groups)
        if self.sys.due_at == 0.0 and mqtt.sys_interval != 0.0:
            self.sys.due_at = self.ctx.now

    def entitle(self) -> None:
        """The rules (``Context.rights_of``, ``standing_of``) have changed: check all clients, some per turn."""
        self.ctx.rules += 1
        self.ctx.jobs.append(ReauthorizeJob(self.ctx, self.subscribing, self.ending))

    # Connections

    def open(self, listener: str, peer: str, now: float, full: int = 0) -> Client:
        """A transport has connected. It has ``mqtt.connect_timeout`` for its CONNECT.

        ``full``: the limit of connections (``core.connect.turned_away``) that refuses that CONNECT; 0: not refused.
        """
        ctx = self.ctx
        ctx.now = now
        client = Client(listener, peer, now)
        ctx.counters.connections_opened += 1
        ctx.counters.connections_open += 1
        self.deadlines.watch(client)
        limit = 0 if listener == BRIDGE_LISTENER else ctx.limits.max_connections
        if listener.startswith(LISTENERS):
            self.nats.open(client)
            if limit != 0 and ctx.counters.connections_open > limit:
                self._refuse_later(client, OF_ALL)
        elif limit != 0 and ctx.counters.connections_open > limit + TURNED_AWAY:
            self.ending.fail(client, Reason.SERVER_BUSY, DETAILS[OF_ALL], WORDS[OF_ALL])
        elif limit != 0 and ctx.counters.connections_open > limit:
            client.full = OF_ALL  # its CONNACK follows when its CONNECT has shown the protocol version
        self._refuse_later(client, full)
        return client

    def receive(self, client: Client, data: bytes, now: float) -> None:
        """Bytes have arrived. Complete packets are handled; the rest is kept for the next call."""
        self.intake.receive(client, data, now)

    def readdress(self, client: Client, peer: str, full: int, now: float) -> None:
        """Proxies have named the address of a client that has not sent anything yet. ``full`` as in ``open``."""
        self.ctx.now = now
        client.peer = peer
        self._refuse_later(client, full)

    def _refuse_later(self, client: Client, full: int) -> None:
        if full == 0 or client.state == CLOSED:
            return
        client.full = full
        if client.protocol_handler is not None:
            self.ending.turn_away(client)

    def shed(self, clients: list[Client], excess: int, now: float) -> None:
        """Memory is short by ``excess`` bytes: close connections that have sent much without a complete CONNECT, which
        would be refused anyway. If that is not enough, those with the largest incomplete packets: such a packet can
        stay incomplete for as long as its client likes, and new clients would be refused all the while."""
        self.ctx.now = now
        unfinished: list[tuple[int, int, Client]] = []
        for index, client in enumerate(clients):
            arrived = 0 if client.chunks is None else sum([len(chunk) for chunk in client.chunks])
            if client.state == NEW and client.bytes_in > STRANGER_BYTES:
                self.ctx.notice("memory", client, "memory is short, and its CONNECT is large (limits.memory)")
                self.ending.shut(client)
                excess -= arrived
            elif arrived > STRANGER_BYTES and client.state != CLOSED:
                unfinished.append((arrived, index, client))
        for arrived, _, client in sorted(unfinished, reverse=True):
            if excess <= 0:
                break
            excess -= arrived
            detail = f"memory is short, and {arrived:,} bytes of an incomplete packet have arrived (limits.memory)"
            self.ending.fail(client, Reason.QUOTA_EXCEEDED, detail, "memory")

    def closed(self, client: Client, now: float) -> None:
        """The transport is closed. Bytes that it sent before are still handled; then the session has no connection."""
        ctx = self.ctx
        ctx.now = now
        if client.gone:
            return
        client.gone = True
        ctx.counters.connections_open -= 1
        ctx.counters.closed(client.listener, client.published, client.bytes_in, client.bytes_out)
        ctx.unhalt(client, DEAF | PACED)  # the transport will not be drained, and sends nothing more
        if client.halted == 0 or not client.rest:
            self.ending.close(client, "connection lost")

    def not_stored(self, client: Client, now: float) -> None:
        """Data for this client could not be stored: the client is sent nothing more, and its connection ends."""
        self.ctx.now = now
        if client.state != CLOSED:
            self.ctx.notice("not_stored", client, "the response could not be stored")
        self.ending.close(client, "storage failed")
        client.last_words = False

    def blocked(self, client: Client) -> None:
        """The transport has buffered more than ``limits.write_buffer``: send it nothing until ``drained``."""
        client.blocked = True

    def drained(self, client: Client, now: float) -> None:
        self.ctx.now = now
        client.blocked = False
        client.bytes_while_blocked = 0
        self.ctx.unhalt(client, DEAF)
        if client.protocol_handler is not None:
            client.protocol_handler.drained(client)
        self._more(client)

    def sent(self, client: Client) -> None:
        """The frames of this client were passed to its transport, except ``unstored``: its queue may advance."""
        client.size = client.unstored
        session = client.session
        if session is None or client.blocked:
            return
        window = session.window
        if session.queue is not None or session.replay is not None or (window is not None and window.owed):
            self._more(client)
        elif session.shares is not None or session.reads is not None:
            self.delivery.go_on(session)

    def _more(self, client: Client) -> None:
        session = client.session
        if session is not None and session.client is client:
            self.delivery.go_on(session)
            self.subscribing.replays.drained(session)

    # Storage

    def refuse(self, client: Client, held: bytes, now: float) -> bytes:
        """The writes that these frames waited for were not stored, and are retried. Returns the frames to send
        instead."""
        self.ctx.now = now
        return self.refusal.answer(client, held)

    def read_again(self, session: Session, now: float) -> None:
        """The messages of ``wanted`` could not be read at the moment: request them again."""
        self.ctx.now = now
        if session.queue is not None:
            session.queue.loading = False
        if (session.client is not None or session.is_group_queue) and not session.ended:
            self.delivery.go_on(session)

    def stored(self, ready: Ready) -> None:
        """The writes of this Ready can be read back from the store: release messages that are not needed soon."""
        for session in ready.spills:
            session.spilling = False
            queue = session.queue
            if queue is not None and not session.ended:
                queue.spill(0 if session.client is None and not session.is_group_queue else KEPT_IN_MEMORY)

    def keep(self, ready: Ready) -> None:
        """The writes of this Ready wait until the store accepts them: keep its messages in memory."""
        for session in ready.spills:
            session.spilling = False

    def wanted(self, session: Session) -> list[int]:
        """The offsets of the messages that a session needs next: first those of its window, then those of its queue."""
        window = session.window
        if window is not None and window.owed:
            offsets = window.wanted()
            if offsets:
                return offsets
        return [] if session.queue is None else session.queue.wanted()

    def loaded(self, session: Session, messages: dict[int, Message], now: float) -> None:
        """The messages of ``wanted`` were read back. Those that ``messages`` lacks are lost."""
        self.ctx.now = now
        if session.ended:
            return
        window = session.window
        queue = session.queue
        if window is not None and window.wanted(1):
            for packet_id in window.fill(messages):
                self.delivery.lose(session, packet_id)
            if queue is not None:
                queue.loading = False
        elif queue is not None:
            for outgoing in queue.loaded([messages.get(offset) for offset in queue.wanted()]):
                self.delivery.give_up(session, outgoing, "lost_in_storage")
        if session.client is not None or session.is_group_queue:
            self.delivery.go_on(session)
        elif session.moving is not None:
            self.ctx.cluster.leave(session)

    # Hooks

    def answer(self, question: HookQuestion, answer: HookAnswer, now: float) -> None:
        """The answer of a hook: the connection continues where it waited."""
        self.ctx.now = now
        try:
            if question.client.protocol_handler is not None:
                self.nats.answered(question, answer)
            elif question.kind == AUTHENTICATE:
                self.connecting.answered(question, answer)
            elif question.kind == ASK_PUBLISH:
                self.publishing.answered(question, answer)
            elif question.kind == SUBSCRIBE:
                self.subscribing.answered(question, answer)
        except MqttError as error:
            self.ending.fail(question.client, error.reason, error.detail)
        resumable = self.ctx.resumable
        if self.ctx.work > 0 and resumable and resumable[-1] is question.client:
            self.intake.resume(resumable.pop())

    # The cluster

    def resolved(self, client: Client, session: Session, packet_id: int, outcome: int) -> None:
        """The result of a lookup of a QoS 2 handshake at other nodes (see core.context.remote_qos2)."""
        try:
            self.publishing.resolved(client, session, packet_id, outcome)
        except MqttError as error:
            self.intake.end_for(client, error)

    def catch_up(self, catching_up: bool) -> None:
        """While this is set, nothing is published; afterwards, messages that came meanwhile are."""
        self.ctx.catching_up = catching_up
        if catching_up:
            return
        self.nats.caught_up()
        postponed = self.publishing.postponed
        self.publishing.postponed = []
        for client, message, packet_id in postponed:
            try:
                self.publishing.resume(client, message, packet_id)
            except MqttError as error:
                self.ending.fail(client, error.reason, error.detail)

    # Turns and time

    def turn(self, now: float) -> None:
        """Begin a new turn: handle deadlines, and work left over from earlier turns."""
        ctx = self.ctx
        ctx.now = now
        if now >= ctx.serves_until:
            ctx.isolated = True
        # The input since the last turn, or in it, cost more than another turn: this one resumes no clients, so that no
        # more than one such message delays what is read next.
        self._rested = ctx.work < -TURN_WORK and not self._rested
        ctx.work = 0 if self._rested else TURN_WORK
        self.events.tick()
        # Jobs come first; otherwise publishers that fill every turn would starve them.
        if ctx.jobs:
            for _ in range(min(len(ctx.jobs), JOBS_PER_TURN)):
                job = ctx.jobs.popleft()
                ctx.work -= JOB_WORK
                if not job.step():
                    ctx.jobs.append(job)
            if not self._rested:
                ctx.assure_work(TURN_WORK // 2)  # however much their rules cost, clients have a part of the turn
        if not self._rested:
            self._resume_clients()
        while ctx.unsendable:
            client = ctx.unsendable.pop()
            detail = f"the response is larger than the client's Maximum Packet Size of {client.max_packet} bytes"
            self.ending.fail(client, Reason.PACKET_TOO_LARGE, detail, CLIENT_PACKET_LIMIT)
        if ctx.client_wheel.has_due(now):
            for item in ctx.client_wheel.due(now, LOOKS_PER_TURN):
                self.deadlines.look_at_client(cast(Client, item))
        if self.intake.pace_wheel.has_due(now):
            for item in self.intake.pace_wheel.due(now, LOOKS_PER_TURN):
                ctx.unhalt(cast(Client, item), PACED)
        if ctx.session_wheel.has_due(now):
            for item in ctx.session_wheel.due(now, LOOKS_PER_TURN):
                self.deadlines.look_at_session(cast(Session, item))
        self.groups.turn()
        if self.jetstream.enabled:
            self.jetstream.turn()
        if self.publishing.retained.wheel.has_due(now):
            self.publishing.retained.expire(LOOKS_PER_TURN)
        self.publishing.producers.tick()
        self.sys.tick()
        self.nats.leaving.tick()

    def _resume_clients(self) -> None:
        ctx = self.ctx
        if ctx.resumable and not self._last_first:
            for _ in range(len(ctx.resumable)):
                if ctx.work <= 0:
                    break
                client = ctx.resumable.popleft()
                if len(client.rest) > FEW_BYTES:  # more than others should wait for
                    ctx.resumable_last.append(client)
                else:
                    self.intake.resume(client)
        self._last_first = len(ctx.resumable_last) != 0 and ctx.work < -TURN_WORK
        if ctx.resumable_last and not self._last_first:
            self.intake.resume_last()

    def pending(self) -> bool:
        """Whether there is work for another turn now."""
        ctx = self.ctx
        if ctx.resumable or ctx.resumable_last or ctx.jobs or ctx.unsendable:
            return True
        return self.groups.pending() or self.jetstream.pending()

    def idle(self) -> bool:
        """Whether a turn would do nothing now: nothing was sent, stored, reported or put off since the last one.
        Deadlines have turns of their own (``wake_at``). The share of work that a turn renews must not be used up."""
        ctx = self.ctx
        return ctx.work > TURN_WORK // 2 and ctx.audit is None and ctx.ready.empty() and not self.pending()

    def wake_at(self) -> float:
        """The time of the next call of ``turn`` if no event happens before; 0.0: none."""
        # No loop over a tuple: that creates an object for each time.
        soonest = sooner(self.ctx.client_wheel.soonest, self.intake.pace_wheel.soonest)
        soonest = sooner(soonest, self.ctx.session_wheel.soonest)
        soonest = sooner(soonest, self.publishing.retained.wheel.soonest)
        soonest = sooner(soonest, self.sys.due_at)
        soonest = sooner(soonest, self.events.due_at)
        soonest = sooner(soonest, self.nats.leaving.due_at)
        soonest = sooner(soonest, self.jetstream.due_at)
        return sooner(soonest, self.groups.wake_at())

    def take_ready(self) -> Ready:
        """The actions to perform now. Afterwards the next Ready is empty until something happens."""
        if self.ctx.audit is not None:
            self.events.flush()
        ready = self.ctx.ready
        self.ctx.ready = self._spare  # two alternate, because most of their lists stay empty
        self._spare = ready
        self.ctx.ready.renew()
        ready.finish()
        return ready

    def shut_down(self, now: float) -> None:
        """Tell all clients that the server shuts down. Sessions are kept according to their expiry."""
        ctx = self.ctx
        ctx.now = now
        for session in list(ctx.sessions.values()):
            client = session.client
            if client is not None and session.node == 0:
                known = ctx.mqtt.server_reference or ctx.connect_admission.reference(client.listener)
                reason = Reason.USE_ANOTHER_SERVER if known else Reason.SERVER_SHUTTING_DOWN
                self.ending.fail(client, reason, "", "server_shutting_down")
