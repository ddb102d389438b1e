"""Ordered byte keys: the small state of the broker (sessions, subscriptions, windows, references into the journal).

Keys are compared as bytes. A scan gives a bounded list instead of an iterator: nothing stays open between two turns of
the event loop, and whatever is written meanwhile can not upset it; the next scan goes on after the last key.
"""

from __future__ import annotations

from typing import Protocol


class Batch:
    """Puts and deletes that take effect together or not at all; of several for one key the last counts."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes | None] = {}  # key -> value, None: delete it

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """The key need not be there."""
        self.changes[key] = None

    def __len__(self) -> int:
        return len(self.changes)


class Kv(Protocol):
    """An engine. Every method raises OSError when the storage fails; a ``write`` that raised has changed nothing."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes | None, limit: int, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """The first ``limit`` keys k with start <= k < end and their values, in order; the last ones, from the end
        on, when ``reverse``. ``end`` None: no upper bound."""
        ...

    def write(self, batch: Batch) -> None:
        """Apply a batch; it survives the death of the process from here on."""
        ...

    def sync(self) -> None:
        """Make what was written before this call survive a power failure. Blocks; may be called from another thread."""
        ...

    def close(self) -> None:
        """Let go of everything. May be called again; nothing else may."""
        ...


def after(key: bytes) -> bytes:
    """The least key greater than ``key``: where the next scan goes on."""
    return key + b"\0"


def prefix_end(prefix: bytes) -> bytes | None:
    """The ``end`` of a scan over all keys that begin with ``prefix``; None when they reach to the last key."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None
