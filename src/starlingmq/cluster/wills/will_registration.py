"""The registration of this node's wills: its keys in etcd, read once, followed from then on, and changed one by one.

::

    unread --page after page--> names that were not read are checked --> complete, followed by a watch
       ^                                                                     |
       '------------------------- the watch is lost -------------------------'

Invariants:

- Nothing is changed or published before the registration is complete (``is_complete``): until then, a key that this
  node does not know may say that another node has settled the will.
- A change succeeds only if the key is unchanged since ``WillEntry.revision``, and no second change of a key is
  requested before the first is answered.
- A key that the node has learned of since a reading began is not missing, even if no page has it.
- A change allows this node to publish for ``fire_seconds`` after its request (``WillEntry.allowed_until``), not after
  its answer.

Pure: answers of etcd in, requests out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from starlingmq.cluster.etcd.etcd_cas import CasResult, CasUpdate, EtcdCas
from starlingmq.cluster.etcd.etcd_requests import Get, KeyValue, Request, Txn, TxnAnswer, Watch, WatchEvent
from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import SETTLED, RegisteredWill, WillValueError, decode_will, encode_will
from starlingmq.cluster.wills.will_table import WillTable
from starlingmq.core.session.will_port import WillPort

PAGE: Final = 500  # keys read at once
NAMES_PER_CHECK: Final = 200


class WillRegistration:
    def __init__(
        self,
        table: WillTable,
        wills: WillPort,
        fire_seconds: float,
        settled: Callable[[str, WillEntry, RegisteredWill], None],
        changes: EtcdCas,
    ) -> None:
        """``settled``: to be called if another node has taken a will of this node, or cancelled it."""
        self._table = table
        self._wills = wills
        self._seconds = fire_seconds
        self._settled = settled
        self._amendments = changes
        self._keys = b""
        self._read = False  # everything that etcd has of this node was read
        self._page = ""  # tag of the outstanding read
        self._pages = 0
        self._after = b""
        self._seen: dict[str, None] = {}  # names that were read, or learned of since the reading began
        self._unchecked: deque[str] = deque()  # names that may be missing in etcd, to be checked
        self._requests: list[Request] = []
        self._notices: list[str] = []

    def enter(self, keys: bytes) -> None:
        """``keys``: the prefix of this node's keys."""
        self._keys = keys

    def is_complete(self) -> bool:
        return self._read

    def has(self, key: bytes) -> bool:
        """Whether it is a key of this node."""
        return key.startswith(self._keys)

    # Reading

    def read_more(self) -> None:
        if not self._read and not self._page and not self._unchecked:
            self._pages += 1
            self._page = f"wills page {self._pages}"
            self._requests.append(Txn(self._page, (), (Get(self._keys, prefix=True, limit=PAGE, after=self._after),)))

    def took_page(self, answer: TxnAnswer) -> bool:
        """Takes the answer to the outstanding read; False for another answer."""
        if not self._page or answer.tag != self._page:
            return False
        self._page = ""
        if not self._after:
            self._requests.append(Watch(self._keys, answer.revision + 1))
        found: tuple[KeyValue, ...] = answer.found[0]
        for kv in found:
            self.know(kv.key, kv.value, kv.mod_revision)
        if len(found) == PAGE:
            self._after = found[-1].key
            self.read_more()
            return True
        self._unchecked = deque(self._table.entries)
        self._check()
        return True

    def turn(self) -> None:
        if self._unchecked:
            self._check()

    def _check(self) -> None:
        """A name that was not read is not in etcd. Once all names are checked, the registration is complete."""
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

    def watched(self, event: WatchEvent) -> None:
        if self._keys and event.prefix == self._keys:
            for change in event.changes:
                entry = self._table.get(self.name_of(change.key))
                if entry is None or change.mod_revision > entry.revision:
                    self.know(change.key, change.value, change.mod_revision if change.value is not None else 0)

    def watch_lost(self, prefix: bytes) -> None:
        if self._keys and prefix == self._keys:
            self._read = False
            self._after = b""
            self._seen = {}
            self._unchecked.clear()

    def know(self, key: bytes, data: bytes | None, revision: int, sent_at: float = 0.0) -> None:
        """Takes the record that etcd has. ``sent_at``: when this node requested the change; 0.0: not known to be its
        own."""
        name = self.name_of(key)
        if not self._read:
            self._seen[name] = None
        entry = self._table.entry(name)
        entry.revision = revision
        entry.allowed_until = sent_at + self._seconds if sent_at else 0.0
        entry.known = None
        if data is not None:
            try:
                entry.known = decode_will(data)
            except WillValueError as error:
                self._notices.append(f"{name!r}: {error}")
        known = entry.known
        if known is not None and known.state == SETTLED:
            self._settled(name, entry, known)
        self._table.has_news(name)
        self._table.look_later(name)

    def name_of(self, key: bytes) -> str:
        return key[len(self._keys) :].decode()

    # Changing

    def is_under_way(self, name: str) -> bool:
        """Whether a change of the name's key is requested and not answered."""
        return self._keys + name.encode() in self._amendments

    def amend(self, name: str, entry: WillEntry, value: RegisteredWill | None) -> None:
        """Brings the name's key to that value (None: deletes it), unless it has changed."""
        data = None if value is None else encode_will(value)
        self._amendments.add(CasUpdate(self._keys + name.encode(), entry.revision, data))

    def amend_foreign(self, amendment: CasUpdate) -> None:
        """Requests the change of another node's key along with those of this node."""
        self._amendments.add(amendment)

    def answered(self, answer: TxnAnswer, now: float) -> CasResult | None:
        """Takes the answer to the outstanding changes, and what it says of this node's keys; None for another answer.
        The caller has to look at the keys of other nodes in the result."""
        amended = self._amendments.answered(answer, now)
        if amended is None:
            return None
        for done in amended.done:
            if self.has(done.key):
                self.know(done.key, done.value, amended.revision if done.value is not None else 0, done.sent_at)
        for void, revision, value in amended.void:
            if self.has(void.key):
                self.know(void.key, value or None, revision)
        return amended

    # Output

    def take_reads(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    def take_changes(self, now: float) -> list[Txn]:
        return self._amendments.take_requests(now)

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def is_pending(self) -> bool:
        return len(self._unchecked) != 0

    def wake_at(self) -> float:
        """When ``take_changes`` has to be called without an event; 0.0: never."""
        return self._amendments.wake_at()
