"""What happens now, as server-sent events: messages of some topics, and the way of messages through the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from litestar.response import ServerSentEvent
from litestar.response.sse import ServerSentEventMessage
from msgspec import json

from starlingmq.admin.problem import AdminError
from starlingmq.admin.traces import RATE, RATE_MAX, Trace, message_of
from starlingmq.api.served import Served

EVENTS: Final = "text/event-stream"
OPEN_MAX: Final = 8  # at once

Filter = Annotated[str, Parameter(min_length=1, max_length=65535, description="Topics, + and # are wildcards.")]
TopicFilter = Annotated[str, Parameter(max_length=65535, description="Messages of these topics.")]
Client = Annotated[str, Parameter(max_length=65535, description="Messages from this client, or to it.")]
Rate = Annotated[int, Parameter(ge=1, le=RATE_MAX, description="Messages a second of each node; more are left out.")]


def event(name: str, data: Any) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=json.encode(data).decode(), event=name)


def routes(served: Served) -> list[HTTPRouteHandler]:
    open_ = 0

    async def begun(**arguments: str) -> Trace:
        if open_ >= OPEN_MAX:
            raise AdminError(429, f"{OPEN_MAX} of these are open at most")
        for name, value in arguments.items():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise AdminError(400, f"{name}: is no text that could be sent") from None
        return await served.office.traces.open({name: value for name, value in arguments.items() if value})

    async def events(trace: Trace, first: Any, tail: bool) -> AsyncIterator[ServerSentEventMessage]:
        nonlocal open_
        open_ += 1
        missing: list[Any] = []
        try:
            yield event("ready", {"node": served.place.name, **first})
            while True:
                found = await trace.next()
                for told in found["events"]:
                    yield event("message", message_of(told)) if tail else event("step", told)
                if found["lost"]:
                    yield event("dropped", {"count": found["lost"]})
                if found["missing"] != missing:
                    missing = found["missing"]
                    yield event("missing", missing)
                if not found["events"]:
                    yield ServerSentEventMessage(comment="nothing")
        finally:
            open_ -= 1
            served.office.traces.end_soon(trace)

    @get(
        "/tail",
        summary="Messages of all nodes as they are published, as server-sent events",
        media_type="text/event-stream",
    )
    async def tail(filter: Filter, rate: Rate = RATE) -> ServerSentEvent:
        trace = await begun(topic=filter, rate=str(rate), tail="yes")
        return ServerSentEvent(events(trace, {"filter": filter}, True))

    @get(
        "/trace", summary="The way of messages through the nodes, as server-sent events", media_type="text/event-stream"
    )
    async def trace(topic: TopicFilter = "", client_id: Client = "", rate: Rate = RATE) -> ServerSentEvent:
        trace = await begun(topic=topic, client_id=client_id, rate=str(rate))
        return ServerSentEvent(events(trace, {"topic": topic, "client_id": client_id}, False))

    return [tail, trace]
