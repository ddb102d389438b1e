"""The core's interface to the rest of a cluster. Without a cluster, all of its parts are None.

A part is in use once ``cluster/`` has called the method that returns it: from then on the core adds to it, and
``cluster/`` takes out what it handles.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.core.context.local_interest import LocalInterest
from starlingmq.core.context.owner_claims import OwnerClaims
from starlingmq.core.context.remote_qos2 import RemoteQos2
from starlingmq.core.context.retained_outbox import RetainedOutbox
from starlingmq.core.context.will_port import WillPort
from starlingmq.core.session.session import Session


class ClusterPort:
    interest: LocalInterest | None  # filters of the subscribers here
    claims: OwnerClaims | None  # CONNECTs that wait until this node owns their client id
    qos2: RemoteQos2 | None  # QoS 2 handshakes on other nodes
    retained: RetainedOutbox | None  # retained messages for other nodes
    wills: WillPort | None  # wills for other nodes
    links: dict[int, Session]  # sessions that represent other nodes, by number
    leaving: dict[Session, None]  # migrating sessions with new data for their target
    reset_confirmed: list[Session]  # migrated sessions whose clients know that the session was reset
    forward_bytes: int  # limit of the bytes that wait for a node

    def __init__(self) -> None:
        self.interest = None
        self.claims = None
        self.qos2 = None
        self.retained = None
        self.wills = None
        self.links = {}
        self.leaving = {}
        self.reset_confirmed = []
        self.forward_bytes = 1 << 30

    def join(self, sessions: Iterable[Session], forward_bytes: int) -> None:
        """From now on, record the filters of subscribers here, including those of ``sessions``."""
        self.forward_bytes = forward_bytes
        self.interest = interest = LocalInterest()
        for session in sessions:
            interest.add_all(session)

    def claim_ids(self, silence: float, limit: float) -> OwnerClaims:
        """From now on, no client is served before this node owns its client id."""
        self.claims = claims = OwnerClaims(silence, limit, self.wills)
        return claims

    def end_claims(self) -> None:
        """From now on clients are served at once. No CONNECT waits."""
        self.claims = None

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
        """A session that migrates to another node has new data for its target."""
        self.leaving[session] = None

    def take_leaving(self) -> dict[Session, None]:
        leaving = self.leaving
        self.leaving = {}
        return leaving

    def take_reset_confirmed(self) -> list[Session]:
        reset_confirmed = self.reset_confirmed
        self.reset_confirmed = []
        return reset_confirmed
