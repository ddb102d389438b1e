"""Everything that operators may ask of one broker, put together: ``wide`` for whoever asks here, the desk for nodes."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, to_builtins

from starlingmq.admin.activity import NodeActivity
from starlingmq.admin.cluster_actions import ClusterActions
from starlingmq.admin.group_actions import GroupFigures, Groups, GroupsRequest
from starlingmq.admin.live_settings import SettingActions
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.log_tail import LogTail
from starlingmq.admin.messages import MessageActions
from starlingmq.admin.nats_answers import NatsAnswers
from starlingmq.admin.node_rpc import NodeRpc, nothing_to_report
from starlingmq.admin.operator_bans import BanActions
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.overview import OverviewActions
from starlingmq.admin.readiness import readiness
from starlingmq.admin.session_totals_job import SessionTotalsJob
from starlingmq.admin.sessions import SessionActions, name_of
from starlingmq.admin.traces import Traces, WatchActions
from starlingmq.admin.typed_actions import FIRST, PAGE, After, Limit, NoArguments, ask, texts, typed
from starlingmq.net.control_socket import Action, Report
from starlingmq.storage.opening import directory_of

if TYPE_CHECKING:
    from starlingmq.admin.drain_actions import DrainActions, DrainProgress
    from starlingmq.admin.peer_poller import PeerPoller
    from starlingmq.admin.stream_gossip import StreamGossip

log = logging.getLogger("starlingmq.admin")

FOR_NODES: Final = ("stream.create", "stream.trim", "stream.delete", "storage.stats")
"""Actions of the control socket that other nodes may ask for, too."""
OF_THE_CLUSTER: Final = ("cluster.status", "cluster.routes")
ALONE: Final = "this broker is not a member of a cluster; set cluster.enabled to join one"

Arguments = dict[str, str]
Result = dict[str, Any]


class LedGroupsRequest(Struct, frozen=True):
    prefix: str = ""
    cursor: After = FIRST
    limit: Limit = PAGE


class LedGroups(Struct, frozen=True):
    groups: list[GroupFigures]
    next: str | None


class DrainChange(Struct, frozen=True):
    """``by``: who asks, for the log."""

    by: str = ""


class LeaveChange(Struct, frozen=True):
    """Leave the cluster; with ``force`` even if sessions or messages are lost."""

    force: bool = False
    by: str = ""


class Leaving(Struct, frozen=True):
    leaving: bool = True


class AdminService:
    """``actions`` are those that there are without it."""

    def __init__(self, place: LocalNode, actions: Mapping[str, Action]) -> None:
        self.place = place
        self._given = actions
        self.surveyor = SessionTotalsJob(place.state)
        self._log = LogTail()
        store = directory_of(place.driver.store)
        directory = None if store is None else store.data_dir.path
        bans = BanActions(place.driver, place.bans, place.ban, directory)
        local: dict[str, Action] = {name: actions[name] for name in FOR_NODES if name in actions}
        local |= SessionActions(place.driver).actions()
        local |= MessageActions(place.driver).actions()
        local |= OverviewActions(place, self.surveyor).actions()
        local |= SettingActions(place).actions()
        self._watches = WatchActions(place.driver, place.state.audit)
        self._activity = NodeActivity(place.driver)
        local |= self._watches.actions() | self._activity.actions()
        local |= bans.actions() | self._log.actions() | self._own_actions()
        self._nats = NatsAnswers(place)
        local |= self._nats.actions()
        words: StreamGossip | None = None
        if directory is not None:
            from starlingmq.admin.stream_gossip import StreamGossip

            words = StreamGossip(actions, directory)
            local |= words.actions()
        self.desk = NodeRpc(place.name, local, place.cluster)
        self._nats.desk = self.desk
        place.driver.on_request = self._nats.take
        self.rounds: PeerPoller | None = None
        if place.cluster is not None:
            from starlingmq.admin.peer_poller import PeerPoller

            self.rounds = PeerPoller(place.cluster, self.desk, bans, words)
            self.desk.actions |= self.rounds.actions()
        self.actions = {name: actions[name] for name in OF_THE_CLUSTER if name in actions} | ClusterActions(
            self.desk
        ).actions
        self.traces = Traces(self.desk)
        self.actions |= self.traces.actions()
        self.actions |= {"metrics": self._metrics, "health": self._health}
        self._leaving: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.place.lag.start()
        self._log.start()
        if self.rounds is not None:
            self.rounds.start()

    async def stop(self) -> None:
        self.place.lag.stop()
        self._log.stop()
        self._nats.stop()
        self._watches.stop()
        self._activity.stop()
        self.traces.stop()
        if self.rounds is not None:
            await self.rounds.stop()

    def _own_actions(self) -> dict[str, Action]:
        return {
            "links": self._no_links,
            "stream.all": self._streams,
            "groups.led": typed(LedGroupsRequest, self._groups),
            "drain.state": typed(NoArguments, self._drain_state),
            "drain.begin": typed(DrainChange, self._drain_begin),
            "drain.cancel": typed(DrainChange, self._drain_cancel),
            "leave.begin": typed(LeaveChange, self._leave),
        }

    async def _no_links(self, report: Report, arguments: Arguments) -> Result:
        return {"links": []}

    async def _metrics(self, report: Report, arguments: Arguments) -> Result:
        """Raises AdminError."""
        try:  # it is loaded beside the loop, and only where somebody asks
            figures = await asyncio.to_thread(importlib.import_module, "starlingmq.admin.metric_values")
        except ImportError as error:
            raise AdminError(409, f"metrics need {error.name}; run pip install 'starlingmq[http]'") from None
        return {"node": self.place.name, "samples": to_builtins(await figures.samples(figures.MetricValues(self)))}

    async def _health(self, report: Report, arguments: Arguments) -> Result:
        return {"node": self.place.name, **to_builtins(readiness(self.place))}

    async def _streams(self, report: Report, arguments: Arguments) -> Result:
        if "stream.list" not in self._given:
            return {"streams": []}
        return await self._given["stream.list"](report, {})

    async def _groups(self, report: Report, request: LedGroupsRequest) -> LedGroups:
        """Those that are chosen for here. One that nobody is elected for yet counts at the node with the lowest number,
        so that it is listed once."""
        after, limit = request.cursor, request.limit
        first = self.desk.members()[0][1] == self.desk.name
        found = await ask(self._given["groups"], report, GroupsRequest(request.prefix, after, limit), Groups)
        alone = self.place.cluster is None
        mine = [group for group in found.groups if group.here or (not group.primary and first) or alone]
        return LedGroups(mine, str(after + limit) if found.more else None)

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
        if self.place.drain is None:
            raise AdminError(409, ALONE)
        return self.place.drain

    async def _leave(self, report: Report, request: LeaveChange) -> Leaving:
        """Begin to leave the cluster for good; how far it is, and why it could not, is in the log and in ``drain``."""
        if self.place.cluster is None:
            raise AdminError(409, ALONE)
        if self._leaving is not None and not self._leaving.done():
            raise AdminError(409, "this node is leaving")
        if len(self.desk.members()) == 1:
            raise AdminError(409, "this node is the only member of its cluster; stop it instead")
        log.warning("%s told this node to leave its cluster", name_of(request.by))
        leave = self._given["cluster.leave"](nothing_to_report, texts(LeaveChange(request.force)))
        self._leaving = asyncio.ensure_future(_logged(leave))
        return Leaving()


async def _logged(leaving: Awaitable[Result]) -> None:
    try:
        await leaving
    except Exception as error:
        log.error("this node could not leave its cluster: %s", error)
