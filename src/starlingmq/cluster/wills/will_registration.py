"""The records of this node's wills, read once, followed from then on, and changed one by one.

::

    unread --part after part--> names that were not read are checked --> complete
       ^                                                                     |
       '--------------- all are read again: there is a new table ------------'

Invariants:

- Nothing is published before the registration is complete (``is_complete``): until then, a record that this node does
  not know may say that another node has settled the will. A record is changed once it is read (``is_read``). The will
  of a new connection is registered by its claim, which finds out whether there is a record.
- A change succeeds only if the record is unchanged since ``WillEntry.revision``, and no second change of a record is
  requested before the first is answered.
- A record that the node has learned of since a reading began is not missing, even if the reading does not have it.
- A change allows this node to publish for ``fire_seconds`` after its request (``WillEntry.allowed_until``), not after
  its answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import SETTLED, RegisteredWill, wills_of
from starlingmq.cluster.wills.will_states import WILL_TABLE, WillAction, WillEvent, state_of
from starlingmq.cluster.wills.will_store import WillChanged, WillRecord, WillStore, WillUpdate
from starlingmq.cluster.wills.will_table import WillTable
from starlingmq.core.context.will_port import WillPort

NAMES_PER_CHECK: Final = 200


class WillRegistration:
    def __init__(
        self,
        table: WillTable,
        wills: WillPort,
        fire_seconds: float,
        settled: Callable[[str, WillEntry, RegisteredWill], None],
        store: WillStore,
    ) -> None:
        """``settled``: to be called if another node has taken a will of this node, or cancelled it."""
        self._table = table
        self._wills = wills
        self._seconds = fire_seconds
        self._settled = settled
        self._store = store
        self._keys = b""  # the prefix of this node's keys
        self._read = False  # all records of this node were read
        self._seen: dict[str, None] = {}  # names that were read, or learned of since the reading began
        self._unchecked: deque[str] = deque()  # names that may have no record, to be checked
        # names of records whose change is not answered -> the value, if a claim brings it
        self._under_way: dict[str, RegisteredWill | None] = {}

    def enter(self, me: int) -> None:
        self._keys = wills_of(me)
        self._store.follow(me, self)

    def is_complete(self) -> bool:
        return self._read

    def is_read(self, name: str) -> bool:
        """Whether this node knows the record of that name, or that there is none, though others may be missing."""
        return self._read or name in self._seen

    # Reading

    def reading_begins(self) -> None:
        self._read = False
        self._seen = {}
        self._unchecked.clear()

    def took(self, records: list[WillRecord], is_last: bool) -> None:
        for record in records:
            self.know(record)
        if is_last:
            self._unchecked = deque(self._table.entries)
            self._check()

    def turn(self) -> None:
        if self._unchecked:
            self._check()

    def _check(self) -> None:
        """A name that was not read has no record. Once all names are checked, the registration is complete."""
        for _ in range(min(NAMES_PER_CHECK, len(self._unchecked))):
            name = self._unchecked.popleft()
            entry = self._table.get(name)
            if entry is not None and name not in self._seen and not self.is_under_way(name):
                entry.known, entry.revision = None, 0
        if not self._unchecked:
            self._read = True
            self._seen = {}
            self._table.all_have_news()
            self._wills.changed.update(dict.fromkeys(self._table.entries))

    def news(self, record: WillRecord, revision: int) -> None:
        name = self.name_of(record.key)
        entry = self._table.get(name)
        if entry is None or revision > entry.revision:
            self.know(record)
        elif revision == entry.revision and not self._read:
            self._seen[name] = None

    def know(self, record: WillRecord, sent_at: float = 0.0) -> None:
        """``sent_at``: when this node requested the change; 0.0: not known to be its own."""
        name = self.name_of(record.key)
        if not self._read:
            self._seen[name] = None
        entry = self._table.entry(name)
        entry.known, entry.revision = record.value, record.revision
        entry.allowed_until = sent_at + self._seconds if sent_at else 0.0
        if record.value is not None and record.value.state == SETTLED:
            self._settled(name, entry, record.value)
        self._table.has_news(name)
        self._table.look_later(name)

    def name_of(self, key: bytes) -> str:
        return key[len(self._keys) :].decode()

    # Changing

    def is_under_way(self, name: str) -> bool:
        """Whether a change of the name's record is requested and not answered."""
        return name in self._under_way

    def step(self, name: str, entry: WillEntry, event: WillEvent, value: RegisteredWill | None = None) -> None:
        """Brings the name's record to ``value``, or deletes it, as the event has it, unless the record has changed."""
        (action,) = WILL_TABLE.step(state_of(entry.known), event).actions
        if action is WillAction.FORGET and not entry.revision:  # else this version does not know its form
            self._table.forget(name)
        else:
            written = value if action is WillAction.WRITE else None
            self._under_way[name] = None
            self._store.change(WillUpdate(self._keys + name.encode(), entry.revision, written), self._changed)

    def arm(self, client_id: str, value: RegisteredWill) -> None:
        """A claim registers that value, in its epoch, if there is no record of another will."""
        self._under_way[client_id] = value

    def give_up(self, client_id: str) -> None:
        """The CONNECT of the claim is given up: its record must not stay until the claim is answered."""
        value = self._under_way.get(client_id)
        if value is not None:
            self._store.disarm(client_id, value.id)

    def under_way(self, name: str) -> RegisteredWill | None:
        """The value that a claim brings which is not answered."""
        return self._under_way.get(name)

    def armed(self, client_id: str, epoch: int) -> None:
        """A claim is answered. ``epoch``: its own, if it has registered the will that it brought; 0: it has not."""
        value = self._under_way.get(client_id)
        if value is None:
            return  # the claim brought none
        del self._under_way[client_id]
        if epoch:
            value.epoch = epoch
            self.know(WillRecord(self._keys + client_id.encode(), epoch, value))
        else:
            self._table.look_later(client_id)

    def _changed(self, changed: WillChanged) -> None:
        del self._under_way[self.name_of(changed.record.key)]
        self.know(changed.record, changed.sent_at if changed.done else 0.0)

    def is_pending(self) -> bool:
        return len(self._unchecked) != 0
