"""Requests to etcd and its answers, as plain values (etcd API v3). Keys and values are bytes.

The state machines of ``cluster`` return requests and take answers. ``net.etcd.etcd_client`` carries them out; in the
simulator ``tests.sim.etcd_model`` does.
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
    """A condition on one key. A key that does not exist has revision 0; no condition on its value holds, not even
    ``!=``."""

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
    """With a prefix: ``limit`` keys at most, in key order, starting behind ``after`` (0: all)."""

    key: bytes
    prefix: bool = False
    limit: int = 0
    after: bytes = b""


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class Txn:
    """``success`` is done if all of ``compares`` hold, else ``failure``. ``tag`` comes back with the answer.
    Outstanding transactions are done in any order. Each list writes a key at most once."""

    tag: str
    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class TxnAnswer:
    """``found`` has one entry for each operation that was done: what a Get found, by key, and () for other operations.
    ``revision``: that of the store afterwards; a watch from the next one on misses nothing. ``error``: "", or why the
    outcome is unknown (timeout, no leader): the transaction may have been done, and may even still be done later."""

    tag: str
    succeeded: bool
    revision: int
    found: tuple[tuple[KeyValue, ...], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Watch:
    """Reports all changes below ``prefix`` from ``revision`` on. A new watch of the same prefix replaces the old
    one."""

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
    """Changes by ascending revision, all changes of a revision in one event; ``revision`` is that of the last one. The
    events of one watch never skip a change; an interrupted stream is resumed."""

    prefix: bytes
    revision: int
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class WatchLost:
    """Changes after ``revision`` are not available any more (compacted): the keys have to be read again, and watched
    from there."""

    prefix: bytes
    compacted: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The node's lease has expired, and everything that was written with it is gone; ``lease`` is the new one. The
    first lease of a node is not reported; a leased Put waits for it."""

    lease: int


@dataclass(frozen=True, slots=True)
class EtcdState:
    """Reports that etcd has become available or unavailable."""

    available: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Revokes a lease of another node, if it exists; there is no answer."""

    lease: int


Request = Txn | Watch | Revoke
Answer = TxnAnswer | WatchEvent | WatchLost | LeaseLost | EtcdState
