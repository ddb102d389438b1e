"""Messages that were delivered and not acknowledged yet, and when each is due again.

The law: a pending message is in exactly one of three tables.

- ``waiting``: it waits for its acknowledgement, as long as all in this table. So their deadlines rise in the order of
  insertion, and no message needs a timer.
- ``later``: it waits until another time (a NAK with a delay, a backoff), which is in a heap.
- ``due``: it is to be delivered again, in the order of ``_queue``.

An entry of heap or queue whose message has left the table is skipped, and counts as stale. The acknowledgement floor
is that of nats-server: it follows the lowest pending message once that has moved, and is only looked for when it is
asked for.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

from starlingmq.core.turn.timers import sooner

EXPIRED_MAX: Final = 10_000  # messages that become due in one call
STALE_MIN: Final = 64  # stale entries that are tolerated


@mypyc_attr(acyclic=True)
class Pending:
    number: int  # the consumer sequence of its first delivery
    deadline: float

    def __init__(self, number: int, deadline: float) -> None:
        self.number = number
        self.deadline = deadline


class PendingMessages:
    waiting: dict[int, Pending]
    later: dict[int, Pending]
    due: dict[int, Pending]
    redelivered: dict[int, int]  # how often messages were delivered again; also after the last delivery was in vain
    wake: float  # no deadline is earlier; 0.0: there is none
    floor: int  # the stream sequence up to which all is acknowledged, unless ``_follows``
    floor_number: int  # its consumer sequence
    _follows: bool  # the floor is right below the lowest pending message
    _queue: deque[int]
    _heap: list[tuple[float, int]]
    _newest: float  # the highest deadline in ``waiting`` so far

    def __init__(self) -> None:
        self.waiting = {}
        self.later = {}
        self.due = {}
        self.redelivered = {}
        self.wake = 0.0
        self.floor = 0
        self.floor_number = 0
        self._follows = False
        self._queue = deque()
        self._heap = []
        self._newest = 0.0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.later) + len(self.due)

    def has(self, sequence: int) -> bool:
        return sequence in self.waiting or sequence in self.later or sequence in self.due

    def get(self, sequence: int) -> Pending | None:
        found = self.waiting.get(sequence)
        if found is None:
            found = self.later.get(sequence)
        return self.due.get(sequence) if found is None else found

    def take(self, sequence: int) -> Pending | None:
        """Remove it, if it is pending."""
        found = self.waiting.pop(sequence, None)
        if found is None:
            found = self.later.pop(sequence, None)
            if found is None:
                found = self.due.pop(sequence, None)
        return found

    def wait(self, sequence: int, pending: Pending, deadline: float) -> None:
        """For as long as all others do. It is in no table."""
        if deadline < self._newest:
            deadline = self._newest  # the clock went back
        self._newest = deadline
        pending.deadline = deadline
        self.waiting[sequence] = pending
        if self.wake == 0.0 or deadline < self.wake:
            self.wake = deadline

    def wait_until(self, sequence: int, pending: Pending, deadline: float) -> None:
        """It is in no table."""
        pending.deadline = deadline
        self.later[sequence] = pending
        if len(self._heap) > 2 * len(self.later) + STALE_MIN:
            self._heap = [(each.deadline, other) for other, each in self.later.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (deadline, sequence))
        self.wake = sooner(self.wake, deadline)

    def make_due(self, sequence: int, pending: Pending) -> None:
        """It is in no table."""
        self.due[sequence] = pending
        self._queue.append(sequence)
        if len(self._queue) > 2 * len(self.due) + STALE_MIN:
            self._queue = deque(self.due)

    def next_due(self) -> int:
        """The sequence of the message to be delivered again next; 0: there is none."""
        queue = self._queue
        while queue:
            sequence = queue[0]
            if sequence in self.due:
                return sequence
            queue.popleft()
        return 0

    def expired(self, now: float) -> list[int]:
        """Sequences whose time is over, rising, and no more than a call may take. The caller takes each of them out."""
        found: list[int] = []
        wake = 0.0
        for sequence, pending in self.waiting.items():
            if pending.deadline > now or len(found) >= EXPIRED_MAX:
                wake = pending.deadline
                break
            found.append(sequence)
        heap = self._heap
        while heap:
            deadline, sequence = heap[0]
            known = self.later.get(sequence)
            if known is not None and known.deadline == deadline:
                if deadline > now or len(found) >= EXPIRED_MAX:
                    wake = sooner(wake, deadline)
                    break
                found.append(sequence)
            heapq.heappop(heap)
        self.wake = wake
        found.sort()
        return found

    def move_floor(self, pending: Pending, last: int, last_number: int) -> None:
        """After a message has been taken out for good: as nats-server's moveAckFloor. ``last`` was delivered last."""
        if len(self.waiting) == 0 and len(self.later) == 0 and len(self.due) == 0:
            self.floor, self.floor_number = last, last_number
            self._follows = False
        elif not self._follows and pending.number == self.floor_number + 1:
            self._follows = True

    def set_floor(self, sequence: int, number: int) -> None:
        self.floor, self.floor_number = sequence, number
        self._follows = False

    def find_floor(self) -> None:
        """Bring ``floor`` and ``floor_number`` up to date."""
        if not self._follows:
            return
        lowest = 0
        for table in (self.waiting, self.later, self.due):
            for sequence in table:
                if lowest == 0 or sequence < lowest:
                    lowest = sequence
        found = self.get(lowest)
        if found is not None:
            self.floor, self.floor_number = lowest - 1, found.number - 1

    def latest(self) -> float:
        """The last deadline; 0.0: nothing waits."""
        latest = 0.0
        for table in (self.waiting, self.later):
            for pending in table.values():
                latest = max(latest, pending.deadline)
        return latest

    def all_due(self) -> None:
        for sequence in sorted([*self.waiting, *self.later]):
            pending = self.take(sequence)
            assert pending is not None
            self.make_due(sequence, pending)

    def spread(self, longer: float) -> None:
        """All wait for another time from now on: those that wait already, so much longer."""
        waiting, self.waiting = self.waiting, {}
        self._newest = 0.0
        for sequence, pending in waiting.items():
            self.wait_until(sequence, pending, pending.deadline + longer)

    def all(self) -> list[int]:
        """All sequences, rising."""
        return sorted([*self.waiting, *self.later, *self.due])

    def up_to(self, end: int) -> list[int]:
        """Sequences below ``end``, rising."""
        return sorted([each for table in (self.waiting, self.later, self.due) for each in table if each < end])
