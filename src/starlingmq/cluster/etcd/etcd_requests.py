"""Requests to etcd and its answers, as plain values (etcd API v3). Keys and values are bytes.

The state machines of ``cluster`` hand requests out and take answers in; ``net.etcd.etcd_client`` carries them out, and
``tests.sim.etcd_model`` is the other one that does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one key. One that is not there has revisions 0; of its value nothing holds, not even ``!=``."""

    key: bytes
    target: Literal["create_revision", "mod_revision", "value"]
    operator: Literal["=", "!=", "<", ">"]
    operand: int | bytes


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes
    leased: bool = False  # with the node's lease


@dataclass(frozen=True, slots=True)
class Delete:
    key: bytes
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """``limit``: so many at most, in the order of their keys, from behind ``after`` on (with a prefix; 0: all)."""

    key: bytes
    prefix: bool = False
    limit: int = 0
    after: bytes = b""


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class Txn:
    """``success`` is done if all of ``compares`` hold, else ``failure``. ``tag`` comes back with the answer.

    Several that are under way at once are done in any order. Each list writes a key once at most.
    """

    tag: str
    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class TxnAnswer:
    """``found`` has an entry for each operation that was done: what a Get found, in the order of its keys, () for the
    others. ``revision`` is that of the store afterwards: a watch from the next one on misses nothing.

    ``error``: "" or why nothing is known of what became of it (no answer in time, no leader): the transaction may have
    been done, and may even still be.
    """

    tag: str
    succeeded: bool
    revision: int
    found: tuple[tuple[KeyValue, ...], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Watch:
    """Tell all changes below ``prefix`` from ``revision`` on. A new one of the same prefix replaces the old one."""

    prefix: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class KeyChange:
    """``value`` None: deleted."""

    key: bytes
    value: bytes | None
    mod_revision: int
    create_revision: int = 0


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Changes in the order of their revisions, all of a revision in one event; ``revision`` is that of the last.

    Answers to one watch never skip a change; a cut stream is resumed.
    """

    prefix: bytes
    revision: int
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class WatchLost:
    """What follows ``revision`` can not be had any more (compacted): read again, and watch from there."""

    prefix: bytes
    compacted: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The node's lease has run out and what was written with it is gone; ``lease`` is the new one.

    Of the first one that is granted nothing is said; a leased Put waits for it.
    """

    lease: int


@dataclass(frozen=True, slots=True)
class EtcdState:
    """Whether etcd answers, as it changes."""

    available: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revoke:
    """End a lease of another node, if it exists; there is no answer."""

    lease: int


Request = Txn | Watch | Revoke
Answer = TxnAnswer | WatchEvent | WatchLost | LeaseLost | EtcdState
