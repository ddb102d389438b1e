"""Actions that concern several nodes, or a node that the request names: for the HTTP API and for commands.

``node`` in a request names a node. In lists, "" means all nodes; in an action on one node, "" means this node. Replies
about several nodes have ``missing``: the nodes that did not answer, and why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from starlingmq.admin.activity import Activity, ActivityRequest, NodeActivityReply
from starlingmq.admin.history import POINTS_MAX, SECONDS_MAX, History, NodeHistory, buckets
from starlingmq.admin.link_views import LinksReply, ListedLinks
from starlingmq.admin.list_pages import (
    ClientList,
    ClientPage,
    GroupInfo,
    GroupList,
    GroupPage,
    LedGroups,
    LedGroupsRequest,
    SessionList,
    SessionPage,
    SubscriptionList,
    SubscriptionPage,
)
from starlingmq.admin.live_settings import Reloaded, ReloadRequest
from starlingmq.admin.node_rpc import Missing, NodeRpc
from starlingmq.admin.operator_bans import BanChange, BanNews, BansReceived, BansReply, BanUpdate, ListedBans
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.overview import Overview
from starlingmq.admin.sessions import (
    Clients,
    ClientsRequest,
    DoneHere,
    OneClient,
    SessionAnswer,
    SessionDetail,
    Sessions,
    SessionsRequest,
    Subscriptions,
    SubscriptionsRequest,
)
from starlingmq.admin.stream_requests import GossipNews, GossipRequest, NewStream, OneStream, StreamsReply, StreamTrim
from starlingmq.admin.typed_actions import NoArguments, ask, typed
from starlingmq.net.control_socket import Action, Report
from starlingmq.storage.streams.stream_views import StreamDeleted, StreamTrimmed, StreamView

Arguments = dict[str, str]
Result = dict[str, Any]

Asked = Callable[[str, Arguments], Awaitable[Result]]

LOCAL: Final = ("publish", "retained", "retained.search", "retained.show", "retained.delete")
AT_ONE: Final = (
    "overview",
    "log",
    "config",
    "listeners",
    "storage.stats",
    "drain.state",
    "drain.begin",
    "drain.cancel",
    "rules",
    "rules.test",
    "settings",
    "users",
)
"""Actions on one node. Arguments and result are passed on as they are."""


class AtNode(Struct, frozen=True):
    """A node, or "" for all."""

    node: str = ""


class ClientAt(Struct, frozen=True):
    """``by``: the operator, for the log."""

    client_id: str = ""
    by: str = ""
    node: str = ""


class DoneAt(Struct, frozen=True):
    """The nodes that performed an action, and those that did not answer."""

    done: str
    nodes: list[str]
    missing: list[Missing]


class BanResult(Struct, frozen=True):
    """``lifted``: a node had this ban, and it has ended. Missing nodes receive the news when they are connected.
    ``name``: as in the list of bans."""

    nodes: list[str]
    lifted: bool
    missing: list[Missing]
    name: str = ""


class ListedStreams(Struct, frozen=True):
    node: str
    streams: list[StreamView]
    missing: list[Missing]


class NewStreamAt(NewStream, frozen=True):
    node: str = ""


class StreamTrimAt(StreamTrim, frozen=True):
    node: str = ""


class OneStreamAt(OneStream, frozen=True):
    node: str = ""


class StreamsCreated(Struct, frozen=True):
    nodes: dict[str, StreamView]
    missing: list[Missing]


class StreamsTrimmed(Struct, frozen=True):
    nodes: dict[str, StreamTrimmed]
    missing: list[Missing]


class StreamsDeleted(Struct, frozen=True):
    nodes: dict[str, StreamDeleted]
    missing: list[Missing]


class Overviews(Struct, frozen=True):
    node: str
    nodes: list[Overview]
    missing: list[Missing]


class HistoryAt(Struct, frozen=True):
    """The last ``seconds`` in at most ``points`` buckets."""

    seconds: int = 3600
    points: int = 240
    node: str = ""


class ActivityAt(ActivityRequest, frozen=True):
    node: str = ""


class ReloadAt(ReloadRequest, frozen=True):
    """``node``: see ``NodeRpc.target``."""

    node: str = ""


class ReloadedAt(Struct, frozen=True):
    nodes: dict[str, Reloaded]
    missing: list[Missing]


class ClusterActions:
    """The actions by name, in ``actions``."""

    def __init__(self, rpc: NodeRpc, clock: Callable[[], float]) -> None:
        self._rpc = rpc
        self._clock = clock
        self.actions: dict[str, Action] = {
            "clients": typed(ClientList, self._clients),
            "sessions": typed(SessionList, self._sessions),
            "subscriptions": typed(SubscriptionList, self._subscriptions),
            "groups.all": typed(GroupList, self._groups),
            "session": typed(ClientAt, self._session),
            "client.kick": typed(ClientAt, partial(self._change, "client.kick")),
            "session.end": typed(ClientAt, partial(self._change, "session.end")),
            "bans": typed(AtNode, self._bans),
            "ban": typed(BanChange, self._ban),
            "ban.lift": typed(BanChange, self._lift),
            "streams": typed(AtNode, self._streams),
            "streams.create": typed(NewStreamAt, self._create_stream),
            "streams.trim": typed(StreamTrimAt, self._trim_stream),
            "streams.delete": typed(OneStreamAt, self._delete_stream),
            "overviews": typed(NoArguments, self._overviews),
            "histories": typed(HistoryAt, self._histories),
            "activity": typed(ActivityAt, self._activity),
            "links": typed(AtNode, self._links),
            "reload": typed(ReloadAt, self._reload),
            "leave": _named("leave.begin", self._at),
        }
        for name in LOCAL:
            self.actions[name] = _named(name, self._here)
        for name in AT_ONE:
            self.actions[name] = _named(name, self._at)

    async def _here(self, action: str, arguments: Arguments) -> Result:
        return await self._pass_on(action, "", arguments)

    async def _at(self, action: str, arguments: Arguments) -> Result:
        return await self._pass_on(action, arguments.get("node", ""), arguments)

    async def _pass_on(self, action: str, node: str, arguments: Arguments) -> Result:
        return {"node": node or self._rpc.name, **await self._rpc.at(node, action, arguments)}

    # Lists of which each node has a part

    async def _clients(self, report: Report, request: ClientList) -> ClientPage:
        page = await self._rpc.page("clients", ClientsRequest(request.q), Clients, lambda part: part.clients, request)
        return ClientPage(self._rpc.name, page.entries, page.next, page.missing)

    async def _sessions(self, report: Report, request: SessionList) -> SessionPage:
        page = await self._rpc.page(
            "sessions",
            SessionsRequest(request.q, request.connected),
            Sessions,
            lambda part: part.sessions,
            request,
        )
        return SessionPage(self._rpc.name, page.entries, page.next, page.missing)

    async def _subscriptions(self, report: Report, request: SubscriptionList) -> SubscriptionPage:
        page = await self._rpc.page(
            "subscriptions",
            SubscriptionsRequest(request.q, request.filter, request.topic),
            Subscriptions,
            lambda part: part.subscriptions,
            request,
        )
        return SubscriptionPage(self._rpc.name, page.entries, page.next, page.missing)

    async def _groups(self, report: Report, request: GroupList) -> GroupPage:
        page = await self._rpc.page(
            "groups.led",
            LedGroupsRequest(request.prefix),
            LedGroups,
            lambda part: [GroupInfo(**asdict(group)) for group in part.groups],
            request,
        )
        return GroupPage(self._rpc.name, page.entries, page.next, page.missing)

    # Sessions

    async def _session(self, report: Report, request: ClientAt) -> SessionDetail:
        """The session of the current owner. A node that was away may still have an older session of this client."""
        asked = OneClient(request.client_id, request.by)
        answers = await self._rpc.everywhere("session", asked, SessionAnswer, request.node)
        found = [
            replace(one.detail(), node=node, missing=answers.missing)
            for node, one in answers.results.items()
            if one.found
        ]
        if not found:
            raise self._rpc.no_result(answers.missing)
        return max(found, key=lambda one: (one.client is not None, one.session.owner_epoch))

    async def _change(self, action: str, report: Report, request: ClientAt) -> DoneAt:
        asked = OneClient(request.client_id, request.by)
        answers = await self._rpc.everywhere(action, asked, DoneHere, request.node)
        done = {node: one.done for node, one in answers.results.items() if one.found}
        if not done:
            raise self._rpc.no_result(answers.missing)
        return DoneAt(next(iter(done.values())), list(done), answers.missing)

    # Bans

    async def _bans(self, report: Report, request: AtNode) -> ListedBans:
        answers = await self._rpc.everywhere("bans", NoArguments(), BansReply, request.node)
        bans = [replace(ban, node=node) for node, one in answers.results.items() for ban in one.bans]
        return ListedBans(self._rpc.name, bans, answers.missing)

    async def _ban(self, report: Report, request: BanChange) -> BanResult:
        return await self._distribute(report, request)

    async def _lift(self, report: Report, request: BanChange) -> BanResult:
        result = await self._distribute(report, replace(request, seconds=0.0))
        if not result.lifted:
            away = ", ".join(one.node for one in result.missing)
            raise AdminError(404, "no such ban" + (f" (these nodes do not answer: {away})" if away else ""))
        return result

    async def _distribute(self, report: Report, request: BanChange) -> BanResult:
        """Send the news to all nodes. Nodes that are missing now receive it when they are connected again."""
        news = await ask(self._rpc.actions["bans.said"], report, request, BanNews)
        answers = await self._rpc.everywhere("bans.hear", BanUpdate(news.said, request.by), BansReceived)
        lifted = any(one.lifted for one in answers.results.values())
        return BanResult(list(answers.results), lifted, answers.missing, news.said[0].name)

    # Streams

    async def _streams(self, report: Report, request: AtNode) -> ListedStreams:
        answers = await self._rpc.everywhere("stream.all", NoArguments(), StreamsReply, request.node)
        streams = [replace(stream, node=node) for node, one in answers.results.items() for stream in one.streams]
        return ListedStreams(self._rpc.name, streams, answers.missing)

    async def _create_stream(self, report: Report, request: NewStreamAt) -> StreamsCreated:
        made = NewStream.of(request)
        answers = await self._rpc.everywhere("stream.create", made, StreamView, request.node)
        if not request.node:
            await self._spread(report, GossipRequest.created(made))
        return StreamsCreated(answers.results, answers.missing)

    async def _trim_stream(self, report: Report, request: StreamTrimAt) -> StreamsTrimmed:
        asked = StreamTrim(request.name, request.before)
        answers = await self._rpc.everywhere("stream.trim", asked, StreamTrimmed, request.node)
        return StreamsTrimmed(answers.results, answers.missing)

    async def _delete_stream(self, report: Report, request: OneStreamAt) -> StreamsDeleted:
        answers = await self._rpc.everywhere("stream.delete", OneStream(request.name), StreamDeleted, request.node)
        if not request.node:
            await self._spread(report, GossipRequest(request.name, deleted=True))
        return StreamsDeleted(answers.results, answers.missing)

    async def _spread(self, report: Report, request: GossipRequest) -> None:
        """Have all nodes store the definition, so that a node that is missing now receives it later."""
        if "stream.word" in self._rpc.actions:
            news = await ask(self._rpc.actions["stream.word"], report, request, GossipNews)
            await self._rpc.everywhere("stream.hear", news, GossipNews)

    # Nodes

    async def _overviews(self, report: Report, request: NoArguments) -> Overviews:
        answers = await self._rpc.everywhere("overview", request, Overview)
        return Overviews(self._rpc.name, list(answers.results.values()), answers.missing)

    async def _histories(self, report: Report, request: HistoryAt) -> History:
        """The figures of all nodes in the same buckets."""
        if not 1 <= request.seconds <= SECONDS_MAX or not 1 <= request.points <= POINTS_MAX:
            raise AdminError(400, f"seconds: must be 1 to {SECONDS_MAX:,}; points: must be 1 to {POINTS_MAX}")
        wanted = buckets(self._clock(), request.seconds, request.points)
        answers = await self._rpc.everywhere("history", wanted, NodeHistory, request.node)
        nodes = {node: one.series for node, one in answers.results.items()}
        return History(self._rpc.name, wanted.end, wanted.step, SECONDS_MAX, nodes, answers.missing)

    async def _activity(self, report: Report, request: ActivityAt) -> Activity:
        """The clients with the highest ``sort`` on all nodes."""
        asked = ActivityRequest(request.sort, request.limit)
        answers = await self._rpc.everywhere("activity", asked, NodeActivityReply, request.node)
        clients = [replace(client, node=node) for node, one in answers.results.items() for client in one.clients]
        clients.sort(key=attrgetter(request.key()), reverse=True)
        seconds = {node: one.seconds for node, one in answers.results.items()}
        return Activity(self._rpc.name, clients[: request.limit], seconds, answers.missing)

    async def _links(self, report: Report, request: AtNode) -> ListedLinks:
        answers = await self._rpc.everywhere("links", NoArguments(), LinksReply, request.node)
        links = [replace(link, node=node) for node, one in answers.results.items() for link in one.links]
        return ListedLinks(self._rpc.name, links, answers.missing)

    async def _reload(self, report: Report, request: ReloadAt) -> ReloadedAt:
        node = self._rpc.target(request.node)
        answers = await self._rpc.everywhere("reload", ReloadRequest(request.by), Reloaded, node)
        return ReloadedAt(answers.results, answers.missing)


def _named(name: str, action: Asked) -> Action:
    """The action of that name. It reports no progress."""

    async def asked(report: Report, arguments: Arguments) -> Result:
        return await action(name, arguments)

    return asked
