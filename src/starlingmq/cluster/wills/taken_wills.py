"""Wills that this node has taken from other nodes, to publish them: as the leader of their share, because their node is
gone (``lost_wills``), or because their clients are back here (``will_settlement``).

Laws:

- A taken will is published only within the time that the last change of its record allows
  (``WillEntry.allowed_until``).
- Wherever its client connects, it gets no CONNACK while the taken will is ARMED: the leader says with each claim
  that there is one, and the CONNECT waits until it is not, or deletes it once it has been
  unchanged for too long (``will_settlement``). So however late, a record that is unchanged may be taken again.
- A copy that an earlier incarnation of a node without storage has taken is deleted: it may have been published.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import ARMED, FIRING, will_from
from starlingmq.cluster.wills.will_registration import WillRegistration
from starlingmq.cluster.wills.will_states import WillEvent
from starlingmq.cluster.wills.will_store import WillChanged, WillRecord
from starlingmq.cluster.wills.will_table import WillTable

AGAIN_MAX: Final = 200  # wills taken again that are not published yet: with more, none would be published in time


class TakenWills:
    published: int  # wills of other nodes that this node has published
    lost: int  # not published, because it is not known whether an earlier incarnation has done it

    def __init__(self, table: WillTable, registration: WillRegistration) -> None:
        self.published = self.lost = 0
        self._table = table
        self._registration = registration
        self._since = 0
        self._late: dict[str, None] = {}  # names of wills to be taken again, in their order
        self._again: list[str] = []  # names of those that were

    def begin(self, revision: int) -> None:
        """All changes that this incarnation makes have higher revisions."""
        self._since = revision

    def take(self, changed: WillChanged) -> None:
        """Another node's will is settled now. If it has to be published, this node does that."""
        if changed.update.copy is not None:
            key, will = changed.update.copy
            self._table.entry(self._registration.name_of(key)).due.clear()  # an earlier one, if there is any
            self._registration.know(WillRecord(key, changed.record.revision, will), changed.sent_at)

    def is_unpublished(self, name: str) -> bool:
        """Whether this node has taken the will of that name and not published it yet."""
        entry = self._table.get(name)
        known = None if entry is None else entry.known
        return entry is not None and known is not None and known.state == ARMED and entry.published != known.id

    def is_published(self, name: str, will: int) -> bool:
        """Whether this node has taken the will of that name with that id, and published it or given it up. False as
        well once nothing of it is left, here or in the share."""
        entry = self._table.get(name)
        return entry is not None and entry.published == will

    def tell_published(self, name: str, entry: WillEntry) -> None:
        """etcd has not yet what the will retains, so its record stays; but no CONNECT has to wait for that."""
        known = entry.known
        if known is not None and known.state == ARMED and entry.published == known.id:
            self._registration.step(name, entry, WillEvent.FIRES, structs.replace(known, state=FIRING))

    def step(self, name: str, entry: WillEntry, now: float) -> None:
        """Brings the record to what it should be, by one change."""
        known = entry.known
        if known is None or entry.published == known.id or known.state == FIRING:
            if known is None and entry.published:
                self._table.drop_published(name)
            self._registration.step(name, entry, WillEvent.OVER)
        elif entry.revision < self._since and not self._table.is_stored():
            self.lost += 1
            entry.due.clear()
            entry.published = known.id
            self._registration.step(name, entry, WillEvent.OVER)
        elif now < entry.allowed_until:
            if not entry.due:
                entry.due.append(will_from(known))
                self._table.have_due(name)
        else:
            self._late[name] = None

    def take_again(self, now: float) -> None:
        """Wills that this node, or an earlier incarnation, has taken and not published in time. To be called in each
        turn, after its steps."""
        if not self._late or not self._registration.is_complete():
            return
        self._again = [name for name in self._again if name not in self._late and self.is_unpublished(name)]
        while self._late and len(self._again) < AGAIN_MAX:
            name = next(iter(self._late))
            del self._late[name]
            entry = self._table.get(name)
            if entry is None or entry.known is None or self._registration.is_under_way(name):
                continue  # its answer leads back here
            if now < entry.allowed_until or not self.is_unpublished(name):
                self._table.look_later(name)
                continue
            self._again.append(name)
            self._registration.step(name, entry, WillEvent.WANTED, entry.known)
