"""SUBACKs that wait until other nodes have the route.

Invariant: a SUBACK is sent once every node that may publish has the route: nodes connected to this one, nodes connected
to those, and nodes lost so recently that they may not have noticed. A process that has ended does not publish.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from starlingmq.cluster.peers.publishers import Publishers
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.broker import BrokerState
from starlingmq.core.subscribe.subscribing import HeldSuback


class SubackWait(Subsystem):
    """``hold`` takes a SUBACK whose session is still moving here, if it has to wait for cut markers as well."""

    def __init__(
        self, broker: BrokerState, view: ClusterView, publishers: Publishers, hold: Callable[[HeldSuback], bool]
    ) -> None:
        self._subscribing = broker.subscribing
        self._view = view
        self._publishers = publishers
        self._hold = hold

    def turn(self, now: float) -> None:
        quorum, routes = self._view.quorum, self._view.routes
        subscribing = self._subscribing
        if subscribing.held and quorum is not None and routes is not None:
            if quorum.enough():  # an isolated node cannot tell which nodes publish
                version = routes.applied_by(self._publishers.others(quorum, now))
                for held in subscribing.take_applied(version):
                    if held.session.moving is None or not self._hold(held):
                        subscribing.answer(held)
            subscribing.overdue()

    def has_input(self) -> bool:
        return bool(self._subscribing.held)

    def wake_at(self, now: float) -> float:
        held = self._subscribing.held
        return held[0].deadline if held and held[0].version >= 0 else inf
