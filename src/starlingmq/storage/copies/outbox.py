"""The groups that one follower has not acknowledged, in order: what waits to be sent, and what is under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

OUTBOX_BYTES: Final = 64 << 20


class Outbox:
    """``wake`` is called when there is something to send, or when it has ended. ``waiting``: bytes that wait to be
    sent; ``behind``: bytes that are not acknowledged."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.name = name
        self.waiting = 0
        self.behind = 0
        self.ended = False
        self._wake = wake
        self._groups: deque[bytes] = deque()
        self._unacknowledged: deque[tuple[int, int, float]] = deque()  # number, bytes, when it was made

    def put(self, lsn: int, group: bytes, now: float) -> None:
        """Add a group. If too much waits, the outbox ends: the follower goes on from the owner's journal, on disk."""
        if self.ended:
            return
        if self._groups and self.waiting + len(group) > OUTBOX_BYTES:
            self.end()
            return
        self._groups.append(group)
        self._unacknowledged.append((lsn, len(group), now))
        self.waiting += len(group)
        self.behind += len(group)
        self._wake()

    def take(self, size: int) -> bytes:
        """Up to ``size`` bytes of groups, at least one group if there is one."""
        taken: list[bytes] = []
        total = 0
        while self._groups and (not taken or total + len(self._groups[0]) <= size):
            taken.append(self._groups.popleft())
            total += len(taken[-1])
        self.waiting -= total
        return b"".join(taken)

    def acknowledged(self, lsn: int) -> None:
        unacknowledged = self._unacknowledged
        while unacknowledged and unacknowledged[0][0] <= lsn:
            self.behind -= unacknowledged.popleft()[1]

    def since(self) -> float | None:
        """When the oldest group that is not acknowledged was made."""
        return self._unacknowledged[0][2] if self._unacknowledged else None

    def end(self) -> None:
        """Nothing more is put in."""
        self.ended = True
        self._groups.clear()
        self._unacknowledged.clear()
        self.waiting = self.behind = 0
        self._wake()
