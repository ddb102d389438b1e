"""The nodes that may publish: those that a SUBACK has to wait for."""

from __future__ import annotations

from collections.abc import Iterator

from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.context.context import Context


class Publishers:
    def __init__(self, ctx: Context, config: ClusterConfig, view: ClusterView) -> None:
        self._ctx = ctx
        self._config = config
        self._view = view

    def awaited(self) -> list[int] | None:
        """The nodes whose cut markers a SUBACK waits for; None: unknown."""
        quorum = self._view.quorum
        if quorum is None or not quorum.enough():
            return None
        return [self._view.number, *self.others(quorum, self._ctx.now)]

    def others(self, quorum: Quorum, now: float) -> Iterator[int]:
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
