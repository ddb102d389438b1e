"""Nodes that were connected and are not any more: decides whether they are gone, and has their leases revoked."""

from __future__ import annotations

from starlingmq.cluster.etcd.etcd_requests import Answer, Request, TxnAnswer
from starlingmq.cluster.membership.lease_fence import LeaseFence
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem


class LostNodes(Subsystem):
    def __init__(self, view: ClusterView, lease_fence: LeaseFence) -> None:
        self._view = view
        self._lease_fence = lease_fence

    def lost(self, number: int, now: float) -> None:
        self._lease_fence.lost(number, now)

    def recovered(self, number: int) -> None:
        """The node is connected, or is no longer a member."""
        self._lease_fence.recovered(number)

    def is_gone(self, number: int) -> bool:
        """Whether a node is no longer a member; or is not connected, and either its lease has expired or no node hears
        it."""
        members = self._view.members
        if not any(member.number == number for member in members.membership.members):
            return True
        if self._view.is_connected(number):
            return False
        return number not in members.online or self._lease_fence.is_gone(number, self._view.quorum)

    def answered(self, answer: Answer, now: float) -> None:
        if isinstance(answer, TxnAnswer):
            self._lease_fence.answered(answer, now)

    def wake_at(self, now: float) -> float:
        return self._lease_fence.wake_at(now)

    def take_requests(self, now: float) -> list[Request]:
        quorum = self._view.quorum
        return [] if quorum is None else self._lease_fence.take_requests(self._view.members, quorum, now)
