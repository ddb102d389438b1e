"""The questions of a node about the owners of client ids, and their answers (docs/SESSIONS.md).

Law: each request is answered once, after what it has changed cannot be lost with one node. ``cluster.shares`` is the
one implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

CLEAN: Final = -1  # in place of a floor: the epoch of the claim itself


class OwnerKey(NamedTuple):
    """``node`` has, or may have, state of a client id. ``created``: the epoch in which it had no key before.
    ``incarnation``: of the node when it claimed; 0: not known. ``floor``: everything of epochs below it was discarded
    by a clean start, as far as the node knew; 0: nothing; CLEAN: ``epoch``."""

    node: int
    created: int
    epoch: int
    incarnation: int = 0
    floor: int = 0


class Claimed(NamedTuple):
    """A claim was granted. ``others``: nodes with a key before, and their epochs, without the claiming node. Everything
    of epochs below ``floor`` was discarded. ``armed``: the will that came with it is registered. ``wills``: all other
    wills of the client id (``wills.will_records``), each with its key, its revision, and its value."""

    epoch: int
    others: dict[int, int]
    floor: int
    armed: bool = False
    wills: tuple[tuple[bytes, int, bytes], ...] = ()


class OwnerStore(Protocol):
    answered_at: float  # when a request was last answered, or is sure to be

    def claim(self, client_id: str, floor: int, will: bytes, answered: Callable[[str, Claimed], None]) -> None:
        """Writes the key of this node, and reads those of the others in the same step. ``will``: a record to register
        with it, if this node has none of that client id; empty: none."""

    def leave_out_will(self, client_id: str) -> None:
        """The outstanding claim brings no will any more, if it is not on its way already."""

    def release(self, client_id: str, node: int, epoch: int, answered: Callable[[str, int, int, int], None]) -> None:
        """Deletes the key of a node unless it has a later epoch. The answer: client id, node, the newest epoch of the
        store, and the later epoch of the key; 0: it is deleted."""

    def read(self, client_id: str, answered: Callable[[str, int, tuple[OwnerKey, ...]], None]) -> None:
        """The answer: client id, the newest epoch of the store, and the keys. A key of node 0: keys of lower epochs, of
        nodes that are not members any more, may be missing."""
