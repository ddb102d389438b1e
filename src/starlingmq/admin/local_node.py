"""The node that is administered: what there is to look at, and to be changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlingmq.admin.loop_lag import LoopLag
from starlingmq.auth.automatic_bans import AutomaticBans, Ban, Kind
from starlingmq.config.settings import Config
from starlingmq.core.broker import BrokerState
from starlingmq.net.driver import Driver
from starlingmq.net.listeners.listeners import Listener

if TYPE_CHECKING:
    from starlingmq.admin.drain_actions import DrainActions
    from starlingmq.auth.passwords import Hashing
    from starlingmq.net.peers.cluster_shell import Cluster


@dataclass(slots=True)
class LocalNode:
    """``config`` and ``listeners`` are asked each time: they change with a reload, and while a node drains.

    ``reload`` reads the settings anew and says which of them count only after a restart; it raises what is wrong with
    them. ``traced`` are the figures of OpenTelemetry's traces, None without. ``hashing`` checks
    passwords, None where there are none. ``serving`` is set once clients can come,
    and until they can not.
    """

    name: str
    driver: Driver
    config: Callable[[], Config]
    listeners: Callable[[], list[Listener]]
    bans: AutomaticBans
    ban: Callable[[Kind, str, float, str], Ban]
    hashing: Callable[[], Hashing | None]
    reload: Callable[[], list[str]]
    cluster: Cluster | None
    drain: DrainActions | None
    traced: Callable[[], dict[str, int] | None]
    lag: LoopLag = field(default_factory=LoopLag)
    serving: bool = False

    @property
    def state(self) -> BrokerState:
        return self.driver.state
