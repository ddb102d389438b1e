"""Leadership of the whole cluster: ``Election`` for one registered incarnation of this node."""

from __future__ import annotations

from math import inf

from starlingmq.cluster.etcd.election import Election
from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem


class Leadership(Subsystem):
    def __init__(self, view: ClusterView, election: Election) -> None:
        self._view = view
        self._election = election

    def is_leading(self) -> bool:
        return self._election.leading

    def answered(self, answer: Answer, now: float) -> None:
        self._election.answered(answer, now)

    def registered(self, now: float) -> None:
        self._election.campaign(b"%d/%d" % (self._view.number, self._view.incarnation), now)
        self._election.tick(now)

    def take_requests(self, now: float) -> list[Request]:
        return self._election.take_requests() if self._view.is_registered() else []

    def wake_at(self, now: float) -> float:
        return self._election.wake_at() or inf
