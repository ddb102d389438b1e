"""The order in which logins are checked. Pure: no clock, no I/O; ``tests/auth/test_fair_queue.py`` has a reference
model.

::

    offer(key, item, known)   the queue has room               admitted
                              it has not, the item is known,   admitted in place of the newest of those
                              and others of its key wait
                              the key has ``key_max`` waiting  refused
                              the queue has ``total_max``      admitted in place of the newest item of the key with
                                                               the most waiting, if that key has at least two more
                                                               than this one; else refused
    take(held)                the next item of the lane ``known``; after ``KNOWN_RUN`` of them in a row, while others
                              wait, one of the lane ``others``. In a lane: one item of each key in turn, in the order
                              in which they came. The keys in ``held`` are skipped, and keep their turn.
    drop(ticket)              the item is no longer wanted

Each line of ``offer`` comes before those below it.

Invariants: an item waits for at most one item of each other key for each item of its own key before it (and for known
ones); no key can exclude another key; nothing is stored for a key without waiting items.

``known`` is for logins that were right before, with this password: no other login gets into that lane.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

KNOWN_RUN: Final = 8

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False)
class QueueTicket(Generic[Item]):
    """A place in the queue."""

    key: str
    item: Item
    known: bool


class FairQueue(Generic[Item]):
    def __init__(self, key_max: int, total_max: int) -> None:
        self.key_max = key_max
        self.total_max = total_max
        self._known: _Lane[Item] = OrderedDict()
        self._others: _Lane[Item] = OrderedDict()
        self._waiting: dict[str, int] = {}  # by key, over both lanes
        self._keys_with: dict[int, dict[str, None]] = {}  # by number of waiting items
        self._most = 0  # no key has more waiting items than this
        self._total = 0
        self._run = 0  # known items taken in a row while others waited

    def __len__(self) -> int:
        return self._total

    def waiting(self, key: str) -> int:
        return self._waiting.get(key, 0)

    def offer(
        self, key: str, item: Item, known: bool = False
    ) -> tuple[QueueTicket[Item] | None, QueueTicket[Item] | None]:
        """The place of the item (None: refused), and the place that was taken from another item for it."""
        waiting = self.waiting(key)
        lost = None
        full = waiting >= self.key_max or self._total >= self.total_max
        if full and known and key in self._others:
            lost = self._newest(key)
            self.drop(lost)
        elif waiting >= self.key_max:
            return None, None
        elif full:
            longest = self._longest()
            if longest is None or self._waiting[longest] < waiting + 2:
                return None, None
            lost = self._newest(longest)
            self.drop(lost)
        ticket = QueueTicket(key, item, known)
        lane = self._known if known else self._others
        lane.setdefault(key, OrderedDict())[ticket] = None
        self._count(key, 1)
        return ticket, lost

    def take(self, held: Collection[str] = ()) -> QueueTicket[Item] | None:
        """The next item; None if nothing waits."""
        known, other = _first(self._known, held), _first(self._others, held)
        if known is not None and (other is None or self._run < KNOWN_RUN):
            self._run = self._run + 1 if other is not None else 0
            return self._take(self._known, known)
        if other is None:
            return None
        self._run = 0
        return self._take(self._others, other)

    def drop(self, ticket: QueueTicket[Item]) -> bool:
        """Returns whether it was still waiting."""
        lane = self._known if ticket.known else self._others
        tickets = lane.get(ticket.key)
        if tickets is None or ticket not in tickets:
            return False
        del tickets[ticket]
        if not tickets:
            del lane[ticket.key]
        self._count(ticket.key, -1)
        return True

    def _take(self, lane: _Lane[Item], key: str) -> QueueTicket[Item]:
        tickets = lane[key]
        ticket, _ = tickets.popitem(last=False)
        if tickets:
            lane.move_to_end(key)
        else:
            del lane[key]
        self._count(key, -1)
        return ticket

    def _newest(self, key: str) -> QueueTicket[Item]:
        """The newest item, of those that are not known if there are any."""
        tickets = self._others.get(key) or self._known[key]
        return next(reversed(tickets))

    def _longest(self) -> str | None:
        while self._most and self._most not in self._keys_with:
            self._most -= 1
        return next(iter(self._keys_with.get(self._most, ())), None)

    def _count(self, key: str, more: int) -> None:
        before = self._waiting.get(key, 0)
        now = before + more
        if before:
            del self._keys_with[before][key]
            if not self._keys_with[before]:
                del self._keys_with[before]
        if now:
            self._waiting[key] = now
            self._keys_with.setdefault(now, {})[key] = None
            self._most = max(self._most, now)
        else:
            del self._waiting[key]
        self._total += more


def _first(lane: _Lane[Item], held: Collection[str]) -> str | None:
    return next((key for key in lane if key not in held), None)


_Lane = OrderedDict[str, "OrderedDict[QueueTicket[Item], None]"]
