"""SUBACKs that wait until other nodes have the route.

The law: a SUBACK is sent once every node that may publish has the route: nodes connected to this one, nodes connected
to those, and nodes lost so recently that they may not have noticed. A process that has ended does not publish.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from starlingmq.cluster.cluster_view import ClusterView
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.subsystem import Subsystem
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState


class SubackWait(Subsystem):
    def __init__(self, broker: BrokerState, config: ClusterConfig, view: ClusterView) -> None:
        self._ctx = broker.ctx
        self._subscribing = broker.subscribing
        self._config = config
        self._view = view

    def turn(self, now: float) -> None:
        quorum, routes = self._view.quorum, self._view.routes
        subscribing = self._subscribing
        if subscribing.held and quorum is not None and routes is not None:
            if quorum.enough():  # an isolated node cannot tell which nodes publish
                subscribing.applied(routes.applied_by(self.publishers(quorum, now)))
            subscribing.overdue()

    def awaited(self) -> list[int] | None:
        """The nodes whose cut markers a SUBACK waits for; None: unknown."""
        quorum = self._view.quorum
        if quorum is None or not quorum.enough():
            return None
        return [self._view.number, *self.publishers(quorum, self._ctx.now)]

    def publishers(self, quorum: Quorum, now: float) -> Iterator[int]:
        """Registered nodes that may publish by the routes that they have: nodes connected to this one, or to a node
        that is, and nodes lost within the last timeout, which may not have noticed. Without nodes that are dead, or
        that all others report as not heard."""
        for member in self._view.members.membership.members:
            number = member.number
            transport = self._view.transports.get(number)
            if transport is None or quorum.is_dead(number):
                continue
            lately = transport.lost_at and now < transport.lost_at + self._config.member_timeout
            if (
                quorum.is_connected(number)
                or quorum.is_connected_to_others(number)
                or (lately and not quorum.is_heard_by_nobody(number, transport.lost_at))
            ):
                yield number

    def has_input(self) -> bool:
        return bool(self._subscribing.held)

    def wake_at(self, now: float) -> float:
        held = self._subscribing.held
        return held[0].deadline if held and held[0].version >= 0 else inf
