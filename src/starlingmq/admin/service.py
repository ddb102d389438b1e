"""The operator service of one broker: ``actions`` for operators at this node, ``node_rpc`` for other nodes."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from starlingmq._version import __version__
from starlingmq.admin.access_actions import AccessActions, UserActions
from starlingmq.admin.action_log import ActionLog
from starlingmq.admin.activity import NodeActivity
from starlingmq.admin.alarm_conditions import Conditions
from starlingmq.admin.alarm_webhook import AlarmWebhook
from starlingmq.admin.alarms import NodeAlarms
from starlingmq.admin.cluster_actions import ClusterActions
from starlingmq.admin.connectors import NodeConnectors
from starlingmq.admin.declared_actions import (
    ALL,
    NODE,
    PAGED,
    action,
    bound,
    for_operators,
)
from starlingmq.admin.drain_actions import DrainActions, DrainProgress
from starlingmq.admin.group_actions import Groups, GroupsRequest, LedGroups, LedGroupsRequest
from starlingmq.admin.history import NodeSampler
from starlingmq.admin.link_actions import LinkActions, LinksEverywhere
from starlingmq.admin.list_views import ListActions
from starlingmq.admin.live_settings import LiveChangeActions, SettingActions
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.log_tail import LogTail
from starlingmq.admin.messages import MessageActions, SessionMessages
from starlingmq.admin.metric_text import METRIC_TEXT, MetricsReply, MetricText, merge
from starlingmq.admin.nats_answers import NatsAnswers
from starlingmq.admin.node_rpc import NodeRpc, nothing_to_report
from starlingmq.admin.operator_bans import BanActions
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.overview import OverviewActions
from starlingmq.admin.peer_views import PEER_COLUMNS, PeerInfo
from starlingmq.admin.readiness import NodeReadiness, readiness
from starlingmq.admin.rule_actions import RuleActions
from starlingmq.admin.session_totals_job import SessionTotalsJob
from starlingmq.admin.sessions import SessionActions
from starlingmq.admin.sorted_lists import SortedLists
from starlingmq.admin.stream_requests import StreamsReply
from starlingmq.admin.topic_actions import TopicActions
from starlingmq.admin.traces import Traces, WatchActions
from starlingmq.admin.typed_actions import NoArguments, ask, texts, typed
from starlingmq.net.control_socket import Action, Report
from starlingmq.storage.opening import directory_of

if TYPE_CHECKING:
    from starlingmq.admin.peer_poller import PeerPoller
    from starlingmq.admin.stream_gossip import StreamGossip
    from starlingmq.storage.streams.stream_admin import StreamAdmin

log = logging.getLogger("starlingmq.admin")

FOR_NODES: Final = ("stream.create", "stream.trim", "stream.delete")
"""Actions of the control socket that other nodes may request, too."""
ALONE: Final = "this broker is not a member of a cluster; set cluster.enabled to join one"
NOT_STORED: Final = "this broker stores nothing: it has no data directory (node.data_dir)"


class LeaveChange(Struct, frozen=True):
    force: Annotated[bool, Meta(description="Leave even if sessions or messages are lost.")] = False


class Leaving(Struct, frozen=True):
    """``earlier``: why this node could not leave the last time that it was told to; "": nothing of that kind."""

    leaving: bool = True
    earlier: str = ""


class Restarting(Struct, frozen=True):
    """The uptime in its overview begins at zero."""

    node: str


class AdminService:
    """``actions`` are those that exist without the service, whose entries ``action_log`` has, too; ``streams`` is None
    without a data directory."""

    def __init__(
        self,
        local_node: LocalNode,
        actions: Mapping[str, Action],
        streams: StreamAdmin | None,
        action_log: ActionLog,
    ) -> None:
        self.local_node = local_node
        self._action_log = action_log
        self._given = actions
        self.session_totals_job = SessionTotalsJob(local_node.state, local_node.driver.clock)
        self._log = LogTail()
        store = directory_of(local_node.driver.store)
        directory = None if store is None else store.data_dir.path
        bans = BanActions(local_node.driver, local_node.bans, local_node.ban, directory)
        self.sampler = NodeSampler(local_node, self.session_totals_job)
        self._webhook = AlarmWebhook(local_node.name, lambda: local_node.config().alarms.webhook)
        self.connectors = NodeConnectors(local_node, self._webhook)
        self.links = LinkActions(local_node, directory)
        conditions = Conditions(local_node, self.session_totals_job)
        self.alarms = NodeAlarms(
            conditions, local_node.driver.clock, self._webhook.tell, lambda: local_node.config().alarms.site
        )
        self._watches = WatchActions(local_node.driver, local_node.state.audit)
        self._activity = NodeActivity(local_node.driver)
        self._nats = NatsAnswers(local_node)
        local = self._own_actions(bans)
        gossip: StreamGossip | None = None
        if directory is not None and streams is not None:
            from starlingmq.admin.stream_gossip import StreamGossip

            gossip = StreamGossip(streams, directory)
            local |= bound(gossip)
        self.node_rpc = NodeRpc(local_node.name, local, local_node.cluster, local_node.config().cluster.one_machine)
        self._nats.node_rpc = self.node_rpc
        local_node.driver.on_request = self._nats.take
        self._periodic = [self.sampler.periodic, self.alarms.periodic]
        self.poller: PeerPoller | None = None
        if local_node.cluster is not None:
            from starlingmq.admin.peer_poller import PeerPoller

            self.poller = PeerPoller(local_node.cluster, self.node_rpc, bans, gossip)
            self.node_rpc.actions |= bound(self.poller)
            self._periodic.append(self.poller.periodic)
        self.traces = Traces(self.node_rpc)
        self.actions = for_operators(self.node_rpc, self.node_rpc.actions)
        self.actions |= bound(ClusterActions(self.node_rpc, local_node.driver.clock), self.traces)
        self.actions |= bound(LinksEverywhere(self.node_rpc))
        if local_node.cluster is None:
            self.actions["cluster.status"] = self._only_member
        self.actions["health"] = typed(NoArguments, self._health)
        self.actions[METRIC_TEXT] = typed(NoArguments, self._metric_text)
        self.node_rpc.actions[METRIC_TEXT] = typed(NoArguments, self._own_metric_text)
        self._leaving: asyncio.Task[None] | None = None
        self._leave_error = ""

    def _own_actions(self, bans: BanActions) -> dict[str, Action]:
        """Those of this node, as other nodes may ask for them."""
        own = {name: self._given[name] for name in FOR_NODES if name in self._given}
        return own | bound(
            SessionActions(self.local_node.driver),
            SessionMessages(self.local_node.driver),
            RuleActions(self.local_node),
            UserActions(self.local_node),
            AccessActions(self.local_node),
            SortedLists(self.local_node.driver, self.local_node.name, self.groups),
            MessageActions(self.local_node.driver),
            TopicActions(self.local_node.driver),
            OverviewActions(self.local_node, self.session_totals_job),
            SettingActions(self.local_node),
            LiveChangeActions(self.local_node),
            self.sampler,
            self.sampler.droppers,
            self.connectors,
            self.links,
            self.alarms,
            self._watches,
            self._activity,
            bans,
            self._log,
            self._nats,
            self._action_log,
            ListActions(),
            self,
            note=self._action_log.note,
        )

    def start(self) -> None:
        self.local_node.lag.start()
        self._log.start()
        for periodic in self._periodic:
            periodic.start()

    async def stop(self) -> None:
        for periodic in self._periodic:
            await periodic.stop()
        await self._webhook.stop()
        self.local_node.lag.stop()
        self._log.stop()
        self._nats.stop()
        self._watches.stop()
        self._activity.stop()
        self.traces.stop()
        await self._action_log.stop()

    @action(
        "peers",
        "GET /peers",
        ALL,
        ctl="peers",
        columns=PEER_COLUMNS,
        none="this broker is not a member of a cluster, or is its only member",
    )
    async def peers(self) -> list[PeerInfo]:
        """List how each node reaches the other nodes. A node without a cluster has none."""
        return []

    @action("metrics", "GET /metrics")
    async def as_json(self) -> MetricsReply:
        """Get all metrics as JSON. Raises AdminError."""
        reply: MetricsReply = await (await _metric_values()).metrics(self)
        return reply

    async def _own_metric_text(self, report: Report, request: NoArguments) -> MetricText:
        """Raises AdminError."""
        reply: MetricText = await (await _metric_values()).metric_text(self)
        return reply

    async def _metric_text(self, report: Report, request: NoArguments) -> MetricText:
        """Raises AdminError."""
        if not self.local_node.config().cluster.one_machine:
            return await self._own_metric_text(report, request)
        found = await self.node_rpc.everywhere(METRIC_TEXT, NoArguments(), MetricText)
        return MetricText(merge({worker: one.text for worker, one in found.results.items()}))

    async def _health(self, report: Report, request: NoArguments) -> NodeReadiness:
        found = readiness(self.local_node)
        return NodeReadiness(found.status, found.storage, found.cluster, found.reasons, self.local_node.name)

    @action("stream.all", "GET /streams", ALL)
    async def streams(self, report: Report, request: NoArguments) -> StreamsReply:
        """List streams per node, with their consumers."""
        if "stream.list" not in self._given:
            return StreamsReply([])
        return await ask(self._given["stream.list"], report, request, StreamsReply)

    @action("groups.led", "GET /groups", PAGED)
    async def groups(self, report: Report, request: LedGroupsRequest) -> LedGroups:
        """List shared subscriptions and queue groups, each as its primary reports it. A group without a primary is
        listed by the node with the lowest number, so that it is listed once."""
        after, limit = request.cursor, request.limit
        first = self.node_rpc.members()[0][1] == self.node_rpc.name
        found = await ask(self._given["groups"], report, GroupsRequest(request.prefix, after, limit), Groups)
        alone = self.local_node.cluster is None
        mine = [group for group in found.groups if group.here or (not group.primary and first) or alone]
        return LedGroups(mine, next=str(after + limit) if found.more else None)

    # Storage

    @action("storage.stats", "GET /storage", NODE, ctl="storage/stats")
    async def storage(self, report: Report) -> dict[str, Any]:
        """Get storage statistics."""
        return await self._given_one("storage.stats")(report, {})

    # Draining, leaving

    @action("drain.state", "GET /drain", NODE)
    async def draining(self) -> DrainProgress:
        """Get the progress of the drain."""
        return self._drain().result()

    @action("drain.begin", "POST /drain", NODE, audit="started draining this node", status=202)
    async def drain(self) -> DrainProgress:
        """Drain this node: redirect its clients and hand over their sessions."""
        drain = self._drain()
        await drain.start()
        return drain.result()

    @action("drain.cancel", "DELETE /drain", NODE, audit="ended the drain; this node accepts clients again")
    async def undrain(self) -> DrainProgress:
        """End the drain, so that this node accepts clients again."""
        drain = self._drain()
        await drain.cancel()
        return drain.result()

    def _drain(self) -> DrainActions:
        if self.local_node.drain is None:
            raise AdminError(409, ALONE)
        return self.local_node.drain

    @action("leave.begin", "POST /cluster/leave", NODE, noted_by="cluster.leave", status=202)
    async def leave(self, request: LeaveChange) -> Leaving:
        """Hand over everything, leave the cluster permanently, and stop. ``drain`` reports the progress; the log says
        why it failed."""
        if self.local_node.cluster is None:
            raise AdminError(409, ALONE)
        if self._leaving is not None and not self._leaving.done():
            raise AdminError(409, "this node is leaving")
        if len(self.node_rpc.members()) == 1:
            raise AdminError(409, "this node is the only member of its cluster; stop it instead")
        earlier, self._leave_error = self._leave_error, ""
        leave = self._given["cluster.leave"](nothing_to_report, texts(LeaveChange(request.force)))
        self._leaving = asyncio.ensure_future(self._watched(leave))
        return Leaving(earlier=earlier)

    @action(
        "restart.begin", "POST /restart", NODE, audit="told this node to restart", level=logging.WARNING, status=202
    )
    async def restart(self) -> Restarting:
        """Restart this node: it stops as on SIGTERM, and runs its command again in the same process."""
        if self.local_node.restart is None:
            raise AdminError(409, "this broker runs inside a program; restart the program")
        if not self.local_node.serving:
            raise AdminError(409, "this node starts or stops; try again later")
        try:
            self.local_node.restart()
        except Exception as error:  # of any file that the settings name
            raise AdminError(409, f"this node was not restarted, its settings are invalid: {error}") from None
        return Restarting(self.local_node.name)

    async def _only_member(self, report: Report, arguments: dict[str, str]) -> dict[str, Any]:
        """The members of a cluster, as a single broker tells them."""
        here = self.local_node
        own = {
            "name": here.name,
            "version": __version__,
            "online": True,
            "connected": True,
            "this": True,
            "draining": False,
            "clients": here.state.ctx.counters.clients_connected,
        }
        return {"cluster": None, "node": here.name, "serving": here.serving, "members": [own]}

    def action_named(self, name: str) -> Action:
        """A declared action, which the broker may not have: then it is refused."""
        return self.actions.get(name) or self._given_one(name)

    def _given_one(self, name: str) -> Action:
        """An action of the control socket. Raises AdminError if the broker does not have it."""
        if name not in self._given:
            raise AdminError(409, NOT_STORED if name.startswith("storage.") else ALONE)
        return self._given[name]

    async def _watched(self, leaving: Awaitable[object]) -> None:
        try:
            await leaving
        except Exception as error:
            self._leave_error = str(error)
            log.error("%s could not leave its cluster: %s", self.local_node.name, error)


async def _metric_values() -> Any:
    """The module, imported in a thread, and only when it is needed. Raises AdminError."""
    try:
        return await asyncio.to_thread(importlib.import_module, "starlingmq.admin.metric_values")
    except ImportError as error:
        raise AdminError(409, f"metrics need {error.name}; run pip install '.[http]' in the sources") from None
