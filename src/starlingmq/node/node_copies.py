"""The copies of a node: what has to run before its broker is opened, and after it is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlingmq.config.settings import Config
from starlingmq.net.control_path import NAME
from starlingmq.net.control_socket import ControlServer

if TYPE_CHECKING:
    from starlingmq.cluster.cluster_state import ClusterState
    from starlingmq.net.copies.copy_part import CopyPart
    from starlingmq.net.copies.copy_process import CopyProcess
    from starlingmq.net.copies.hosted_broker import OpenBroker
    from starlingmq.net.etcd.etcd_access import EtcdAccess
    from starlingmq.net.peers.cluster_shell import Cluster

log = logging.getLogger("starlingmq")


class TakenOver(Exception):
    """Another node serves the data of this one, which has to be started again to become its follower."""


class NodeCopies:
    """``process`` is None in a broker that serves the data of a lost node: it belongs to the node in whose process it
    runs. ``taken_over``: another node serves the data of this one."""

    def __init__(self, part: CopyPart | None) -> None:
        self.part = part
        self.process: CopyProcess | None = None
        self.taken_over = False

    async def start(
        self,
        config: Config,
        open_broker: OpenBroker,
        start_broker: Callable[[], Awaitable[None]],
        on_taken_over: Callable[[], None],
        etcd: EtcdAccess | None,
    ) -> None:
        """Start the broker once the node may serve its data. Raises TakenOver if it may not any more before that is
        done, and what ``start_broker`` raises."""
        from starlingmq.net.copies.copy_process import CopyProcess

        process = self.process = CopyProcess(config, open_broker, etcd)
        lost = asyncio.Event()
        process.on_lost = lost.set

        async def start() -> None:
            await process.start()
            async with _operated(process, config.node.name):
                self.part = await process.own_part()
            await start_broker()

        starting, losing = asyncio.ensure_future(start()), asyncio.ensure_future(lost.wait())
        try:
            await asyncio.wait((starting, losing), return_when=asyncio.FIRST_COMPLETED)
            if losing.done():
                raise TakenOver(f"the data of {config.node.name} is served by another node")
            starting.result()
        except BaseException as error:
            self.taken_over = isinstance(error, TakenOver)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        finally:
            losing.cancel()
        process.on_lost = lambda: self._lost(config.node.name, on_taken_over)

    def _lost(self, name: str, on_taken_over: Callable[[], None]) -> None:
        log.warning("another node serves the data of %s, since this one was lost for it; starting as a follower", name)
        self.taken_over = True
        on_taken_over()

    def serve(self, cluster: Cluster) -> None:
        """``cluster``: of the broker, which is not a member yet."""
        cluster.copies = self.process
        if self.process is not None:
            cluster.on_left = self.process.leave
        elif self.part is not None:
            cluster.on_left = self.part.forget
        if self.part is not None and cluster.state is not None:
            cluster.state.reports.server_of = self.part.server_of

    async def join(self, state: ClusterState | None) -> None:
        """Before the broker joins the cluster: wait until no node in step has more than this one."""
        if self.part is not None and state is not None:
            await self.part.until_serving()
            self.part.joined(state)

    def stopping(self) -> None:
        if self.process is not None:
            self.process.stopping()

    def left(self) -> None:
        if self.part is not None:
            self.part.left()

    async def end(self) -> None:
        """The broker and its store are closed. May be called again."""
        if self.part is not None:
            await self.part.end()
        if self.process is not None:
            process, self.process = self.process, None
            await process.close()


@asynccontextmanager
async def _operated(process: CopyProcess, node: str) -> AsyncIterator[None]:
    """Operators reach the node while it waits until it may serve its data."""
    from starlingmq.admin.action_log import ActionLog
    from starlingmq.admin.copy_actions import CopyActions
    from starlingmq.admin.declared_actions import bound

    notes = ActionLog(process.directory)
    actions = bound(CopyActions(lambda: process), note=notes.note)
    control = ControlServer(process.directory / NAME, actions, (), node)
    try:
        await control.start()
    except OSError as error:
        log.warning("operator commands are unavailable until this node serves: %s", error.strerror or error)
    try:
        yield
    finally:
        await control.stop()
        await notes.stop()


def has_copies(config: Config) -> bool:
    """Whether nodes keep copies of this node's data."""
    directory = config.node.data_dir
    if not config.cluster.enabled or directory is None or config.storage.engine == "memory":
        return False
    from starlingmq.storage.directory_store import has_copies

    return has_copies(config, directory)
