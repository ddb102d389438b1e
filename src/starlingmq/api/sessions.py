"""Clients, their sessions and subscriptions: to be listed, looked into, and ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Final

from litestar import Request, delete, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import Meta, Struct

from starlingmq.api.listing import PAGE, Cursor, Limit, Search, number_after, of_clients, page_of
from starlingmq.api.problem import ApiError
from starlingmq.api.served import Served
from starlingmq.core.client import Client
from starlingmq.core.nats_client import NatsClient
from starlingmq.core.outgoing import PUBLISHED
from starlingmq.core.session import NEVER, Session, Subscription
from starlingmq.wire.reasons import Reason

log = logging.getLogger("starlingmq.http")

PROTOCOLS: Final = {0: "NATS", 3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}
DETAILS_MAX: Final = 1000  # entries of a window or a queue, and subscriptions, that are shown of one session

Name = Annotated[str, Parameter(min_length=1, max_length=65535, description="The client id.")]
Connected = Annotated[bool | None, Parameter(description="Only those with a connection, or only those without.")]


class ClientInfo(Struct, frozen=True):
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
    slow: Annotated[bool, Meta(description="It reads slower than messages for it come.")]


class SessionInfo(Struct, frozen=True):
    client_id: str
    connected: bool
    expiry: Annotated[int | None, Meta(description="Seconds it outlives its connection; null: for ever.")]
    expires_at: str | None
    subscriptions: int
    queued: int
    queued_bytes: int
    inflight: int
    awaiting_rel: Annotated[int, Meta(description="QoS 2 messages that wait for their PUBREL.")]
    dropped: int
    will: bool
    owner_epoch: int


class SubscriptionInfo(Struct, frozen=True):
    client_id: str
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool


class InflightInfo(Struct, frozen=True):
    packet_id: int
    qos: int
    stage: str
    topic: str | None
    size: int
    sent_at: str


class QueuedInfo(Struct, frozen=True):
    qos: int
    topic: Annotated[str | None, Meta(description="Null: it is not in memory.")]
    size: int


class SessionDetail(Struct, frozen=True):
    session: SessionInfo
    client: ClientInfo | None
    subscriptions: list[SubscriptionInfo]
    window: list[InflightInfo]
    queue: Annotated[list[QueuedInfo], Meta(description="The oldest of them.")]
    shown_at_most: int


class ClientPage(Struct, frozen=True):
    node: str
    clients: list[ClientInfo]
    next: str | None


class SessionPage(Struct, frozen=True):
    node: str
    sessions: list[SessionInfo]
    next: str | None


class SubscriptionPage(Struct, frozen=True):
    node: str
    subscriptions: list[SubscriptionInfo]
    next: str | None


class Done(Struct, frozen=True):
    done: str


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def subscriptions_of(session: Session) -> list[SubscriptionInfo]:
    """``DETAILS_MAX`` of them at most."""
    client = session.client
    found: Iterable[tuple[bytes, Subscription]] = ()
    if client is not None and isinstance(client.dialect, NatsClient):
        found = ((one.whole(), one) for one in client.dialect.subscriptions.values())
    elif session.subscriptions is not None:
        found = session.subscriptions.items()  # by the name that was asked for, $share included
    return [
        SubscriptionInfo(session.client_id, text(name), one.qos, one.no_local, one.retain_as_published)
        for name, one in islice(found, DETAILS_MAX)
    ]


def count_of(session: Session) -> int:
    client = session.client
    if client is not None and isinstance(client.dialect, NatsClient):
        return len(client.dialect.subscriptions)
    return 0 if session.subscriptions is None else len(session.subscriptions)


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
        count_of(session),
        queued(session),
        inflight(session),
        session.dropped,
        client.blocked or session.stalled,
    )


def session_info(session: Session) -> SessionInfo:
    return SessionInfo(
        session.client_id,
        session.client is not None,
        None if session.expiry == NEVER else session.expiry,
        when(session.expires_at) if session.expires_at else None,
        count_of(session),
        queued(session),
        0 if session.queue is None else session.queue.bytes,
        inflight(session),
        0 if session.inbound is None else session.inbound.held,
        session.dropped,
        session.will is not None,
        session.epoch,
    )


def detail(session: Session) -> SessionDetail:
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
    return SessionDetail(
        session_info(session),
        None if session.client is None else client_info(session, session.client),
        subscriptions_of(session),
        window,
        queue,
        DETAILS_MAX,
    )


def routes(served: Served) -> list[HTTPRouteHandler]:
    ctx = served.state.ctx

    def find(client_id: str) -> Session:
        session = ctx.sessions.get(client_id)
        if session is None or not of_clients(session):
            raise ApiError(404, "no session of that client id is on this node")
        return session

    @get("/clients", summary="Clients that are connected to this node")
    async def clients(limit: Limit = PAGE, cursor: Cursor = None, q: Search = None) -> ClientPage:
        page, following = await page_of(
            ctx.sessions,
            lambda one: one.client is not None and (not q or q in one.client_id),
            number_after(cursor),
            limit,
        )
        found = [client_info(one, one.client) for one in page if one.client is not None]
        return ClientPage(served.name, found, following)

    @get("/sessions", summary="Sessions on this node, connected or not")
    async def sessions(
        limit: Limit = PAGE, cursor: Cursor = None, q: Search = None, connected: Connected = None
    ) -> SessionPage:
        page, following = await page_of(
            ctx.sessions,
            lambda one: (connected is None or connected == (one.client is not None)) and (not q or q in one.client_id),
            number_after(cursor),
            limit,
        )
        return SessionPage(served.name, [session_info(one) for one in page if not one.ended], following)

    @get("/subscriptions", summary="Who subscribes to what on this node, by session, of each 1,000 at most")
    async def subscriptions(limit: Limit = PAGE, cursor: Cursor = None, q: Search = None) -> SubscriptionPage:
        page, following = await page_of(
            ctx.sessions, lambda one: count_of(one) != 0 and (not q or q in one.client_id), number_after(cursor), limit
        )
        found: list[SubscriptionInfo] = []
        for session in page:
            found += subscriptions_of(session)
            if len(found) >= limit:
                following = str(session.number) if following or session is not page[-1] else None
                break
        return SubscriptionPage(served.name, found, following)

    @get("/session", summary="One session: its client, subscriptions, window and queue")
    async def session(client_id: Name) -> SessionDetail:
        return detail(find(client_id))

    @delete("/client", status_code=200, summary="Close the connection of a client; its session stays as agreed")
    async def kick(request: Request[Any, Any, Any], client_id: Name) -> Done:
        found = find(client_id)
        if found.client is None:
            raise ApiError(404, "that client is not connected to this node")
        ctx.now = served.driver.clock()
        served.state.ending.fail(found.client, Reason.ADMINISTRATIVE_ACTION, "closed by an operator")
        served.driver.poke()
        log.info("%s closed the connection of client %r", request.scope["state"]["user"] or "somebody", client_id)
        return Done("disconnected")

    @delete("/session", status_code=200, summary="End a session with all that waits in it")
    async def end(request: Request[Any, Any, Any], client_id: Name) -> Done:
        found = find(client_id)
        if found.moving is not None:
            raise ApiError(409, "that session is on its way between nodes; try again in a moment")
        ctx.now = served.driver.clock()
        if found.client is not None:
            served.state.ending.fail(found.client, Reason.ADMINISTRATIVE_ACTION, "ended by an operator")
        if not found.ended:
            served.state.ending.end(found)
        stored = await served.driver.stored()
        log.info("%s ended the session of client %r", request.scope["state"]["user"] or "somebody", client_id)
        return Done("ended" if stored else "ended, and to be stored once the disk works")

    return [clients, sessions, subscriptions, session, kick, end]
