"""What the core keeps for the rest of a cluster. A broker that stands alone has none of it: each part is None.

A part begins with the method that returns it: ``cluster/`` keeps what it is given and takes out what the core puts in.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.core.routing.local_interest import LocalInterest
from starlingmq.core.routing.retained_outbox import RetainedOutbox
from starlingmq.core.session.owner_claims import OwnerClaims
from starlingmq.core.session.remote_qos2 import RemoteQos2
from starlingmq.core.session.session import Session
from starlingmq.core.session.will_port import WillPort


class ClusterPort:
    interest: LocalInterest | None  # what our own subscribers want
    claims: OwnerClaims | None  # CONNECTs that wait for their client id, which other nodes may own
    qos2: RemoteQos2 | None  # QoS 2 handshakes at other nodes
    retained: RetainedOutbox | None  # retained messages that other nodes must know
    wills: WillPort | None  # wills that other nodes must know
    links: dict[int, Session]  # sessions that stand for other nodes, by number
    leaving: dict[Session, None]  # on their way to another node, with something new to be sent there
    aware: list[Session]  # that came from elsewhere, and whose clients are aware that they begin anew
    forward_bytes: int  # that may wait for a node

    def __init__(self) -> None:
        self.interest = None
        self.claims = None
        self.qos2 = None
        self.retained = None
        self.wills = None
        self.links = {}
        self.leaving = {}
        self.aware = []
        self.forward_bytes = 1 << 30

    def join(self, sessions: Iterable[Session], forward_bytes: int) -> None:
        """Count from now on what the subscribers here want, those of ``sessions`` among them."""
        self.forward_bytes = forward_bytes
        self.interest = interest = LocalInterest()
        for session in sessions:
            interest.add_all(session)

    def claim_ids(self, silence: float, limit: float) -> OwnerClaims:
        """No client is served before this node owns its client id."""
        self.claims = claims = OwnerClaims(silence, limit)
        return claims

    def share_qos2(self) -> RemoteQos2:
        self.qos2 = qos2 = RemoteQos2()
        return qos2

    def share_retained(self, seconds: float) -> RetainedOutbox:
        self.retained = retained = RetainedOutbox(seconds)
        return retained

    def share_wills(self) -> WillPort:
        self.wills = wills = WillPort()
        return wills

    def leave(self, session: Session) -> None:
        """There is something new of a session that goes to another node."""
        self.leaving[session] = None

    def take_leaving(self) -> dict[Session, None]:
        leaving = self.leaving
        self.leaving = {}
        return leaving

    def take_aware(self) -> list[Session]:
        aware = self.aware
        self.aware = []
        return aware
