"""CONNECTs that wait for their client id: in a cluster a node serves a client id only while it owns it.

::

    WANTED --etcd answers--> OWNED (its epoch) --its session is here--> served
       |                       |--another node owns a higher epoch--> refused, 0x89: that node serves its client
       |                       '--nothing in ``limit`` seconds------> refused, 0x89: come again
       '--etcd says nothing for ``silence`` seconds--> refused, 0x88

The laws: a CONNECT that is not OWNED is never refused because of another one, for its epoch will be higher than all
that are known now; a CONNECT whose client is gone claims nothing.

What is wanted goes out with ``take``; ``cluster.takeover.takeover`` says when a client may go on
(``Connecting.claimed``). Each CONNECT asks, also at the node that owned the client id last: another one may have taken
it and not been able to say so.
"""

from __future__ import annotations

from starlingmq.core.connection import CLOSED
from starlingmq.core.session.session import Client


class OwnerClaim:
    """A CONNECT that is held."""

    client: Client
    auth_data: bytes | None
    clean_start: bool
    since: float  # broker time
    epoch: int  # in which this node owns the client id; 0: that is not known yet

    def __init__(self, client: Client, auth_data: bytes | None, clean_start: bool, since: float) -> None:
        self.client = client
        self.auth_data = auth_data
        self.clean_start = clean_start
        self.since = since
        self.epoch = 0


class OwnerClaims:
    waiting: dict[str, OwnerClaim]  # by client id, in the order in which they came
    unowned: dict[str, OwnerClaim]  # those of them that etcd has not answered, in that order too
    released: list[tuple[str, int]]  # client ids without a session any more, and the epochs in which they were owned
    silence: float  # seconds for which a CONNECT waits for an etcd that says nothing
    limit: float  # and for the session, whatever is heard of it
    _wanted: dict[str, None]

    def __init__(self, silence: float, limit: float) -> None:
        self.waiting = {}
        self.unowned = {}
        self.released = []
        self.silence = silence
        self.limit = limit
        self._wanted = {}

    def hold(self, client_id: str, claim: OwnerClaim) -> OwnerClaim | None:
        """Let a CONNECT wait; the one that waited under the same client id, which has to go."""
        earlier = self.drop(client_id)
        self.waiting[client_id] = self.unowned[client_id] = claim
        self._wanted[client_id] = None
        return earlier

    def holds(self, client: Client) -> bool:
        claim = self.waiting.get(client.client_id)
        return claim is not None and claim.client is client

    def drop(self, client_id: str) -> OwnerClaim | None:
        """It waits no more."""
        self.unowned.pop(client_id, None)
        return self.waiting.pop(client_id, None)

    def still(self, client_id: str) -> OwnerClaim | None:
        """The CONNECT that waits for it. One whose client is gone is forgotten."""
        claim = self.waiting.get(client_id)
        if claim is not None and claim.client.state == CLOSED:
            self.drop(client_id)
            return None
        return claim

    def own(self, client_id: str, epoch: int) -> None:
        """This node owns it now."""
        claim = self.unowned.pop(client_id, None)
        if claim is not None:
            claim.epoch = epoch

    def take(self) -> list[str]:
        """Client ids to be asked for."""
        wanted = [client_id for client_id in self._wanted if self.still(client_id) is not None]
        self._wanted.clear()
        return wanted

    def take_released(self) -> list[tuple[str, int]]:
        released = self.released
        self.released = []
        return released
