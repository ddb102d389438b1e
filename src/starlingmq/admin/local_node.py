"""The node that operators administer: its state, and the functions that change it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from starlingmq.core.observe.counters import Histogram

if TYPE_CHECKING:
    from starlingmq.admin.access_table import AccessTable
    from starlingmq.admin.drain_actions import DrainActions
    from starlingmq.auth.access_control import AccessControl
    from starlingmq.auth.automatic_bans import AutomaticBans, Ban, Kind
    from starlingmq.auth.passwords import Hashing
    from starlingmq.bridges.bridge_set import BridgeSet
    from starlingmq.config.settings import Config
    from starlingmq.core.broker import BrokerState
    from starlingmq.core.context.ready import Notice, Refusal
    from starlingmq.net.driver import Driver
    from starlingmq.net.listeners.listeners import Listener
    from starlingmq.net.peers.cluster_shell import Cluster
    from starlingmq.otel.tracing import Tracing

LAG_INTERVAL: Final = 0.25  # seconds


class LoopLag:
    """The delay of the event loop, measured with a timer. It runs only where operators can read the result."""

    def __init__(self) -> None:
        self.seen = Histogram()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + LAG_INTERVAL
        self._timer = loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        self.seen.add(asyncio.get_running_loop().time() - due)
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


CLIENTS_MAX: Final = 100  # last refusals that are kept; the topic of one may have 65,535 bytes


class LastNotices:
    """``closed``: the last closed connection of each reason. ``refused``: of a client, its last PUBLISH or SUBSCRIBE
    that was refused. ``by_rules`` is the last one that the rules refused to a client with a user name, and ``count``
    the number of those."""

    def __init__(self) -> None:
        self.closed: dict[str, Notice] = {}
        self.refused: dict[str, Refusal] = {}
        self.by_rules: Refusal | None = None
        self.count = 0

    def refuse(self, refusal: Refusal) -> None:
        self.refused.pop(refusal.client_id, None)
        if len(self.refused) == CLIENTS_MAX:
            del self.refused[next(iter(self.refused))]
        self.refused[refusal.client_id] = refusal
        if refusal.username and not refusal.detail:
            self.by_rules = refusal
            self.count += 1


@dataclass(slots=True)
class LocalNode:
    """``config`` and ``listeners`` are functions, because both change: with a reload, and while the node drains.

    ``config`` has the settings that were loaded last, ``in_force`` those of the start where they need a restart.
    ``reload`` reads the settings again and returns those that take effect only after a restart; it raises if they are
    invalid. ``apply`` uses these settings until the next reload. ``tracing`` returns the export of
    OpenTelemetry's traces, None without tracing. ``hashing`` returns the password checker, None without passwords.
    ``table`` has the users and rules that operators made.
    ``serving`` is true while the node accepts clients. ``http_refusals`` counts failed logins to the HTTP API.
    ``bridges`` returns the bridges to other brokers, None without any.
    ``restart`` ends the broker, and begins again as
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
    bridges: Callable[[], BridgeSet | None] = field(default=lambda: None)
    last: LastNotices = field(default_factory=LastNotices)

    def user_of(self, client_id: str) -> str:
        """Of a connected client, or of one whose refusal is known; "" if it has none."""
        session, refusal = self.state.ctx.sessions.get(client_id), self.last.refused.get(client_id)
        if session is not None and session.client is not None:
            return session.client.username
        return "" if refusal is None else refusal.username

    def why_refused(self, client_id: str) -> str:
        """The rule or the hook that refused the last PUBLISH or SUBSCRIBE of this client; "" if that is not known."""
        refusal = self.last.refused.get(client_id)
        return "" if refusal is None else refusal.detail or self.access.why_refused(refusal)

    @property
    def state(self) -> BrokerState:
        return self.driver.state
