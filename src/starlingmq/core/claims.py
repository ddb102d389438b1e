"""CONNECTs that wait for their client id: in a cluster a node serves a client id only while it owns it.

What is wanted goes out with ``take``; ``cluster.takeover`` says when a client may go on (``Connecting.claimed``). Each
CONNECT asks, also at the node that owned the client id last: another one may have taken it and not been able to say so.
"""

from __future__ import annotations

from starlingmq.core.client import Client


class Claim:
    """A CONNECT that is held; ``deadline`` is in broker time."""

    client: Client
    auth_data: bytes | None
    clean_start: bool
    deadline: float

    def __init__(self, client: Client, auth_data: bytes | None, clean_start: bool, deadline: float) -> None:
        self.client = client
        self.auth_data = auth_data
        self.clean_start = clean_start
        self.deadline = deadline


class Claims:
    waiting: dict[str, Claim]  # by client id, in the order of their deadlines
    released: list[tuple[str, int]]  # client ids without a session any more, and the epochs in which they were owned
    seconds: float  # that a CONNECT waits
    _wanted: dict[str, None]

    def __init__(self, seconds: float) -> None:
        self.waiting = {}
        self.released = []
        self.seconds = seconds
        self._wanted = {}

    def hold(self, client_id: str, claim: Claim) -> Claim | None:
        """Let a CONNECT wait; the one that waited under the same client id, which has to go."""
        earlier = self.waiting.pop(client_id, None)
        self.waiting[client_id] = claim
        self._wanted[client_id] = None
        return earlier

    def take(self) -> list[str]:
        """Client ids to be asked for."""
        wanted = list(self._wanted)
        self._wanted.clear()
        return wanted

    def take_released(self) -> list[tuple[str, int]]:
        released = self.released
        self.released = []
        return released
