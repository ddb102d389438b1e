"""Wills that this node has taken from other nodes, to publish them: as the leader of their share, because their node is
gone (``lost_wills``), or because their clients are back here (``will_settlement``).

::

    taken --in time------------------------------> due, published, stored, deleted
      '-----too late, or after a restart--> checked: has the client been back at another node?
                                              no:  the key is written again, and taken again
                                              yes: lost, deleted
    taken by an earlier incarnation of a node that stores nothing: lost, deleted

Invariant: a taken will is published only within the time that the last change of its key allows
(``WillEntry.allowed_until``). After that, the client may have had a CONNACK at another node, and published messages
that the will must not follow. A node without storage does not know whether its earlier incarnation has published a
copy, and answered the client.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starlingmq.cluster.takeover.owner_store import OwnerKey, OwnerStore
from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import RegisteredWill, client_of, will_from
from starlingmq.cluster.wills.will_registration import WillRegistration
from starlingmq.cluster.wills.will_store import WillChanged, WillRecord
from starlingmq.cluster.wills.will_table import WillTable

CHECKS_MAX: Final = 60  # under way


class TakenWills:
    published: int  # wills of other nodes that this node has published
    lost: int  # not published, because their clients were back before it was known whether they had been published

    def __init__(self, owners: OwnerStore, table: WillTable, registration: WillRegistration) -> None:
        self.published = self.lost = 0
        self._owners = owners
        self._table = table
        self._registration = registration
        self._me = 0
        self._since = 0
        self._to_check: dict[str, None] = {}  # in their order
        self._checking = 0  # checks that are not answered

    def enter(self, me: int) -> None:
        self._me = me

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
        return entry is not None and entry.known is not None and entry.published != entry.known.id

    def is_published(self, name: str, will: int) -> bool:
        """Whether this node has taken the will of that name with that id, and published it or given it up. False as
        well once nothing of it is left, here or in the share."""
        entry = self._table.get(name)
        return entry is not None and entry.published == will

    def step(self, name: str, entry: WillEntry, now: float) -> None:
        """Brings the record to what it should be, by one change."""
        known = entry.known
        if known is None:
            if entry.published:
                self._table.drop_published(name)
            self._table.forget(name)
        elif entry.published == known.id:
            self._registration.amend(name, entry, None)
        elif entry.revision < self._since and not self._table.is_stored():
            self._give_up(entry, known)
            self._registration.amend(name, entry, None)
        elif now < entry.allowed_until:
            if not entry.due:
                entry.due.append(will_from(known))
                self._table.have_due(name)
        elif entry.checked:
            entry.checked = False
            self._registration.amend(name, entry, known)
        else:
            self._to_check[name] = None

    def _give_up(self, entry: WillEntry, known: RegisteredWill) -> None:
        self.lost += 1
        entry.due.clear()
        entry.published = known.id

    # Checks

    def ask(self) -> None:
        """Wills that were taken, perhaps by an earlier incarnation, and not published in time: checks whether their
        clients have been back since. To be called in each turn."""
        while self._to_check and self._checking < CHECKS_MAX:
            self._checking += 1
            name = next(iter(self._to_check))
            del self._to_check[name]
            self._check(name)

    def _check(self, name: str) -> None:
        def answered(client_id: str, newest: int, keys: tuple[OwnerKey, ...]) -> None:
            self._checking -= 1
            entry = self._table.get(name)
            if entry is not None and entry.known is not None:
                entry.checked = True
                if self._has_been_back(entry.known.epoch, keys):
                    self._give_up(entry, entry.known)
                self._table.look_later(name)

        self._owners.read(client_of(name), answered)

    def _has_been_back(self, epoch: int, owners: tuple[OwnerKey, ...]) -> bool:
        """Whether the client may have had a CONNACK at another node since ``epoch``. A claim that found the owner key
        of this node gets none as long as the copy is unchanged."""
        since = next((key.created for key in owners if key.node == self._me), inf)
        return any(key.node != self._me and epoch < key.epoch < since for key in owners)
