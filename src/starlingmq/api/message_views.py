"""Publish a message; list, show and delete retained messages."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, Parameter
from msgspec import Meta, Struct, convert

from starlingmq.admin.messages import EXPIRY_MAX, MessageActionDone, Published, RetainedMessage, RetainedReply
from starlingmq.admin.sorted_entries import RetainedSort, SortedRetained
from starlingmq.api.guard import CONTENT
from starlingmq.api.paged_views import PAGE, Cursor, Descending, Limit
from starlingmq.api.served import served

Topic = Annotated[str, Parameter(min_length=1, max_length=65535, description="Topic without wildcards.")]
RetainedOrder = Annotated[RetainedSort, Parameter(description="Column to sort by.")]
Filter = Annotated[str, Parameter(min_length=1, max_length=65535, description="Topic filter; + and # are wildcards.")]


class Publication(Struct, frozen=True, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(min_length=1, max_length=65535)]
    payload: Annotated[str, Meta(description="Payload as text, in place of payload_base64.")] = ""
    payload_base64: str = ""
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    retain: bool = False
    expiry: Annotated[int, Meta(ge=0, le=EXPIRY_MAX, description="Message expiry interval in seconds; 0: never.")] = 0


class RetainedPage(RetainedReply, frozen=True, kw_only=True):
    node: str


class RetainedSearchPage(SortedRetained, frozen=True, kw_only=True):
    node: str


def routes() -> list[HTTPRouteHandler]:
    @post(
        "/publish", status_code=200, summary="Publish a message; the response is sent after the message has been stored"
    )
    async def publish(request: Request[Any, Any, Any], data: JSONBody[Publication]) -> Published:
        found = await served().ask(
            "publish",
            topic=data.topic,
            payload=data.payload,
            payload_base64=data.payload_base64,
            qos=str(data.qos),
            retain="yes" if data.retain else "no",
            expiry=str(data.expiry),
            by=served().who(request),
        )
        return convert(found, Published)

    @get("/retained", summary="List retained messages by topic; they are the same on all nodes")
    async def retained(filter: Filter = "#", limit: Limit = PAGE, cursor: Cursor = None) -> RetainedPage:
        return convert(
            await served().ask("retained", filter=filter, limit=str(limit), cursor=cursor or ""), RetainedPage
        )

    @get("/retained/search", summary="Search retained messages, in a chosen order, with their number")
    async def search_retained(
        filter: Filter = "#",
        limit: Limit = PAGE,
        cursor: Cursor = None,
        sort: RetainedOrder = "topic",
        descending: Descending = False,
    ) -> RetainedSearchPage:
        order = {"sort": sort, "descending": "yes" if descending else "no"}
        found = await served().ask("retained.search", filter=filter, limit=str(limit), cursor=cursor or "", **order)
        return convert(found, RetainedSearchPage)

    @get("/retained/message", summary="Get one retained message", opt=CONTENT)
    async def retained_message(topic: Topic) -> RetainedMessage:
        return convert(await served().ask("retained.show", topic=topic), RetainedMessage)

    @delete("/retained/message", status_code=200, summary="Delete a retained message; subscribers receive an empty one")
    async def forget(request: Request[Any, Any, Any], topic: Topic) -> MessageActionDone:
        return convert(await served().ask("retained.delete", topic=topic, by=served().who(request)), MessageActionDone)

    return [publish, retained, search_retained, retained_message, forget]
