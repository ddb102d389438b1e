"""CONNECTs that wait for their client id: in a cluster, a node serves a client id only while it is the owner.

::

    WANTED --claim granted--> OWNED (its epoch) --its session is here--> served
       |                       |--no node had its session any more--> WANTED: a later owner may have got it
       |                       |--another node owns a higher epoch--> refused, 0x89: that node serves its client
       |                       '--nothing in ``limit`` seconds------> refused, 0x89: the client shall retry
       '--its leader is gone, and no leader of a share has answered for ``silence`` seconds--> refused, 0x88

Invariants: a CONNECT that is not OWNED is never refused because of another one, since its epoch will be higher than all
that are known now; a CONNECT whose client has disconnected claims nothing.

``take`` returns the wanted claims; ``cluster.takeover.takeover`` decides when a client may continue
(``Connecting.claimed``). Each CONNECT claims its client id, also at its last owner: another node may have taken it
over, and not been able to say so.
"""

from __future__ import annotations

from starlingmq.core.context.will_port import WillPort
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import Client, Will


class OwnerClaim:
    """A held CONNECT."""

    client: Client
    auth_data: bytes | None
    clean_start: bool
    since: float  # broker time
    will: Will | None  # the will that its connection leaves, if it is accepted
    expiry: int  # the session expiry interval that it gets then
    epoch: int  # the ownership epoch; 0: unknown yet
    absent: dict[int, int] | None  # nodes that had nothing of the session -> the epoch of their owner key
    unsure: bool  # one of them has said so since the owner keys were read

    def __init__(
        self, client: Client, auth_data: bytes | None, clean_start: bool, since: float, will: Will | None, expiry: int
    ) -> None:
        self.client = client
        self.auth_data = auth_data
        self.clean_start = clean_start
        self.since = since
        self.will = will
        self.expiry = expiry
        self.epoch = 0
        self.absent = None
        self.unsure = False


class OwnerClaims:
    waiting: dict[str, OwnerClaim]  # by client id, in order of arrival
    unowned: dict[str, OwnerClaim]  # those without an answer of etcd, in the same order
    released: list[tuple[str, int]]  # client ids whose session has ended, and their epochs
    silence: float  # seconds that a CONNECT waits for an etcd that does not answer
    limit: float  # seconds that it waits for the session in any case
    _wanted: dict[str, None]
    _wills: WillPort | None

    def __init__(self, silence: float, limit: float, wills: WillPort | None) -> None:
        self.waiting = {}
        self.unowned = {}
        self.released = []
        self.silence = silence
        self.limit = limit
        self._wanted = {}
        self._wills = wills

    def hold(self, client_id: str, claim: OwnerClaim) -> OwnerClaim | None:
        """Hold a CONNECT. Returns the one with the same client id that was held before, which has to be refused."""
        earlier = self.drop(client_id)
        self.waiting[client_id] = self.unowned[client_id] = claim
        self._wanted[client_id] = None
        return earlier

    def holds(self, client: Client) -> bool:
        claim = self.waiting.get(client.client_id)
        return claim is not None and claim.client is client

    def drop(self, client_id: str) -> OwnerClaim | None:
        """Stop holding the CONNECT for a client id."""
        self.unowned.pop(client_id, None)
        claim = self.waiting.pop(client_id, None)
        if claim is not None:
            self._will_changed(client_id, claim)
        return claim

    def _will_changed(self, client_id: str, claim: OwnerClaim) -> None:
        if claim.will is not None and self._wills is not None:
            self._wills.change(client_id)

    def still(self, client_id: str) -> OwnerClaim | None:
        """The CONNECT held for a client id. One whose client has disconnected is removed."""
        claim = self.waiting.get(client_id)
        if claim is not None and claim.client.state == CLOSED:
            self.drop(client_id)
            return None
        return claim

    def own(self, client_id: str, epoch: int) -> None:
        """This node is the owner now."""
        claim = self.unowned.pop(client_id, None)
        if claim is not None:
            claim.epoch = epoch
            if claim.will is not None:
                claim.will.epoch = epoch
            self._will_changed(client_id, claim)

    def found_nothing(self, client_id: str, node: int, epoch: int) -> None:
        """A node with an owner key of that epoch has nothing of the session. It may have handed the session to a later
        owner since the keys were read."""
        claim = self.waiting.get(client_id)
        if claim is None or claim.clean_start:
            return
        if claim.absent is None:
            claim.absent = {}
        claim.unsure = claim.unsure or claim.absent.get(node) != epoch
        claim.absent[node] = epoch

    def is_absent(self, client_id: str, node: int, epoch: int) -> bool:
        """Whether the node has answered the waiting CONNECT that it has nothing of the session."""
        claim = self.waiting.get(client_id)
        return claim is not None and claim.absent is not None and claim.absent.get(node) == epoch

    def wants_keys_again(self, client_id: str) -> bool:
        """Whether the CONNECT has to claim again before it gets a new session. If so, it is not OWNED any more."""
        claim = self.waiting.get(client_id)
        if claim is None or not claim.unsure:
            return False
        claim.unsure = False
        claim.epoch = 0
        self.unowned[client_id] = claim
        return True

    def take(self) -> list[str]:
        """Client ids to claim in etcd."""
        wanted = [client_id for client_id in self._wanted if self.still(client_id) is not None]
        self._wanted.clear()
        return wanted

    def take_released(self) -> list[tuple[str, int]]:
        released = self.released
        self.released = []
        return released
