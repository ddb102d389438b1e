"""The output of a cluster turn for the shell."""

from __future__ import annotations

from starlingmq.cluster.etcd.etcd_requests import Request
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.view.operator_rpc import Called, Outcome


class ClusterReady:
    requests: list[Request]  # to etcd
    now: list[tuple[int, Envelope]]  # (next hop, envelope)
    peers: tuple[MemberInfo, ...] | None  # the nodes that need a stream, when they have changed
    notices: list[str]  # warnings for the operator
    news: list[str]  # recoveries
    called: list[Called]  # requests of operators at other nodes, to be answered
    outcomes: list[Outcome]  # results of this node's operator requests to other nodes

    def __init__(self) -> None:
        self.requests = []
        self.now = []
        self.peers = None
        self.notices = []
        self.news = []
        self.called = []
        self.outcomes = []

    def take(self) -> ClusterReady:
        """Everything collected so far; leaves this one empty."""
        taken = ClusterReady()
        taken.requests, self.requests = self.requests, taken.requests
        taken.now, self.now = self.now, taken.now
        taken.peers, self.peers = self.peers, None
        taken.notices, self.notices = self.notices, taken.notices
        taken.news, self.news = self.news, taken.news
        taken.called, self.called = self.called, taken.called
        taken.outcomes, self.outcomes = self.outcomes, taken.outcomes
        return taken
