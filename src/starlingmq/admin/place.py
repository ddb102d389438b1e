"""The node that is administered: what there is to look at, and to be changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlingmq.admin.lag import Lag
from starlingmq.auth.bans import Ban, Bans, Kind
from starlingmq.config import Config
from starlingmq.core.broker import BrokerState
from starlingmq.net.driver import Driver
from starlingmq.net.listeners import Listener

if TYPE_CHECKING:
    from starlingmq.auth.passwords import Hashing
    from starlingmq.net.cluster import Cluster
    from starlingmq.net.drain_actions import DrainActions


@dataclass(slots=True)
class Place:
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
    bans: Bans
    ban: Callable[[Kind, str, float, str], Ban]
    hashing: Callable[[], Hashing | None]
    reload: Callable[[], list[str]]
    cluster: Cluster | None
    drain: DrainActions | None
    traced: Callable[[], dict[str, int] | None]
    lag: Lag = field(default_factory=Lag)
    serving: bool = False

    @property
    def state(self) -> BrokerState:
        return self.driver.state
