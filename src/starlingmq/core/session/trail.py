"""The hint to a session's QoS 2 handshakes on other nodes, and the state of a connection that waits for lookups."""

from __future__ import annotations


class Backlog:
    """The packets of a connection that wait for lookups of its handshakes, so that everything happens in order."""

    repeated: dict[int, None]  # packet ids of repeated PUBLISHes that are not held yet
    deferred: dict[int, bool]  # packet ids whose PUBREC waits, in order; whether the lookup allows it
    asked: dict[int, None]  # packet ids whose PUBREL is being looked up
    behind: list[int]  # PUBRELs that came after one of those

    def __init__(self) -> None:
        self.repeated = {}
        self.deferred = {}
        self.asked = {}
        self.behind = []


class Trail:
    """The hint to a session's QoS 2 handshakes on other nodes."""

    node: int  # has the newest ones; 0: unknown
    epoch: int  # its last ownership epoch; no other node has newer handshakes; 0: unknown
    sure: bool  # the hint is certain; else all nodes are asked
    backlog: Backlog | None  # of the present connection

    def __init__(self, node: int, epoch: int, sure: bool) -> None:
        self.node = node
        self.epoch = epoch
        self.sure = sure
        self.backlog = None

    def waits(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog()
        return self.backlog
