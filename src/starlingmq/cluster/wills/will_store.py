"""The questions of a node about records of wills, and their answers (docs/CLUSTER.md, Wills).

Laws:

- A record is changed if it has the revision that the writer has seen; its new revision is above all of its share.
- Each question is answered once. The changes of one record are made in the order in which a node asks for them.
- A follower is told what others write into the records of its node. As that can be lost, all of them are read again
  now and then.

``cluster.shares`` is the one implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final, NamedTuple, Protocol

from starlingmq.cluster.wills.will_records import RegisteredWill

PAGE: Final = 500  # records that a turn takes of a reading


class WillRecord(NamedTuple):
    """``revision`` 0: there is no such record. ``value`` None: neither, or this version does not know its form."""

    key: bytes
    revision: int
    value: RegisteredWill | None


class WillUpdate(NamedTuple):
    """Sets the record to ``value`` (None: deletes it) if it has that revision (0: if there is none), and writes
    ``copy`` with it, a record of the same client id."""

    key: bytes
    revision: int
    value: RegisteredWill | None
    copy: tuple[bytes, RegisteredWill] | None = None


class WillChanged(NamedTuple):
    """``done``: it was made; that is the record since. Otherwise the record is another one than the writer has seen,
    and ``records`` are all of the client id. ``sent_at``: when the change was requested of a leader."""

    update: WillUpdate
    done: bool
    record: WillRecord
    sent_at: float
    records: list[WillRecord]


class LedWills(NamedTuple):
    """``others``: nodes that have wills too. ``looked_at``: the number of all records."""

    records: list[WillRecord]
    others: dict[int, None]
    looked_at: int


class WillFollower(Protocol):
    def reading_begins(self) -> None:
        """From now on, all records of the node are told again."""

    def took(self, records: list[WillRecord], is_last: bool) -> None: ...

    def news(self, record: WillRecord, revision: int) -> None:
        """Another node has written a record of this node, or deleted it, in that revision; perhaps before what this
        node has heard since."""


class WillStore(Protocol):
    def change(self, update: WillUpdate, answered: Callable[[WillChanged], None]) -> None: ...

    def disarm(self, client_id: str, will: int) -> None:
        """Deletes the record of this node's will with that id, if the claims made so far register it in this table."""

    def read(self, client_id: str, answered: Callable[[list[WillRecord]], None]) -> None:
        """All records of the client id's wills."""

    def decoded(self, wills: tuple[tuple[bytes, int, bytes], ...]) -> list[WillRecord]:
        """Those that the answer to a claim has (``Claimed``)."""

    def follow(self, node: int, follower: WillFollower) -> None:
        """This node has that number."""

    # The records of the shares that this node leads

    @property
    def led_changes(self) -> int:
        """It grows when these are other shares, or have other records than by changes that were asked for."""

    def led_shares(self) -> list[int]: ...

    def led_wills(self, share: int, nodes: Container[int]) -> LedWills:
        """Of these nodes."""
