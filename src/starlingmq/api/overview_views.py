"""One look at a node, or at all of them, and what they have logged."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import Meta, Struct, convert

from starlingmq.admin.node_rpc import Missing
from starlingmq.admin.overview import Overview
from starlingmq.api.paged_views import AtNode, Node
from starlingmq.api.served import Served

Level = Annotated[Literal["debug", "info", "warning", "error"], Parameter(description="Lines of this level and above.")]
After = Annotated[
    int | None, Parameter(ge=0, le=2**62, description="``next`` of the answer before; without it the last lines.")
]
Lines = Annotated[int, Parameter(ge=1, le=1000)]


class Overviews(Struct, frozen=True):
    node: str
    nodes: list[Overview]
    missing: list[Missing]


class LinkView(Struct, frozen=True):
    """How ``node`` reaches ``peer``."""

    node: str
    peer: str
    connected: bool
    through: Annotated[str, Meta(description="The third node that passes frames on; empty if it needs none.")]
    queued: Annotated[int, Meta(description="Messages that wait for the peer.")]
    queued_bytes: int
    unacknowledged: Annotated[int, Meta(description="Frames with messages on their way.")]
    round_trip_ms: Annotated[float | None, Meta(description="Of an empty question, a few seconds ago at most.")]
    heard_seconds: Annotated[float | None, Meta(description="How long ago something came from the peer.")]


class Links(Struct, frozen=True):
    node: str
    links: list[LinkView]
    missing: list[Missing]


class LogLine(Struct, frozen=True):
    number: int
    time: str
    level: str
    logger: str
    message: str


class Log(Struct, frozen=True):
    node: str
    lines: list[LogLine]
    next: int
    lost: Annotated[int, Meta(description="Lines that were gone before they could be read.")]


def routes(served: Served) -> list[HTTPRouteHandler]:
    @get("/overview", summary="One node at a glance")
    async def overview(node: AtNode = "") -> Overview:
        return convert(await served.ask("overview", node=node), Overview)

    @get("/cluster/overview", summary="Every node at a glance")
    async def overviews() -> Overviews:
        return convert(await served.ask("overviews"), Overviews)

    @get("/links", summary="How nodes reach each other")
    async def links(node: Node = "") -> Links:
        return convert(await served.ask("links", node=node), Links)

    @get("/log", summary="The last lines of a node's log, or those after the last that were seen")
    async def log(after: After = None, limit: Lines = 200, level: Level = "info", node: AtNode = "") -> Log:
        arguments: dict[str, Any] = {"level": level, "limit": str(limit), "node": node}
        return convert(await served.ask("log", after="" if after is None else str(after), **arguments), Log)

    return [overview, overviews, links, log]
