"""The node that operators administer: its state, and the functions that change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlingmq.admin.loop_lag import LoopLag

if TYPE_CHECKING:
    from starlingmq.admin.access_table import AccessTable
    from starlingmq.admin.drain_actions import DrainActions
    from starlingmq.auth.access_control import AccessControl
    from starlingmq.auth.automatic_bans import AutomaticBans, Ban, Kind
    from starlingmq.auth.passwords import Hashing
    from starlingmq.config.settings import Config
    from starlingmq.core.broker import BrokerState
    from starlingmq.core.context.ready import Notice
    from starlingmq.net.driver import Driver
    from starlingmq.net.listeners.listeners import Listener
    from starlingmq.net.peers.cluster_shell import Cluster
    from starlingmq.otel.tracing import Tracing


@dataclass(slots=True)
class LocalNode:
    """``config`` and ``listeners`` are functions, because both change: with a reload, and while the node drains.

    ``config`` has the settings that were loaded last, ``in_force`` those of the start where they need a restart.
    ``reload`` reads the settings again and returns those that take effect only after a restart; it raises if they are
    invalid. ``apply`` uses these settings until the next reload. ``tracing`` returns the export of
    OpenTelemetry's traces, None without tracing. ``hashing`` returns the password checker, None without passwords.
    ``table`` has the users and rules that operators made.
    ``serving`` is true while the node accepts clients. ``http_refusals`` counts failed logins to the HTTP API.
    ``last_closed`` has the last closed connection of each reason. ``restart`` ends the broker, and begins again as
    a process; it raises what the start would raise. None: it runs inside a program.
    """

    name: str
    driver: Driver
    config: Callable[[], Config]
    listeners: Callable[[], list[Listener]]
    bans: AutomaticBans
    ban: Callable[[Kind, str, float, str], Ban]
    access: AccessControl
    hashing: Callable[[], Hashing | None]
    reload: Callable[[], list[str]]
    apply: Callable[[Config], None]
    cluster: Cluster | None
    drain: DrainActions | None
    tracing: Callable[[], Tracing | None]
    in_force: Callable[[], Config]
    table: AccessTable
    restart: Callable[[], None] | None = None
    lag: LoopLag = field(default_factory=LoopLag)
    serving: bool = False
    http_refusals: Counter[str] = field(default_factory=Counter)
    last_closed: Mapping[str, Notice] = field(default_factory=dict)

    @property
    def state(self) -> BrokerState:
        return self.driver.state
