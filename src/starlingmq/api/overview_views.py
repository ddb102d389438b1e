"""Overviews of one node or of all nodes, peer links, and the log."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import convert

from starlingmq.admin.cluster_actions import Overviews
from starlingmq.admin.history import POINTS_MAX, SECONDS_MAX, History
from starlingmq.admin.link_views import ListedLinks
from starlingmq.admin.log_tail import LogLines
from starlingmq.admin.overview import Overview
from starlingmq.api.paged_views import AtNode, Node
from starlingmq.api.served import served

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

Seconds = Annotated[int, Parameter(ge=1, le=SECONDS_MAX, description="Time that the reply covers, up to now.")]
Points = Annotated[
    int,
    Parameter(ge=1, le=POINTS_MAX, description="Maximum number of values per series."),
]


class Log(LogLines, frozen=True, kw_only=True):
    node: str


def routes() -> list[HTTPRouteHandler]:
    @get("/overview", summary="Get an overview of this node")
    async def overview(node: AtNode = "") -> Overview:
        return convert(await served().ask("overview", node=node), Overview)

    @get("/cluster/overview", summary="Get an overview of all nodes")
    async def overviews() -> Overviews:
        return convert(await served().ask("overviews"), Overviews)

    @get("/history", summary="Get rates and states of the last hours, by node")
    async def history(seconds: Seconds = 3600, points: Points = 240, node: Node = "") -> History:
        found = await served().ask("histories", seconds=str(seconds), points=str(points), node=node)
        return convert(found, History)

    @get("/links", summary="List the peer links of all nodes")
    async def links(node: Node = "") -> ListedLinks:
        return convert(await served().ask("links", node=node), ListedLinks)

    @get("/log", summary="Get the last lines of a node's log, or those after a position")
    async def log(after: After = None, limit: Lines = 200, level: Level = "info", node: AtNode = "") -> Log:
        text = "" if after is None else str(after)
        return convert(await served().ask("log", after=text, level=level, limit=str(limit), node=node), Log)

    return [overview, overviews, history, links, log]
