"""What a turn of the cluster has for the shell to do."""

from __future__ import annotations

from starlingmq.cluster.etcd.etcd_requests import Request
from starlingmq.cluster.links.peer_frames import Envelope, MemberInfo
from starlingmq.cluster.operator_rpc import Called, Outcome


class ClusterReady:
    requests: list[Request]  # to etcd
    now: list[tuple[int, Envelope]]  # (next hop, envelope)
    peers: tuple[MemberInfo, ...] | None  # the nodes to have streams to, when they have changed
    notices: list[str]  # what an operator may have to look after
    news: list[str]  # what is well again
    called: list[Called]  # what operators ask of this node at others, to be answered
    outcomes: list[Outcome]  # of what they ask of others here

    def __init__(self) -> None:
        self.requests = []
        self.now = []
        self.peers = None
        self.notices = []
        self.news = []
        self.called = []
        self.outcomes = []

    def take(self) -> ClusterReady:
        """All of it; this one is empty then."""
        taken = ClusterReady()
        taken.requests, self.requests = self.requests, taken.requests
        taken.now, self.now = self.now, taken.now
        taken.peers, self.peers = self.peers, None
        taken.notices, self.notices = self.notices, taken.notices
        taken.news, self.news = self.news, taken.news
        taken.called, self.called = self.called, taken.called
        taken.outcomes, self.outcomes = self.outcomes, taken.outcomes
        return taken
