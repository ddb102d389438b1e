"""Where QoS 2 handshakes of a session are that other nodes may have, and what a connection waits for meanwhile."""

from __future__ import annotations


class Backlog:
    """What a connection waits for while other nodes are asked about its handshakes: everything goes on in its order."""

    repeated: dict[int, None]  # packet ids of PUBLISHes that came again and are not held yet
    deferred: dict[int, bool]  # those whose PUBREC waits, in order; whether it may go as far as it is concerned
    asked: dict[int, None]  # those whose PUBREL others were asked about
    behind: list[int]  # PUBRELs that came after one of those

    def __init__(self) -> None:
        self.repeated = {}
        self.deferred = {}
        self.asked = {}
        self.behind = []


class Trail:
    """Where QoS 2 handshakes of a session are besides here: the hint, one for each client."""

    node: int  # has the newest ones; 0: who has them is not known
    epoch: int  # its last one as the owner; no other node has any that are newer; 0: not known
    sure: bool  # that it is so; else all are asked
    backlog: Backlog | None  # of the connection that there is

    def __init__(self, node: int, epoch: int, sure: bool) -> None:
        self.node = node
        self.epoch = epoch
        self.sure = sure
        self.backlog = None

    def waits(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog()
        return self.backlog
