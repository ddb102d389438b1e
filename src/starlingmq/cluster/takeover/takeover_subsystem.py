"""``Takeovers`` and its requests about owners, as one subsystem."""

from __future__ import annotations

from starlingmq.cluster.etcd.etcd_requests import Request
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.takeover.ownership import Ownership
from starlingmq.cluster.takeover.takeover import FACTS, Takeovers
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import NodeLife, Subsystem
from starlingmq.core.context.cluster_port import ClusterPort


class TakeoverSubsystem(Subsystem):
    fact_prefix = FACTS

    def __init__(self, port: ClusterPort, view: ClusterView, takeovers: Takeovers, ownership: Ownership) -> None:
        self._port = port
        self._view = view
        self._takeovers = takeovers
        self._ownership = ownership
        self._more = False  # work for the next turn

    def enter(self, life: NodeLife, now: float) -> None:
        me = life.me
        life.renumbered = self._takeovers.enter(me.number, me.incarnation, life.facts(FACTS), me.first)

    def enter_again(self, me: MemberInfo) -> None:
        self._takeovers.enter_again(me.incarnation)

    def set_members(self, numbers: dict[int, None]) -> None:
        self._takeovers.set_members(numbers)

    def node_restarted(self, node: int) -> None:
        self._takeovers.node_restarted(node)

    def look(self, now: float) -> None:
        self._takeovers.look(now)

    def turn(self, now: float) -> None:
        routes = self._view.routes
        if routes is not None:
            self._more = self._takeovers.turn(routes.version, routes.epoch, now)

    def take_notices(self) -> list[str]:
        return self._takeovers.take_notices()

    def take_requests(self, now: float) -> list[Request]:
        self._ownership.ask()
        if self._view.is_registered():
            self._takeovers.orphaned.ask()
        return []

    def has_input(self) -> bool:
        port = self._port
        claims = port.claims
        if claims is not None and (claims.waiting or claims.released):
            return True
        return bool(port.leaving or port.reset_confirmed)

    def is_busy(self) -> bool:
        return not self._ownership.idle() or self._takeovers.busy()

    def is_pending(self) -> bool:
        return self._more

    def wake_at(self, now: float) -> float:
        return self._takeovers.wake_at()
