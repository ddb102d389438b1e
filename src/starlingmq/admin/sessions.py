"""Clients, sessions and subscriptions of this node: list and show them, disconnect clients, end sessions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from starlingmq.admin.declared_actions import ALL, PAGED, action
from starlingmq.admin.node_rpc import Answers, ListPart, Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import page_of
from starlingmq.admin.typed_actions import FIRST, PAGE, After, Limit
from starlingmq.core.messages.outgoing import PUBLISHED
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.reports.session_totals import of_clients, subscription_count
from starlingmq.core.session.session import NEVER, Client, Session, Subscription
from starlingmq.core.topics.topics import matches, parse_share
from starlingmq.net.driver import Driver
from starlingmq.wire.reasons import Reason

PROTOCOLS: Final = {0: "NATS", 3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}
DETAILS_MAX: Final = 1000  # shown of one session: entries of its window, entries of its queue, subscriptions
OLDEST_OF: Final = 30  # messages in flight among which the oldest is looked for

CLIENT_COLUMNS: Final = (
    "client_id: client, node, username: user, peer: from, protocol*, connected_at: age/age, subscriptions: subs, "
    "queued, inflight: in flight, unacknowledged_since: oldest unacked/age, dropped, slow"
)
SESSION_COLUMNS: Final = (
    "client_id: client, node, connected, expires_at: expires in/left, subscriptions: subs, queued, "
    "queued_bytes: bytes/bytes, inflight: in flight*, awaiting_rel: awaiting PUBREL*, dropped, will*"
)

ClientId = Annotated[str, Meta(min_length=1, max_length=65535, description="Client id.")]
SearchText = Annotated[
    str,
    Meta(max_length=1000, description="Only entries whose client id contains this text.", extra={"ctl": "--search -s"}),
]
PartOfFilter = Annotated[str, Meta(max_length=65535, description="Only subscriptions whose filter contains this text.")]
ReceivedTopic = Annotated[
    str, Meta(max_length=65535, description="Only subscriptions that receive messages of this topic.")
]


class ClientInfo(Struct, frozen=True):
    """``node`` is set in lists of several nodes."""

    client_id: str
    username: str
    peer: str
    listener: str
    protocol: str
    connected_at: str
    keep_alive: float
    subscriptions: int
    queued: int
    inflight: int
    dropped: int
    slow: Annotated[
        bool,
        Meta(description="It does not read what is sent, or was slow for so long that publishers are not held for it."),
    ]
    node: str = ""
    unacknowledged_since: Annotated[
        str | None, Meta(description="When the oldest message in flight was sent; null: none is.")
    ] = None


class SessionInfo(Struct, frozen=True):
    client_id: str
    connected: bool
    expiry: Annotated[
        int | None, Meta(description="Seconds that the session outlives its connection; null: unlimited.")
    ]
    expires_at: str | None
    subscriptions: int
    queued: int
    queued_bytes: int
    inflight: int
    awaiting_rel: Annotated[int, Meta(description="QoS 2 messages that wait for their PUBREL.")]
    dropped: int
    will: bool
    owner_epoch: int
    node: str = ""


class SubscriptionInfo(Struct, frozen=True):
    client_id: str
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    node: str = ""


class InflightInfo(Struct, frozen=True):
    packet_id: int
    qos: int
    stage: str
    topic: str | None
    size: int
    sent_at: str


class QueuedInfo(Struct, frozen=True):
    qos: int
    topic: Annotated[str | None, Meta(description="Null if the message is on disk only.")]
    size: int


class SessionDetail(Struct, frozen=True):
    session: SessionInfo
    client: ClientInfo | None
    subscriptions: list[SubscriptionInfo]
    window: list[InflightInfo]
    queue: Annotated[list[QueuedInfo], Meta(description="The oldest queued messages.")]
    shown_at_most: int
    node: str = ""
    missing: list[Missing] = []


class ClientsRequest(Struct, frozen=True):
    q: SearchText = ""
    cursor: After = FIRST
    limit: Limit = PAGE


class SessionsRequest(Struct, frozen=True):
    q: SearchText = ""
    connected: Annotated[
        bool | None,
        Meta(
            description="Only connected sessions, or only disconnected ones.",
            extra={"ctl": "--away", "help": "Only disconnected sessions."},
        ),
    ] = None
    cursor: After = FIRST
    limit: Limit = PAGE


class SubscriptionsRequest(Struct, frozen=True):
    q: SearchText = ""
    filter: PartOfFilter = ""
    topic: ReceivedTopic = ""
    cursor: After = FIRST
    limit: Limit = PAGE

    def selects(self, name: bytes) -> bool:
        """Whether the subscription with this filter is wanted; ``name`` may begin with ``$share``."""
        if self.filter and self.filter.encode() not in name:
            return False
        if not self.topic:
            return True
        shared = parse_share(name)
        return matches(shared[1] if shared else name, self.topic.encode())


class OneClient(Struct, frozen=True):
    client_id: ClientId


class Clients(ListPart, frozen=True):
    clients: list[ClientInfo]


class Sessions(ListPart, frozen=True):
    sessions: list[SessionInfo]


class Subscriptions(ListPart, frozen=True):
    subscriptions: list[SubscriptionInfo]


class SessionAnswer(Struct, frozen=True):
    """``found`` False: this node does not have the session, and the other fields are empty."""

    found: bool = True
    session: SessionInfo | None = None
    client: ClientInfo | None = None
    subscriptions: list[SubscriptionInfo] = []
    window: list[InflightInfo] = []
    queue: list[QueuedInfo] = []
    shown_at_most: int = DETAILS_MAX

    def detail(self) -> SessionDetail:
        """Of an answer with ``found``."""
        assert self.session is not None
        return SessionDetail(self.session, self.client, self.subscriptions, self.window, self.queue, self.shown_at_most)


class DoneHere(Struct, frozen=True):
    """``found`` False: this node does not have the client or session."""

    found: bool
    done: str = ""


class DoneAt(Struct, frozen=True):
    """The nodes that performed an action, and those that did not answer."""

    done: str
    nodes: list[str]
    missing: list[Missing]


def done_at(rpc: NodeRpc, answers: Answers[DoneHere], request: OneClient) -> DoneAt:
    """Raises AdminError if no node has the client or session."""
    done = {node: one.done for node, one in answers.results.items() if one.found}
    if not done:
        raise rpc.no_result(answers.missing)
    return DoneAt(next(iter(done.values())), list(done), answers.missing)


def newest(rpc: NodeRpc, answers: Answers[SessionAnswer], request: OneClient) -> SessionDetail:
    """The session of the current owner. A node that was away may still have an older session of this client. Raises
    AdminError if no node has one."""
    found = [
        replace(one.detail(), node=node, missing=answers.missing) for node, one in answers.results.items() if one.found
    ]
    if not found:
        raise rpc.no_result(answers.missing)
    return max(found, key=lambda one: (one.client is not None, one.session.owner_epoch))


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def named_subscriptions(session: Session) -> Iterable[tuple[bytes, Subscription]]:
    """By the filter as the client sent it, $share included; the caller may wait between two of them."""
    client = session.client
    if client is not None and isinstance(client.protocol_handler, NatsClient):
        return [(one.whole(), one) for one in client.protocol_handler.subscriptions.values()]
    return session.subscriptions()


def subscription_info(session: Session, name: bytes, one: Subscription) -> SubscriptionInfo:
    return SubscriptionInfo(session.client_id, text(name), one.qos, one.no_local, one.retain_as_published)


def subscriptions_of(session: Session, wanted: SubscriptionsRequest | None = None) -> list[SubscriptionInfo]:
    """Those of the first ``DETAILS_MAX`` subscriptions that are wanted."""
    return [
        subscription_info(session, name, one)
        for name, one in islice(named_subscriptions(session), DETAILS_MAX)
        if wanted is None or wanted.selects(name)
    ]


def queued(session: Session) -> int:
    return 0 if session.queue is None else len(session.queue)


def inflight(session: Session) -> int:
    return 0 if session.window is None else len(session.window.entries)


def client_info(session: Session, client: Client) -> ClientInfo:
    return ClientInfo(
        session.client_id,
        client.username,
        client.peer,
        client.listener,
        PROTOCOLS.get(client.version, str(client.version)),
        when(client.connected_at),
        client.keep_alive,
        subscription_count(session),
        queued(session),
        inflight(session),
        session.dropped,
        client.blocked or session.stalled,
        unacknowledged_since=_unacknowledged_since(session),
    )


def _unacknowledged_since(session: Session) -> str | None:
    """Of the first messages in flight, which are in the order in which they were sent; a PUBREC is a new time."""
    if session.window is None or not session.window.entries:
        return None
    return when(min(one.sent_at for one in islice(session.window.entries.values(), OLDEST_OF)))


def session_info(session: Session) -> SessionInfo:
    return SessionInfo(
        session.client_id,
        session.client is not None,
        None if session.expiry == NEVER else session.expiry,
        when(session.expires_at) if session.expires_at else None,
        subscription_count(session),
        queued(session),
        0 if session.queue is None else session.queue.bytes,
        inflight(session),
        0 if session.inbound is None else session.inbound.held,
        session.dropped,
        session.will is not None,
        session.epoch,
    )


def answer_of(session: Session) -> SessionAnswer:
    window = []
    if session.window is not None:
        for packet_id, entry in islice(session.window.entries.items(), DETAILS_MAX):
            stage = "awaits PUBACK or PUBREC" if entry.stage == PUBLISHED else "awaits PUBCOMP"
            topic = text(entry.message.topic) if entry.message.loaded else None
            sent_at = when(entry.sent_at)
            window.append(InflightInfo(packet_id, entry.qos, stage, topic, entry.message.size(), sent_at))
    queue = []
    if session.queue is not None:
        for outgoing in islice(session.queue.items, DETAILS_MAX):
            queue.append(QueuedInfo(outgoing.qos, text(outgoing.message.topic), outgoing.message.size()))
        stored = session.queue.stored
        if stored is not None:
            for index in range(min(len(stored), DETAILS_MAX - len(queue))):
                reference = stored.peek(index)
                queue.append(QueuedInfo(reference.flags & 3, None, reference.size))
    return SessionAnswer(
        True,
        session_info(session),
        None if session.client is None else client_info(session, session.client),
        subscriptions_of(session),
        window,
        queue,
        DETAILS_MAX,
    )


class SessionActions:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.state = driver.state
        self._sessions = driver.state.ctx.sessions

    def _find(self, client_id: str) -> Session | None:
        session = self._sessions.get(client_id)
        return session if session is not None and of_clients(session) else None

    @action("clients", "GET /clients", PAGED, ctl="clients", columns=CLIENT_COLUMNS, none="no client is connected")
    async def clients(self, request: ClientsRequest) -> Clients:
        """List connected clients."""
        q = request.q
        page, following = await page_of(
            self._sessions,
            lambda one: one.client is not None and (not q or q in one.client_id),
            request.cursor,
            request.limit,
        )
        return Clients([client_info(one, one.client) for one in page if one.client is not None], next=following)

    @action("sessions", "GET /sessions", PAGED, ctl="sessions", columns=SESSION_COLUMNS, none="there are no sessions")
    async def sessions(self, request: SessionsRequest) -> Sessions:
        """List sessions, connected or not."""
        q, wanted = request.q, request.connected
        page, following = await page_of(
            self._sessions,
            lambda one: wanted in (None, one.client is not None) and (not q or q in one.client_id),
            request.cursor,
            request.limit,
        )
        return Sessions([session_info(one) for one in page if not one.ended], next=following)

    @action(
        "subscriptions",
        "GET /subscriptions",
        PAGED,
        ctl="subscriptions",
        columns="client_id: client, node, filter, qos: QoS, no_local*, retain_as_published*",
        none="there are no subscriptions",
    )
    async def subscriptions(self, request: SubscriptionsRequest) -> Subscriptions:
        """List subscriptions by session, at most 1,000 of each."""
        q, limit = request.q, request.limit
        page, following = await page_of(
            self._sessions,
            lambda one: (not q or q in one.client_id) and bool(subscriptions_of(one, request)),
            request.cursor,
            limit,
        )
        found: list[SubscriptionInfo] = []
        for session in page:
            found += subscriptions_of(session, request)
            if len(found) >= limit:
                following = str(session.number) if following or session is not page[-1] else None
                break
        return Subscriptions(found, next=following)

    @action("session", "GET /session", ALL, merge=newest, ctl="session client_id")
    async def session(self, request: OneClient) -> SessionAnswer:
        """Get a session from any node: client, subscriptions, inflight window and queue."""
        session = self._find(request.client_id)
        return SessionAnswer(False) if session is None else answer_of(session)

    @action(
        "client.kick",
        "DELETE /client",
        ALL,
        merge=done_at,
        ctl="kick client_id",
        audit="closed the connection of client {client_id!r}",
        said="{client_id} at {nodes} was {done}",
    )
    async def kick(self, request: OneClient) -> DoneHere:
        """Disconnect a client; its session is kept according to its expiry."""
        session = self._find(request.client_id)
        if session is None or session.client is None:
            return DoneHere(False)
        lost = inflight(session) + queued(session) if session.expiry == 0 else 0
        self.state.ctx.at(self.driver.clock())
        self.state.ending.fail(session.client, Reason.ADMINISTRATIVE_ACTION, "closed by an operator")
        self.driver.request_turn()
        ended = f"; {lost:,} messages ended with its session, which had no expiry" if lost else ""
        return DoneHere(True, f"disconnected{ended}")

    @action(
        "session.end",
        "DELETE /session",
        ALL,
        merge=done_at,
        ctl="end client_id",
        hint="A connected client is disconnected.",
        audit="ended the session of client {client_id!r}",
        said="session of {client_id} on {nodes}: {done}",
    )
    async def end(self, request: OneClient) -> DoneHere:
        """Delete a session: its subscriptions and its queue. Raises AdminError."""
        session = self._find(request.client_id)
        if session is None:
            return DoneHere(False)
        if session.moving is not None:
            raise AdminError(409, "this session is being moved between nodes; try again in a moment")
        self.state.ctx.at(self.driver.clock())
        if session.client is not None:
            self.state.ending.fail(session.client, Reason.ADMINISTRATIVE_ACTION, "ended by an operator")
        if not session.ended:
            self.state.ending.end(session)
        stored = await self.driver.stored()
        return DoneHere(True, "ended" if stored else "the session has ended; this is stored when the disk works again")
