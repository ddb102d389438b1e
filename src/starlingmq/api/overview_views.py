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

Level = Annotated[Literal["debug", "info", "warning", "error"], Parameter(description="Minimum level of the lines.")]
After = Annotated[
    int | None,
    Parameter(
        ge=0,
        le=2**62,
        description="Position to continue from: ``next`` of the previous response. Default: the last lines.",
    ),
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
    through: Annotated[
        str, Meta(description="The node that relays frames between the two; empty if they are connected directly.")
    ]
    queued: Annotated[int, Meta(description="Messages queued for the peer.")]
    queued_bytes: int
    unacknowledged: Annotated[int, Meta(description="Message frames in flight.")]
    round_trip_ms: Annotated[
        float | None, Meta(description="Round-trip time of an empty request, at most a few seconds old.")
    ]
    heard_seconds: Annotated[float | None, Meta(description="Seconds since the last data from the peer.")]


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
    lost: Annotated[int, Meta(description="Lines that were discarded before they could be read.")]


def routes(served: Served) -> list[HTTPRouteHandler]:
    @get("/overview", summary="Get an overview of this node")
    async def overview(node: AtNode = "") -> Overview:
        return convert(await served.ask("overview", node=node), Overview)

    @get("/cluster/overview", summary="Get an overview of all nodes")
    async def overviews() -> Overviews:
        return convert(await served.ask("overviews"), Overviews)

    @get("/links", summary="List the peer links of all nodes")
    async def links(node: Node = "") -> Links:
        return convert(await served.ask("links", node=node), Links)

    @get("/log", summary="Get the last lines of a node's log, or those after a position")
    async def log(after: After = None, limit: Lines = 200, level: Level = "info", node: AtNode = "") -> Log:
        arguments: dict[str, Any] = {"level": level, "limit": str(limit), "node": node}
        return convert(await served.ask("log", after="" if after is None else str(after), **arguments), Log)

    return [overview, overviews, links, log]
