"""Live views as server-sent events: messages of some topics, and traces of messages through the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from litestar.response import ServerSentEvent
from litestar.response.sse import ServerSentEventMessage
from msgspec import json

from starlingmq.admin.node_rpc import Missing
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.traces import RATE, RATE_MAX, Trace, TraceRequest, message_of
from starlingmq.admin.typed_actions import texts
from starlingmq.api.guard import CONTENT, GOES_ON
from starlingmq.api.served import served
from starlingmq.core.limits.address_key import network_key

EVENTS: Final = "text/event-stream"

Filter = Annotated[str, Parameter(min_length=1, max_length=65535, description="Topic filter; + and # are wildcards.")]
TopicFilter = Annotated[str, Parameter(max_length=65535, description="Only messages whose topic matches this filter.")]
Client = Annotated[str, Parameter(max_length=65535, description="Only messages from or to this client.")]
Rate = Annotated[
    int,
    Parameter(
        ge=1, le=RATE_MAX, description="Maximum number of messages per second and node; further ones are left out."
    ),
]


def event(name: str, data: Any) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=json.encode(data).decode(), event=name)


def _address(request: Request[Any, Any, Any]) -> str:
    """The key of the client's address, for limits per address."""
    client = request.scope["client"]
    return network_key(client[0]) if client else ""


def routes() -> list[HTTPRouteHandler]:
    async def begun(address: str, request: TraceRequest) -> Trace:
        served().streams.check(address)
        for name, value in texts(request).items():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise AdminError(400, f"{name}: is not valid text") from None
        return await served().service.traces.open(request)

    async def events(
        request: Request[Any, Any, Any], trace: Trace, address: str, first: Any, tail: bool
    ) -> AsyncIterator[ServerSentEventMessage]:
        missing: list[Missing] = []
        goes_on = request.scope["state"].get(GOES_ON)
        here = served()
        try:
            with here.streams.held(address):
                yield event("ready", {"node": here.local_node.name, **first})
                while True:
                    found = await trace.next()
                    if goes_on is not None and not goes_on():
                        return
                    for told in found.events:
                        yield event("message", message_of(told)) if tail else event("step", told)
                    if found.lost:
                        yield event("dropped", {"count": found.lost})
                    if found.missing != missing:
                        missing = found.missing
                        yield event("missing", missing)
                    if not found.events:
                        yield ServerSentEventMessage(comment="nothing")
        finally:
            here.service.traces.end_soon(trace)

    @get(
        "/tail",
        summary="Stream published messages of all nodes as server-sent events",
        media_type="text/event-stream",
        opt=CONTENT,
    )
    async def tail(request: Request[Any, Any, Any], filter: Filter, rate: Rate = RATE) -> ServerSentEvent:
        address = _address(request)
        trace = await begun(address, TraceRequest(topic=filter, tail=True, rate=rate))
        return ServerSentEvent(events(request, trace, address, {"filter": filter}, True))

    @get("/trace", summary="Trace messages through all nodes as server-sent events", media_type="text/event-stream")
    async def trace(
        request: Request[Any, Any, Any], topic: TopicFilter = "", client_id: Client = "", rate: Rate = RATE
    ) -> ServerSentEvent:
        address = _address(request)
        trace = await begun(address, TraceRequest(client_id, topic, rate=rate))
        return ServerSentEvent(events(request, trace, address, {"topic": topic, "client_id": client_id}, False))

    return [tail, trace]
