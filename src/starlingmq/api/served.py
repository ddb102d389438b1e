"""The broker as the HTTP side sees it: what it may look at, and what it may have done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlingmq.auth.bans import Ban, Bans, Kind
from starlingmq.config import Config
from starlingmq.core.broker import BrokerState
from starlingmq.net.control import Action
from starlingmq.net.driver import Driver
from starlingmq.net.listeners import Listener

if TYPE_CHECKING:
    from starlingmq.net.cluster import Cluster
    from starlingmq.net.drain_actions import DrainActions


@dataclass(slots=True)
class Served:
    """``config`` and ``listeners`` are asked each time: they change with a reload, and while a node drains.

    ``actions`` are those of the control socket. ``serving`` is set once clients can come, and until they can not.
    """

    driver: Driver
    config: Callable[[], Config]
    listeners: Callable[[], list[Listener]]
    bans: Bans
    ban: Callable[[Kind, str, float, str], Ban]
    actions: Mapping[str, Action]
    cluster: Cluster | None
    drain: DrainActions | None
    serving: bool = False

    @property
    def state(self) -> BrokerState:
        return self.driver.state

    @property
    def name(self) -> str:
        return self.config().node.name
