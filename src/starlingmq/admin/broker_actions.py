"""The operator actions of one broker by name, as the control socket offers them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from starlingmq.admin.action_log import ActionLog
from starlingmq.admin.declared_actions import action, bound
from starlingmq.admin.group_actions import GroupActions
from starlingmq.auth.access_control import AccessControl
from starlingmq.config.settings import Config, ConfigError
from starlingmq.net.control_path import NAME
from starlingmq.net.control_socket import Action, ControlServer, Report
from starlingmq.net.driver import Driver
from starlingmq.net.listeners.listener_set import ListenerSet
from starlingmq.storage.opening import directory_of

if TYPE_CHECKING:
    from starlingmq.admin.drain_actions import DrainActions
    from starlingmq.net.peers.cluster_shell import Cluster
    from starlingmq.storage.streams.stream_admin import StreamAdmin


class BackupTarget(Struct, frozen=True):
    target: Annotated[str, Meta(description="Absolute path of a directory that does not exist, or is empty.")] = ""


class StoreActions:
    """Operations that read or write everything, with a note of who asked for them. ``given`` are those of
    ``storage.maintenance.store_maintenance``."""

    def __init__(self, given: Mapping[str, Action]) -> None:
        self._given = given

    @action("storage.check", "POST /storage/check", ctl="storage/check", audit="checked the storage", waits=True)
    async def check(self, report: Report) -> dict[str, Any]:
        """Read all that this node stores, and report damage; takes long."""
        return await self._given["storage.check"](report, {})

    @action(
        "storage.compact", "POST /storage/compact", ctl="storage/compact", audit="compacted the storage", waits=True
    )
    async def compact(self, report: Report) -> dict[str, Any]:
        """Write a checkpoint, and free the space of what is not needed."""
        return await self._given["storage.compact"](report, {})

    @action("backup", audit="made a backup in {target!r}", waits=True)
    async def backup(self, report: Report, request: BackupTarget) -> dict[str, Any]:
        return await self._given["backup"](report, {"target": request.target})


log = logging.getLogger("starlingmq")


OF_A_MEMBER: Final = tuple(
    f"cluster.{name}"
    for name in ("copies", "drain", "forget", "give_up", "leave", "rebalance", "routes", "shares", "status")
)
"""Actions that only the members of a cluster have: a single broker says so."""


class BrokerActions:
    """``readable_nodes``: name and address of the nodes that streams are read from, and whether the node is away.
    ``streams`` is None without a data directory, ``drain`` outside of a cluster."""

    def __init__(
        self,
        driver: Driver,
        node: str,
        access: AccessControl,
        readable_nodes: Callable[[], list[tuple[str, str, bool]]],
        cluster: Cluster | None,
        listeners: ListenerSet,
    ) -> None:
        self.streams: StreamAdmin | None = None
        self.drain: DrainActions | None = None
        self.unready: Callable[[], tuple[str, ...]] = tuple  # why this node accepts no clients
        self.by_name: dict[str, Action] = {}
        self._node = node
        self._store = directory_of(driver.store)
        self.log = ActionLog(None if self._store is None else self._store.data_dir.path)
        if self._store is not None:
            from starlingmq.admin.stream_actions import StreamActions
            from starlingmq.auth.readers import StreamReaders
            from starlingmq.storage.maintenance.store_maintenance import StoreMaintenance
            from starlingmq.storage.streams.stream_admin import StreamAdmin

            given = StoreMaintenance(self._store, driver.state).actions()
            self.by_name |= given | bound(StoreActions(given), note=self.log.note)
            self.streams = StreamAdmin(self._store, driver.state, node, readable_nodes, cluster is not None)
            readers = StreamReaders(lambda: access.chain, lambda: access.hooks.timeout)
            self.by_name |= bound(StreamActions(self.streams, readers), note=self.log.note)
        names = dict[int, str] if cluster is None else cluster.names
        self.by_name |= bound(GroupActions(driver.state, names))
        if cluster is None:
            self.by_name["cluster.status"] = _not_a_member
        else:
            from starlingmq.admin.drain_actions import DrainActions
            from starlingmq.admin.member_actions import MemberActions

            self.drain = DrainActions(cluster, listeners)
            self.by_name |= MemberActions(cluster, self.drain, lambda: self.unready(), self.log.note).actions()

    def declare_streams(self, config: Config) -> None:
        """Apply ``streams.define`` of new settings. Raises ConfigError."""
        if self.streams is None:
            return
        from starlingmq.storage.streams.stream_files import StreamActionError

        try:
            self.streams.declare(config.streams.define)
        except StreamActionError as error:
            raise ConfigError(f"streams.define: {error}") from None
        except OSError as error:
            raise ConfigError(
                f"streams.define: the definitions cannot be written to the data directory: {error.strerror}"
            ) from None

    async def open_control(self, others: dict[str, Action]) -> ControlServer | None:
        """Open the control socket; None without a data directory to hold it. ``others`` are further actions."""
        if self._store is None:
            return None
        from starlingmq.storage.maintenance.store_maintenance import LONG_ACTIONS

        alone = dict.fromkeys(OF_A_MEMBER, _not_a_member)
        actions = {**alone, **others, **self.by_name}
        control = ControlServer(self._store.data_dir.path / NAME, actions, LONG_ACTIONS, self._node)
        try:
            await control.start()
        except OSError as error:
            log.warning(
                "operator commands are unavailable, because %s cannot be opened: %s",
                control.path,
                error.strerror or error,
            )
            return None
        return control


async def _not_a_member(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
    raise ConfigError("this broker is not a member of a cluster; set cluster.enabled to join one")
