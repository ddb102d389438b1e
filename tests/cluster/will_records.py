"""Records of wills in memory, in place of those at the leaders of shares, for tests of one part of a node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

from starlingmq.cluster.shares.share_table import SHARES, share_of
from starlingmq.cluster.shares.will_book import node_of
from starlingmq.cluster.wills.will_records import RegisteredWill, client_of_key, decode_will
from starlingmq.cluster.wills.will_store import LedWills, WillChanged, WillFollower, WillRecord, WillUpdate


class WillRecords:
    """A ``WillStore``. What it is asked waits for ``answer``."""

    def __init__(self) -> None:
        self.now = 1.0
        self.revision = 10
        self.records: dict[bytes, WillRecord] = {}
        self.changes: list[WillUpdate] = []  # that were asked for
        self._asked: deque[Callable[[], None]] = deque()

    def put(self, key: bytes, value: RegisteredWill | None) -> None:
        self.revision += 1
        if value is None:
            del self.records[key]
        else:
            self.records[key] = WillRecord(key, self.revision, value)

    def get(self, key: bytes) -> WillRecord:
        return self.records.get(key, WillRecord(key, 0, None))

    def answer(self, most: int = 1 << 30) -> int:
        """Answers up to so many questions; returns how many there were."""
        count = 0
        while self._asked and count < most:
            self._asked.popleft()()
            count += 1
        return count

    # The store

    def change(self, update: WillUpdate, answered: Callable[[WillChanged], None]) -> None:
        self.changes.append(update)
        sent_at = self.now
        self._asked.append(lambda: answered(self._change(update, sent_at)))

    def _change(self, update: WillUpdate, sent_at: float) -> WillChanged:
        done = self.get(update.key).revision == update.revision
        if done:
            self.put(update.key, update.value)
            if update.copy is not None:
                self.put(*update.copy)
        return WillChanged(update, done, self.get(update.key), sent_at, self._of(client_of_key(update.key)))

    def disarm(self, client_id: str, will: int) -> None:
        raise AssertionError("no claim registers a will here")

    def read(self, client_id: str, answered: Callable[[list[WillRecord]], None]) -> None:
        self._asked.append(lambda: answered(self._of(client_id)))

    def _of(self, client_id: str) -> list[WillRecord]:
        return [each for key, each in self.records.items() if client_of_key(key) == client_id]

    def decoded(self, wills: tuple[tuple[bytes, int, bytes], ...]) -> list[WillRecord]:
        return [WillRecord(key, revision, decode_will(data)) for key, revision, data in wills]

    def follow(self, node: int, follower: WillFollower) -> None:
        """There is nothing to tell."""

    # As the leader of all shares

    @property
    def led_changes(self) -> int:
        return 1

    def led_shares(self) -> list[int]:
        return list(range(SHARES))

    def led_wills(self, share: int, nodes: Container[int]) -> LedWills:
        found = self._in(share)
        records = [each for each in found if node_of(each.key) in nodes]
        others = {node_of(each.key): None for each in found if node_of(each.key) not in nodes}
        return LedWills(records, others, len(found))

    def _in(self, share: int) -> list[WillRecord]:
        return [each for key, each in self.records.items() if share_of(client_of_key(key)) == share]
