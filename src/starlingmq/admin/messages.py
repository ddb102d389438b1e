"""Publish a message; list, show and delete retained messages, which are the same on all nodes; and show one message
that waits for a client, or that the client has not acknowledged yet.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from starlingmq.admin.declared_actions import ALL, NODE, action
from starlingmq.admin.node_rpc import Answers, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import pack, unpack
from starlingmq.admin.sessions import ClientId, text, when
from starlingmq.admin.typed_actions import PAGE, Cursor, Limit
from starlingmq.core.messages.message import Message
from starlingmq.core.publish.publish_admission import (
    ADMITTED,
    ISOLATED,
    MEMORY,
    NOT_STORED,
    POSTPONED,
    RESERVED,
    STREAM_FULL,
    UNCHECKED,
    admit,
)
from starlingmq.core.reports.session_totals import of_clients
from starlingmq.core.session.session import Session
from starlingmq.core.topics.topics import valid_filter
from starlingmq.net.driver import Driver
from starlingmq.wire.reasons import MqttError

PAYLOAD_MAX: Final = 65_536  # bytes that are shown
WINDOW: Final = "window"
FOUND_AT_ONCE: Final = 250  # retained messages per turn of the event loop
EXPIRY_MAX: Final = 0xFFFFFFFE

Topic = Annotated[str, Meta(min_length=1, max_length=65535, description="Topic without wildcards.")]
Filter = Annotated[str, Meta(min_length=1, max_length=65535, description="Topic filter; + and # are wildcards.")]


class PublishRequest(Struct, frozen=True):
    topic: Annotated[str, Meta(min_length=1, max_length=65535)]
    payload: Annotated[str, Meta(description="Payload as text, in place of payload_base64.")] = ""
    payload_base64: str = ""
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    retain: bool = False
    expiry: Annotated[int, Meta(ge=0, le=EXPIRY_MAX, description="Message expiry interval in seconds; 0: never.")] = 0


class Published(Struct, frozen=True):
    receivers: Annotated[
        int, Meta(description="Number of sessions, groups, streams and other nodes that the message was routed to.")
    ]


class RetainedRequest(Struct, frozen=True):
    filter: Filter = "#"
    cursor: Cursor = ""
    limit: Limit = PAGE


class OneTopic(Struct, frozen=True):
    topic: Topic


class MessageActionDone(Struct, frozen=True):
    done: str


class RetainedInfo(Struct, frozen=True):
    topic: str
    qos: int
    size: Annotated[
        int | None, Meta(description="Size of the payload in bytes; null: it is large, and at other nodes only.")
    ]
    published_at: str
    publisher: str
    expires_at: str | None


class RetainedReply(Struct, frozen=True):
    retained: list[RetainedInfo]
    next: str | None


class RetainedMessage(RetainedInfo, frozen=True):
    size: Annotated[int, Meta(description="Size of the payload in bytes.")]
    payload: Annotated[str | None, Meta(description="The payload as text; null if it is not valid UTF-8.")]
    payload_base64: str


def encoded(topic: str) -> bytes:
    """Raises AdminError."""
    try:
        return topic.encode()
    except UnicodeEncodeError:
        raise AdminError(400, "topic: is not valid text") from None


AWAY: Final = (503, "this node is isolated, or has not joined its cluster yet")
TURNED_DOWN: Final[dict[int, tuple[int, str]]] = {
    ISOLATED: AWAY,
    POSTPONED: AWAY,
    NOT_STORED: (507, "nothing can be stored at the moment, or the buffer for another node is full; try again later"),
    MEMORY: (503, "memory is short (limits.memory); try again later"),
    RESERVED: (403, "topic: only the broker itself publishes to this topic"),
    STREAM_FULL: (503, "a stream is full"),
}


async def publish(driver: Driver, message: Message) -> int:
    """Publish as a client does, but without hooks and access rules. Raises AdminError where a client is refused."""
    state = driver.state
    ctx = state.ctx
    ctx.at(driver.clock())
    message.published_at = ctx.now
    if ctx.isolated or ctx.catching_up:
        raise AdminError(*AWAY)
    if message.size() > ctx.max_packet:
        raise AdminError(413, f"a message may have at most {ctx.max_packet:,} bytes (limits.max_packet_size)")
    if message.qos > ctx.max_qos or (message.retain and not ctx.retain_available):
        raise AdminError(400, "this QoS, or retaining, is not available here (mqtt.max_qos, mqtt.retain_available)")
    try:
        route = state.router.resolve(message.topic)
    except MqttError as error:
        raise AdminError(400, f"topic: {error.detail}") from None
    verdict = NOT_STORED if ctx.refusing else admit(ctx, route, message.qos != 0)
    if verdict == UNCHECKED:
        broken = "" if route.contract is None else route.contract.broken_by(message)
        if broken:
            raise AdminError(422, broken)
    elif verdict != ADMITTED:
        raise AdminError(*TURNED_DOWN[verdict])
    receivers = state.publishing.route(message, None)
    if not await driver.stored():
        raise AdminError(507, "the message could not be stored; some subscribers may have received it")
    return receivers


def info_of(message: Message) -> RetainedInfo:
    return RetainedInfo(
        text(message.topic),
        message.qos,
        len(message.payload) if message.loaded else None,
        when(message.published_at),
        message.publisher,
        when(message.expires_at) if message.expires_at else None,
    )


def whole(message: Message, shown_max: int | None = None) -> RetainedMessage:
    """``shown_max``: bytes of the payload that are shown; None: all."""
    shown = message.payload[:shown_max]
    try:
        payload = shown.decode()
    except UnicodeDecodeError:
        payload = None
    return RetainedMessage(**asdict(info_of(message)), payload=payload, payload_base64=b64encode(shown).decode())


class MessageActions:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.state = driver.state

    @action("publish", "POST /publish", NODE, body="Publication", audit="published to {topic!r}", level=logging.DEBUG)
    async def publish(self, request: PublishRequest) -> Published:
        """Publish a message; the response is sent after the message has been stored. Raises AdminError."""
        topic = encoded(request.topic)
        now = self.driver.clock()
        expires_at = now + request.expiry if request.expiry else 0.0
        message = Message(topic, _payload(request), request.qos, request.retain, b"", expires_at, "", now)
        return Published(await publish(self.driver, message))

    @action("retained", "GET /retained", NODE)
    async def retained(self, request: RetainedRequest) -> RetainedReply:
        """List retained messages by topic; they are the same on all nodes."""
        wanted, limit = encoded(request.filter), request.limit
        if not valid_filter(wanted):
            raise AdminError(400, "filter: is not a valid topic filter")
        walk = self.state.retained.cursor(wanted, unpack(request.cursor))
        found: list[Message] = []
        while not walk.done and len(found) <= limit:
            found += walk.next(min(FOUND_AT_ONCE, limit + 1 - len(found)))
            await asyncio.sleep(0)
        following = pack(found[limit - 1].topic) if len(found) > limit else None
        return RetainedReply([info_of(message) for message in found[:limit]], following)

    @action("retained.show", "GET /retained/message", NODE, content=True)
    async def retained_message(self, request: OneTopic) -> RetainedMessage:
        """Get one retained message."""
        message = self.state.retained.get(encoded(request.topic))
        if message is None:
            raise AdminError(404, "no retained message on this topic")
        if not message.loaded:
            raise AdminError(409, "this message is large, and its payload is at other nodes; ask one of them (node)")
        return whole(message)

    @action(
        "retained.delete",
        "DELETE /retained/message",
        NODE,
        ctl="unretain topic",
        audit="deleted the retained message of {topic!r}",
        said="the retained message of {topic} was deleted",
    )
    async def forget(self, request: OneTopic) -> MessageActionDone:
        """Delete a retained message; subscribers receive an empty one."""
        topic = encoded(request.topic)
        if self.state.retained.get(topic) is None:
            raise AdminError(404, "no retained message on this topic")
        await publish(self.driver, Message(topic, b"", 0, True, b"", 0.0, "", 0.0))
        return MessageActionDone("deleted")


def _payload(request: PublishRequest) -> bytes:
    """Raises AdminError."""
    coded = request.payload_base64
    try:
        return b64decode(coded, validate=True) if coded else request.payload.encode()
    except ValueError:
        raise AdminError(400, "payload_base64 is not valid base64, or payload is not valid text") from None


class SessionMessageRequest(Struct, frozen=True):
    client_id: ClientId
    number: Annotated[
        int, Meta(ge=0, le=10**9, description="Position in the queue, from 0; or packet id in the window.")
    ] = 0
    place: Annotated[Literal["queue", "window"], Meta(description="Where the message is.")] = "queue"


class SessionMessage(RetainedMessage, frozen=True):
    """``qos``: of its delivery."""

    retain: bool
    shown: Annotated[int, Meta(description="Bytes of the payload in this response; longer ones are cut.")]


class SessionMessageAnswer(Struct, frozen=True):
    """``message`` None: this node has no such message."""

    message: SessionMessage | None


def first_found(rpc: NodeRpc, answers: Answers[SessionMessageAnswer], request: SessionMessageRequest) -> SessionMessage:
    """Raises AdminError."""
    for one in answers.results.values():
        if one.message is not None:
            return one.message
    if answers.missing:
        raise rpc.no_result(answers.missing)
    raise AdminError(404, "there is no such message any more: it was sent, acknowledged or has expired")


class SessionMessages:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @action("session.message", "GET /session/message", ALL, content=True, merge=first_found)
    async def message(self, request: SessionMessageRequest) -> SessionMessageAnswer:
        """Get one message of a session's queue or inflight window. Raises AdminError."""
        session = self._driver.state.ctx.sessions.get(request.client_id)
        found = None if session is None or not of_clients(session) else _find(session, request.place, request.number)
        if found is None:
            return SessionMessageAnswer(None)
        message, qos, offset = found
        if message is None or not message.loaded:
            if not self._driver.store.readable():
                raise AdminError(503, "the disk cannot be read at the moment")
            message = self._driver.store.load([offset]).get(offset)
        return SessionMessageAnswer(None if message is None else shown(message, qos))


def _find(session: Session, place: str, number: int) -> tuple[Message | None, int, int] | None:
    """The message (None: it is on disk only), the QoS of its delivery, and its offset in the store."""
    if place == WINDOW:
        entry = None if session.window is None else session.window.entries.get(number)
        return None if entry is None else (entry.message, entry.qos, entry.message.offset)
    queue = session.queue
    if queue is None:
        return None
    if number < len(queue.items):
        outgoing = queue.items[number]
        return outgoing.message, outgoing.qos, outgoing.message.offset
    number -= len(queue.items)
    if queue.stored is None or number >= len(queue.stored):
        return None
    reference = queue.stored.peek(number)
    return None, reference.flags & 3, reference.offset


def shown(message: Message, qos: int) -> SessionMessage:
    told = asdict(whole(message, PAYLOAD_MAX)) | {"qos": qos}
    return SessionMessage(**told, retain=message.retain, shown=min(len(message.payload), PAYLOAD_MAX))
