"""The client ids of some shares of which this node has something: found when a new leader asks, some names per turn.

Law: everything for which this node would keep an owner key is found: sessions, those on their way from here or to here,
answered claims that were not used yet, and wills.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from starlingmq.cluster.shares.share_messages import Stated, WillKey
from starlingmq.cluster.shares.share_table import share_of

NAMES_PER_TURN: Final = 5000


class HeldShare(NamedTuple):
    keys: list[Stated]
    wills: list[WillKey]
    served: list[tuple[str, int]]  # client id, epoch


Held = dict[int, HeldShare]


class Holder(Protocol):
    """The parts of this node that have something of client ids."""

    def client_ids(self) -> Iterable[str]: ...

    def held_key(self, client_id: str) -> tuple[int, int]:
        """The newest epoch of what is here, and the floor of its owner key; epoch 0: nothing is here."""

    def held_wills(self, client_id: str) -> list[WillKey]:
        """The records of the wills of the client id that this node has."""

    def served_epoch(self, client_id: str) -> int:
        """The newest epoch in which this node has served the client, as far as it knows; 0: none."""


class HeldKeys:
    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._names: list[str] = []
        self._found: Held = {}

    def begin(self, shares: Iterable[int]) -> None:
        self._found = {share: HeldShare([], [], []) for share in shares}
        self._names = list(dict.fromkeys(self._holder.client_ids()))

    def step(self) -> Held | None:
        """Looks at the next names; the result once it has looked at all of them."""
        names, self._names = self._names[:NAMES_PER_TURN], self._names[NAMES_PER_TURN:]
        for client_id in names:
            found = self._found.get(share_of(client_id))
            if found is not None:
                epoch, floor = self._holder.held_key(client_id)
                if epoch:
                    found.keys.append((client_id, epoch, floor))
                found.wills.extend(self._holder.held_wills(client_id))
                served = self._holder.served_epoch(client_id)
                if served:
                    found.served.append((client_id, served))
        return None if self._names else self._found
