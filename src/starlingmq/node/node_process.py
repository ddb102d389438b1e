"""A broker that has the process for itself: what ``starlingmq serve`` runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlingmq.config.auth_section import methods_of
from starlingmq.config.restart_settings import in_force
from starlingmq.config.settings import Config, ConfigError, has_logins, refuse_open_listeners
from starlingmq.log import set_up_logging
from starlingmq.net.process import free_memory
from starlingmq.node.assembly import Broker
from starlingmq.node.node_log import NodeLog

if TYPE_CHECKING:
    from starlingmq.net.etcd.etcd_access import EtcdAccess

YOUNG_MAX: Final = 10_000  # objects that are checked for reference cycles at once: about a millisecond
FREEZE_INTERVAL: Final = 1.0  # seconds
REPLY_SECONDS: Final = 0.1  # for the reply to an operator, before the doors close


def freeze() -> None:
    """Exempt the present objects from garbage collection. Libraries make reference cycles (gRPC makes one per call,
    with metadata that a stranger chose): those must be collected before, since frozen objects never are."""
    gc.collect(0)
    gc.freeze()


class Node(Broker):
    """A broker that has the process for itself: it sets up logging, logs its start and its end, and controls the
    garbage collector. ``settings_file``: for the log, "" if there is none. ``etcd``: see ``cli.early_etcd``.
    ``restarts``: an operator has asked for it; the process is to start again once it has stopped. ``check_start``
    raises the error with which it would not."""

    def __init__(self, config: Config, settings_file: str = "", etcd: EtcdAccess | None = None) -> None:
        super().__init__(config, etcd=etcd)
        set_up_logging(config.log, config.node.name)
        self._freezer: asyncio.TimerHandle | None = None
        self._hooked = False  # a program decides who may connect, before the settings do
        self._log = NodeLog(config, settings_file)
        self.restarts = False
        self.check_start: Callable[[], None] = lambda: None
        self.restart = self._restart

    async def start(self) -> None:
        self._hooked = self.hooks.authenticate is not None
        refuse_open_listeners(self.config, self._hooked)  # before the log has a line
        self._log.starts()
        await super().start()
        self._log.serves(self.addresses)
        # A full collection over a million sessions would stall everything for seconds, and the core makes no reference
        # cycles: only young objects are checked, and those that survive are left to their reference count. The imports
        # left cycles of a fifth of a megabyte, which are not worth the search while the first clients wait.
        gc.freeze()
        free_memory()  # buffers that the imports needed
        gc.set_threshold(YOUNG_MAX, 1_000_000, 1_000_000)
        self._freeze()

    @property
    def is_open(self) -> bool:
        """Nothing has a login, and operators could change that."""
        closed = self._hooked or has_logins(self.config) or self._access.stored.users
        return not closed and self._table.write is not None

    def reload(self, config: Config) -> None:
        refuse_open_listeners(in_force(self._started_with, config), self._hooked)  # with listeners as they are
        opens = bool(methods_of(self.config.auth)) and not methods_of(config.auth) and not self._hooked
        if opens and config.auth.allow_anonymous is None:  # others may reach a local listener through a proxy
            raise ConfigError(
                "auth: the settings have no authentication any more; set auth.allow_anonymous: true if this is intended"
            )
        super().reload(config)
        set_up_logging(config.log, config.node.name)

    def _restart(self) -> None:
        """Raises what ``check_start`` does."""
        self.check_start()
        self.restarts = True
        asyncio.get_running_loop().call_later(REPLY_SECONDS, self._end)

    def _freeze(self) -> None:
        freeze()
        self._freezer = asyncio.get_running_loop().call_later(FREEZE_INTERVAL, self._freeze)

    async def stop(self) -> None:
        if self._freezer is not None:
            self._freezer.cancel()
        self._log.stops()
        await super().stop()
        if self._driver is not None:
            self._log.ended(self._driver.state)
