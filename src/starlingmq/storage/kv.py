"""Ordered byte keys: the small state of the broker (sessions, subscriptions, windows, references into the journal).

Keys are compared as bytes. A scan returns a bounded list instead of an iterator: nothing stays open between two turns
of the event loop, and writes between two scans cannot invalidate anything; the next scan continues after the last key.
"""

from __future__ import annotations

from typing import Protocol


class Batch:
    """Puts and deletes that take effect together or not at all. Of several for one key the last counts."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes | None] = {}  # key -> value, None: delete it

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """The key need not exist."""
        self.changes[key] = None

    def __len__(self) -> int:
        return len(self.changes)


class Kv(Protocol):
    """An engine. Each method raises OSError if the storage fails. A ``write`` that raised has changed nothing."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes | None, limit: int, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """The first ``limit`` keys k with start <= k < end, and their values, in order; with ``reverse`` the last ones,
        from the end. ``end`` None: no upper bound."""
        ...

    def write(self, batch: Batch) -> None:
        """Apply a batch. It survives the death of the process."""
        ...

    def sync(self) -> None:
        """Make earlier writes survive a power failure. Blocks; may be called from another thread."""
        ...

    def close(self) -> None:
        """Release all resources. May be called again; no other method may be called afterwards."""
        ...


def after(key: bytes) -> bytes:
    """The lowest key above ``key``: where the next scan continues."""
    return key + b"\0"


def prefix_end(prefix: bytes) -> bytes | None:
    """The ``end`` of a scan over all keys that begin with ``prefix``; None when they reach to the last key."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None
