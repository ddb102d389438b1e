"""Actions that the node which is asked composes of requests to several nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import ByNode, action
from starlingmq.admin.history import POINTS_MAX, SECONDS_MAX, History, NodeHistory, buckets
from starlingmq.admin.node_rpc import Missing, NodeRpc
from starlingmq.admin.operator_bans import BanChange, BanNews, BansReceived, BanUpdate, NewBan, OneBan
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.overview import Overview
from starlingmq.admin.printable import NODE_COLUMNS
from starlingmq.admin.stream_requests import GossipNews, GossipRequest, NewStream, OneStream, StreamTrim
from starlingmq.admin.typed_actions import NoArguments, ask
from starlingmq.auth.automatic_bans import Kind
from starlingmq.net.control_socket import Report
from starlingmq.storage.streams.stream_views import StreamDeleted, StreamTrimmed, StreamView

OneNode = Annotated[str, Meta(max_length=1000, description="Only this node. Default: all nodes of the cluster.")]
StreamName = Annotated[str, Meta(min_length=1, max_length=1000, description="Stream name.")]
Filter = Annotated[str, Meta(min_length=1, max_length=65535)]


class Banned(Struct, frozen=True):
    """Missing nodes receive the ban when they are connected again. ``name``: as in the list of bans."""

    kind: Kind
    name: str
    seconds: float
    reason: str
    nodes: list[str]
    missing: list[Missing]


class Lifted(Struct, frozen=True):
    done: Literal["lifted"]
    nodes: list[str]
    missing: list[Missing]


class NewStreamAt(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=1000)]
    topics: Annotated[list[Filter], Meta(min_length=1, max_length=1000)]
    retention_time: Annotated[str, Meta(max_length=30, description="Minimum retention time; 0: unlimited.")] = "7d"
    retention_size: Annotated[str, Meta(max_length=30, description="Maximum size on each node; 0: unlimited.")] = "0"
    when_full: Literal["drop_oldest", "refuse"] = "drop_oldest"
    node: OneNode = ""


class StreamTrimAt(Struct, frozen=True):
    name: StreamName
    before: (
        Annotated[int, Meta(ge=0, le=2**62, description="First offset to keep. Default: delete all messages.")] | None
    ) = None
    node: OneNode = ""


class OneStreamAt(Struct, frozen=True):
    name: StreamName
    node: OneNode = ""


class Overviews(Struct, frozen=True):
    node: str
    nodes: list[Overview]
    missing: list[Missing]


class HistoryWanted(Struct, frozen=True):
    seconds: Annotated[int, Meta(ge=1, le=SECONDS_MAX, description="Time that the reply covers, up to now.")] = 3600
    points: Annotated[int, Meta(ge=1, le=POINTS_MAX, description="Maximum number of values per series.")] = 240
    node: OneNode = ""


class ClusterActions:
    def __init__(self, rpc: NodeRpc, clock: Callable[[], float]) -> None:
        self._rpc = rpc
        self._clock = clock

    # Bans

    @action("ban", "POST /bans", status=201, body="NewBan", noted_by="bans.hear")
    async def ban(self, report: Report, request: NewBan) -> Banned:
        """Ban an address, user or client id on all nodes."""
        change = BanChange(request.kind, request.name, request.seconds, request.reason, request.disconnect)
        name, _, nodes, missing = await self._distribute(report, change)
        return Banned(request.kind, name, request.seconds, request.reason, nodes, missing)

    @action(
        "ban.lift",
        "DELETE /bans",
        ctl="unban kind name",
        said="the ban of {kind} {name} was lifted",
        noted_by="bans.hear",
    )
    async def lift(self, report: Report, request: OneBan) -> Lifted:
        """Lift a ban on all nodes."""
        change = BanChange(request.kind, request.name, seconds=0.0)
        _, lifted, nodes, missing = await self._distribute(report, change)
        if not lifted:
            away = ", ".join(one.node for one in missing)
            raise AdminError(404, "no such ban" + (f" (these nodes do not answer: {away})" if away else ""))
        return Lifted("lifted", nodes, missing)

    async def _distribute(self, report: Report, change: BanChange) -> tuple[str, bool, list[str], list[Missing]]:
        """Send the news to all nodes. Nodes that are missing now receive it when they are connected again. Returns the
        name of the entry, whether a node had this ban and it has ended, and the nodes."""
        news = await ask(self._rpc.actions["bans.said"], report, change, BanNews)
        answers = await self._rpc.everywhere("bans.hear", BanUpdate(news.said), BansReceived)
        lifted = any(one.lifted for one in answers.results.values())
        return news.said[0].name, lifted, list(answers.results), answers.missing

    # Streams

    @action("streams.create", "POST /streams", status=201, body="NewStreamBody", noted_by="stream.create")
    async def create(self, report: Report, request: NewStreamAt) -> ByNode[StreamView]:
        """Create a stream that keeps messages of the given topics."""
        if any("\n" in topic for topic in request.topics):
            raise AdminError(400, "topics: must not contain line breaks")
        made = NewStream(
            request.name,
            "\n".join(request.topics),
            request.retention_time,
            request.retention_size,
            request.when_full,
        )
        answers = await self._rpc.everywhere("stream.create", made, StreamView, request.node)
        if not request.node:
            await self._spread(report, GossipRequest.created(made))
        return ByNode(answers.results, answers.missing)

    @action("streams.trim", "POST /streams/trim", noted_by="stream.trim")
    async def trim(self, request: StreamTrimAt) -> ByNode[StreamTrimmed]:
        """Delete the messages of a stream before an offset, in whole segment files."""
        asked = StreamTrim(request.name, request.before)
        answers = await self._rpc.everywhere("stream.trim", asked, StreamTrimmed, request.node)
        return ByNode(answers.results, answers.missing)

    @action("streams.delete", "DELETE /streams", noted_by="stream.delete")
    async def end(self, report: Report, request: OneStreamAt) -> ByNode[StreamDeleted]:
        """Delete a stream and all its messages."""
        answers = await self._rpc.everywhere("stream.delete", OneStream(request.name), StreamDeleted, request.node)
        if not request.node:
            await self._spread(report, GossipRequest(request.name, deleted=True))
        return ByNode(answers.results, answers.missing)

    async def _spread(self, report: Report, request: GossipRequest) -> None:
        """Have all nodes store the definition, so that a node that is missing now receives it later."""
        if "stream.word" in self._rpc.actions:
            news = await ask(self._rpc.actions["stream.word"], report, request, GossipNews)
            await self._rpc.everywhere("stream.hear", news, GossipNews)

    # Nodes

    @action("overviews", "GET /cluster/overview", tag="overview", ctl="overview", columns=NODE_COLUMNS)
    async def overviews(self, request: NoArguments) -> Overviews:
        """Get an overview of all nodes."""
        answers = await self._rpc.everywhere("overview", request, Overview)
        return Overviews(self._rpc.name, list(answers.results.values()), answers.missing)

    @action("histories", "GET /history")
    async def history(self, request: HistoryWanted) -> History:
        """Get rates and states of the last hour, by node. The figures of all nodes in the same buckets."""
        wanted = buckets(self._clock(), request.seconds, request.points)
        answers = await self._rpc.everywhere("history", wanted, NodeHistory, request.node)
        nodes = {node: one.series for node, one in answers.results.items()}
        return History(self._rpc.name, wanted.end, wanted.step, SECONDS_MAX, nodes, answers.missing)
