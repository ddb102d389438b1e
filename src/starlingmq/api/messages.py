"""Messages: publish one, and those that are retained."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from typing import Annotated, Any, Final

from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, Parameter
from msgspec import Meta, Struct

from starlingmq.api.listing import PAGE, Cursor, Limit, pack, unpack
from starlingmq.api.problem import ApiError
from starlingmq.api.served import Served
from starlingmq.api.sessions import Done, text, when
from starlingmq.core.message import Message
from starlingmq.core.publishing import stream_is_full
from starlingmq.core.topics import valid_filter
from starlingmq.wire.reasons import MqttError

log = logging.getLogger("starlingmq.http")

FOUND_AT_ONCE: Final = 250  # retained messages, before everybody else gets a turn
EXPIRY_MAX: Final = 0xFFFFFFFE

Topic = Annotated[str, Parameter(min_length=1, max_length=65535, description="A topic, without wildcards.")]
Filter = Annotated[str, Parameter(min_length=1, max_length=65535, description="Topics, + and # are wildcards.")]


class Publication(Struct, frozen=True, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(min_length=1, max_length=65535)]
    payload: Annotated[str, Meta(description="Text; or payload_base64.")] = ""
    payload_base64: str = ""
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    retain: bool = False
    expiry: Annotated[int, Meta(ge=0, le=EXPIRY_MAX, description="Seconds after which nobody gets it; 0: never.")] = 0


class Published(Struct, frozen=True):
    receivers: Annotated[int, Meta(description="Sessions, groups, streams and other nodes that it went to.")]


class RetainedInfo(Struct, frozen=True):
    topic: str
    qos: int
    size: Annotated[int, Meta(description="Bytes of the payload.")]
    published_at: str
    publisher: str
    expires_at: str | None


class RetainedMessage(Struct, frozen=True):
    topic: str
    qos: int
    size: int
    published_at: str
    publisher: str
    expires_at: str | None
    payload: Annotated[str | None, Meta(description="As text; null if it is none.")]
    payload_base64: str


class RetainedPage(Struct, frozen=True):
    node: str
    retained: list[RetainedInfo]
    next: str | None


def encoded(topic: str) -> bytes:
    """Raises ApiError."""
    try:
        return topic.encode()
    except UnicodeEncodeError:
        raise ApiError(400, "topic: is no text that could be sent") from None


def payload_of(data: JSONBody[Publication]) -> bytes:
    """Raises ApiError."""
    try:
        return b64decode(data.payload_base64, validate=True) if data.payload_base64 else data.payload.encode()
    except ValueError:
        raise ApiError(400, "payload_base64: is not base64, or payload is no text that could be sent") from None


async def publish(served: Served, message: Message) -> int:
    """As a client would, but for hooks and rules, which are for those. Raises ApiError where a client is refused."""
    state = served.state
    ctx = state.ctx
    message.published_at = ctx.now = served.driver.clock()
    if ctx.isolated or ctx.catching_up:
        raise ApiError(503, "this node is not with the majority of its cluster, or not yet")
    if message.size() > ctx.max_packet:
        raise ApiError(413, f"a message has {ctx.max_packet:,} bytes at most (limits.max_packet_size)")
    if message.qos > ctx.max_qos or (message.retain and not ctx.retain_available):
        raise ApiError(400, "that QoS, or retaining, is not available here (mqtt.max_qos, mqtt.retain_available)")
    try:
        route = state.router.resolve(message.topic)
    except MqttError as error:
        raise ApiError(400, f"topic: {error.detail}") from None
    if route.reserved:
        raise ApiError(403, "topic: only the broker itself publishes there")
    if ctx.refusing:
        raise ApiError(507, "nothing can be stored at the moment")
    if message.qos and (state.publishing.too_much_waits(route) or stream_is_full(route)):
        raise ApiError(503, "a stream is full, or as much waits for another node as may")
    receivers = state.publishing.route(message, None)
    if not await served.driver.stored():
        raise ApiError(507, "it could not be stored; it may arrive nevertheless")
    return receivers


def info_of(message: Message) -> RetainedInfo:
    return RetainedInfo(
        text(message.topic),
        message.qos,
        len(message.payload),
        when(message.published_at),
        message.publisher,
        when(message.expires_at) if message.expires_at else None,
    )


def whole(message: Message) -> RetainedMessage:
    info = info_of(message)
    try:
        payload = message.payload.decode()
    except UnicodeDecodeError:
        payload = None
    return RetainedMessage(
        info.topic,
        info.qos,
        info.size,
        info.published_at,
        info.publisher,
        info.expires_at,
        payload,
        b64encode(message.payload).decode(),
    )


def routes(served: Served) -> list[HTTPRouteHandler]:
    state = served.state

    @post("/publish", status_code=200, summary="Publish a message; it is stored, as far as it is to be, when this ends")
    async def publish_one(request: Request[Any, Any, Any], data: JSONBody[Publication]) -> Published:
        now = served.driver.clock()
        expires_at = now + data.expiry if data.expiry else 0.0
        message = Message(encoded(data.topic), payload_of(data), data.qos, data.retain, b"", expires_at, "", now)
        receivers = await publish(served, message)
        log.debug("%s published to %r", request.scope["state"]["user"] or "somebody", data.topic)
        return Published(receivers)

    @get("/retained", summary="Retained messages, by topic")
    async def retained(filter: Filter = "#", limit: Limit = PAGE, cursor: Cursor = None) -> RetainedPage:
        wanted = encoded(filter)
        if not valid_filter(wanted):
            raise ApiError(400, "filter: is none")
        walk = state.retained.cursor(wanted, unpack(cursor))
        found: list[Message] = []
        while not walk.done and len(found) <= limit:
            found += walk.next(min(FOUND_AT_ONCE, limit + 1 - len(found)))
            await asyncio.sleep(0)
        following = pack(found[limit - 1].topic) if len(found) > limit else None
        return RetainedPage(served.name, [info_of(message) for message in found[:limit]], following)

    @get("/retained/message", summary="One retained message")
    async def retained_message(topic: Topic) -> RetainedMessage:
        message = state.retained.get(encoded(topic))
        if message is None:
            raise ApiError(404, "nothing is retained there")
        return whole(message)

    @delete("/retained/message", status_code=200, summary="Forget a retained message; subscribers get it empty")
    async def forget(request: Request[Any, Any, Any], topic: Topic) -> Done:
        if state.retained.get(encoded(topic)) is None:
            raise ApiError(404, "nothing is retained there")
        await publish(served, Message(encoded(topic), b"", 0, True, b"", 0.0, "", 0.0))
        log.info("%s deleted what was retained for %r", request.scope["state"]["user"] or "somebody", topic)
        return Done("deleted")

    return [publish_one, retained, retained_message, forget]
