"""The operator service of one broker: ``actions`` for operators at this node, ``node_rpc`` for other nodes."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from starlingmq.admin.activity import NodeActivity
from starlingmq.admin.alarm_conditions import Conditions
from starlingmq.admin.alarm_webhook import AlarmWebhook
from starlingmq.admin.alarms import NodeAlarms
from starlingmq.admin.cluster_actions import ClusterActions
from starlingmq.admin.connectors import NodeConnectors
from starlingmq.admin.declared_actions import bound, for_operators
from starlingmq.admin.group_actions import Groups, GroupsRequest
from starlingmq.admin.history import NodeSampler
from starlingmq.admin.link_views import LinksReply
from starlingmq.admin.list_pages import LedGroups, LedGroupsRequest
from starlingmq.admin.live_change_actions import LiveChangeActions, LiveChangeLists
from starlingmq.admin.live_settings import SettingActions
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.log_tail import LogTail
from starlingmq.admin.messages import MessageActions
from starlingmq.admin.metric_samples import MetricsReply
from starlingmq.admin.metric_text import METRIC_TEXT, MetricText, merge
from starlingmq.admin.nats_answers import NatsAnswers
from starlingmq.admin.node_rpc import NodeRpc, nothing_to_report
from starlingmq.admin.operator_bans import BanActions
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.overview import OverviewActions
from starlingmq.admin.readiness import NodeReadiness, readiness
from starlingmq.admin.rule_actions import RuleActions
from starlingmq.admin.session_messages import SessionMessageLists, SessionMessages
from starlingmq.admin.session_totals_job import SessionTotalsJob
from starlingmq.admin.sessions import SessionActions, name_of
from starlingmq.admin.sorted_entries import SortedEntries, SortedEntriesNode
from starlingmq.admin.sorted_lists import SortedLists, SortedNode
from starlingmq.admin.stream_requests import StreamsReply
from starlingmq.admin.traces import Traces, WatchActions
from starlingmq.admin.typed_actions import NoArguments, ask, texts, typed
from starlingmq.admin.user_actions import UserActions
from starlingmq.net.control_socket import Action, Report
from starlingmq.storage.opening import directory_of

if TYPE_CHECKING:
    from starlingmq.admin.drain_actions import DrainActions, DrainProgress
    from starlingmq.admin.peer_poller import PeerPoller
    from starlingmq.admin.stream_gossip import StreamGossip
    from starlingmq.storage.streams.stream_admin import StreamAdmin

log = logging.getLogger("starlingmq.admin")

FOR_NODES: Final = ("stream.create", "stream.trim", "stream.delete", "storage.stats")
"""Actions of the control socket that other nodes may request, too."""
OF_MEMBERS: Final = ("cluster.forget", "cluster.give_up", "cluster.rebalance")
UPKEEP: Final = ("storage.check", "storage.compact")
"""Actions of the control socket that an operator may also ask for over HTTP, at the node that is asked."""
OF_THE_CLUSTER: Final = ("cluster.status", "cluster.routes", "cluster.copies", "cluster.shares")
ALONE: Final = "this broker is not a member of a cluster; set cluster.enabled to join one"


class DrainChange(Struct, frozen=True):
    """``by``: the operator, for the log."""

    by: str = ""


class LeaveChange(Struct, frozen=True):
    """Leave the cluster; with ``force`` even if sessions or messages are lost."""

    force: bool = False
    by: str = ""


class Leaving(Struct, frozen=True):
    """``earlier``: why this node could not leave the last time that it was told to; "": nothing of that kind."""

    leaving: bool = True
    earlier: str = ""


class AdminService:
    """``actions`` are those that exist without the service; ``streams`` is None without a data directory."""

    def __init__(self, local_node: LocalNode, actions: Mapping[str, Action], streams: StreamAdmin | None) -> None:
        self.local_node = local_node
        self._given = actions
        self.session_totals_job = SessionTotalsJob(local_node.state, local_node.driver.clock)
        self._log = LogTail()
        store = directory_of(local_node.driver.store)
        directory = None if store is None else store.data_dir.path
        bans = BanActions(local_node.driver, local_node.bans, local_node.ban, directory)
        local: dict[str, Action] = {name: actions[name] for name in FOR_NODES if name in actions}
        local |= SessionActions(local_node.driver).actions()
        local |= SessionMessages(local_node.driver).actions()
        local |= RuleActions(local_node).actions() | UserActions(local_node).actions()
        local |= SortedNode(local_node.driver, local_node.name).actions()
        local |= SortedEntriesNode(local_node.driver, local_node.name, self._groups).actions()
        local |= MessageActions(local_node.driver).actions()
        local |= OverviewActions(local_node, self.session_totals_job).actions()
        local |= SettingActions(local_node).actions() | LiveChangeActions(local_node).actions()
        self.sampler = NodeSampler(local_node, self.session_totals_job)
        local |= self.sampler.actions()
        self._webhook = AlarmWebhook(local_node.name, lambda: local_node.config().alarms.webhook)
        self.connectors = NodeConnectors(local_node, self._webhook)
        conditions = Conditions(local_node, self.session_totals_job)
        self.alarms = NodeAlarms(conditions, local_node.driver.clock, self._webhook.tell)
        local |= bound(self.connectors, self.alarms)
        self._watches = WatchActions(local_node.driver, local_node.state.audit)
        self._activity = NodeActivity(local_node.driver)
        local |= self._watches.actions() | self._activity.actions()
        local |= bans.actions() | self._log.actions() | self._own_actions()
        self._nats = NatsAnswers(local_node)
        local |= self._nats.actions()
        gossip: StreamGossip | None = None
        if directory is not None and streams is not None:
            from starlingmq.admin.stream_gossip import StreamGossip

            gossip = StreamGossip(streams, directory)
            local |= gossip.actions()
        self.node_rpc = NodeRpc(local_node.name, local, local_node.cluster, local_node.config().cluster.one_machine)
        self._nats.node_rpc = self.node_rpc
        local_node.driver.on_request = self._nats.take
        self.poller: PeerPoller | None = None
        if local_node.cluster is not None:
            from starlingmq.admin.peer_poller import PeerPoller

            self.poller = PeerPoller(local_node.cluster, self.node_rpc, bans, gossip)
            self.node_rpc.actions |= self.poller.actions()
        self.actions = {name: actions[name] for name in OF_THE_CLUSTER if name in actions}
        self.actions |= {name: self._over_http(name) for name in (*OF_MEMBERS, *UPKEEP)}
        self.actions |= ClusterActions(self.node_rpc, local_node.driver.clock).actions
        self.actions |= for_operators(self.node_rpc, self.node_rpc.actions)
        self.actions |= SessionMessageLists(self.node_rpc).actions() | LiveChangeLists(self.node_rpc).actions()
        self.actions |= SortedLists(self.node_rpc).actions() | SortedEntries(self.node_rpc).actions()
        self.traces = Traces(self.node_rpc)
        self.actions |= self.traces.actions()
        self.actions |= {"metrics": typed(NoArguments, self._metrics), "health": typed(NoArguments, self._health)}
        self.actions[METRIC_TEXT] = typed(NoArguments, self._metric_text)
        self.node_rpc.actions[METRIC_TEXT] = typed(NoArguments, self._own_metric_text)
        self._leaving: asyncio.Task[None] | None = None
        self._leave_error = ""

    def start(self) -> None:
        self.local_node.lag.start()
        self._log.start()
        self.sampler.start()
        self.alarms.start()
        if self.poller is not None:
            self.poller.start()

    async def stop(self) -> None:
        await self.alarms.stop()
        await self._webhook.stop()
        await self.sampler.stop()
        self.local_node.lag.stop()
        self._log.stop()
        self._nats.stop()
        self._watches.stop()
        self._activity.stop()
        self.traces.stop()
        if self.poller is not None:
            await self.poller.stop()

    def _own_actions(self) -> dict[str, Action]:
        return {
            "links": typed(NoArguments, self._no_links),
            "stream.all": typed(NoArguments, self._streams),
            "groups.led": typed(LedGroupsRequest, self._groups),
            "drain.state": typed(NoArguments, self._drain_state),
            "drain.begin": typed(DrainChange, self._drain_begin),
            "drain.cancel": typed(DrainChange, self._drain_cancel),
            "leave.begin": typed(LeaveChange, self._leave),
        }

    async def _no_links(self, report: Report, request: NoArguments) -> LinksReply:
        return LinksReply([])

    async def _metrics(self, report: Report, request: NoArguments) -> MetricsReply:
        """Raises AdminError."""
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

    async def _streams(self, report: Report, request: NoArguments) -> StreamsReply:
        if "stream.list" not in self._given:
            return StreamsReply([])
        return await ask(self._given["stream.list"], report, request, StreamsReply)

    async def _groups(self, report: Report, request: LedGroupsRequest) -> LedGroups:
        """The groups whose primary is this node. A group without a primary is listed by the node with the lowest
        number, so that it is listed once."""
        after, limit = request.cursor, request.limit
        first = self.node_rpc.members()[0][1] == self.node_rpc.name
        found = await ask(self._given["groups"], report, GroupsRequest(request.prefix, after, limit), Groups)
        alone = self.local_node.cluster is None
        mine = [group for group in found.groups if group.here or (not group.primary and first) or alone]
        return LedGroups(mine, next=str(after + limit) if found.more else None)

    # Draining, leaving

    async def _drain_state(self, report: Report, request: NoArguments) -> DrainProgress:
        return self._drain().result()

    async def _drain_begin(self, report: Report, request: DrainChange) -> DrainProgress:
        drain = self._drain()
        await drain.start()
        log.info("%s started draining this node", name_of(request.by))
        return drain.result()

    async def _drain_cancel(self, report: Report, request: DrainChange) -> DrainProgress:
        drain = self._drain()
        await drain.cancel()
        log.info("%s ended the drain; this node accepts clients again", name_of(request.by))
        return drain.result()

    def _drain(self) -> DrainActions:
        if self.local_node.drain is None:
            raise AdminError(409, ALONE)
        return self.local_node.drain

    async def _leave(self, report: Report, request: LeaveChange) -> Leaving:
        """Begin to leave the cluster permanently. ``drain`` reports the progress; the log says why it failed."""
        if self.local_node.cluster is None:
            raise AdminError(409, ALONE)
        if self._leaving is not None and not self._leaving.done():
            raise AdminError(409, "this node is leaving")
        if len(self.node_rpc.members()) == 1:
            raise AdminError(409, "this node is the only member of its cluster; stop it instead")
        log.warning("%s told %s to leave its cluster", name_of(request.by), self.local_node.name)
        earlier, self._leave_error = self._leave_error, ""
        leave = self._given["cluster.leave"](nothing_to_report, texts(LeaveChange(request.force)))
        self._leaving = asyncio.ensure_future(self._watched(leave))
        return Leaving(earlier=earlier)

    def _over_http(self, action: str) -> Action:
        """An action of ``OF_MEMBERS`` or ``UPKEEP``, with its operator in the log."""

        async def asked(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
            if action in OF_MEMBERS and self.local_node.cluster is None:
                raise AdminError(409, ALONE)
            if action not in self._given:
                raise AdminError(409, "this broker stores nothing: it has no data directory (node.data_dir)")
            what = f"{action} {name_of(arguments['name'])}" if "name" in arguments else action
            log.warning("%s asked for %s", name_of(arguments.get("by", "")), what)
            return await self._given[action](report, arguments)

        return asked

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
