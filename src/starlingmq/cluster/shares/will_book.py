"""The records of wills of one share (``wills.will_records``).

Law: a key is written if it has the revision that the writer has seen; its new revision is above all of the share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from starlingmq.cluster.shares.share_messages import WillKey, WillWrite
from starlingmq.cluster.wills.will_records import RegisteredWill, client_of_key, decode_will, will_key


def node_of(key: bytes) -> int:
    return int(key.partition(b"/")[0])


class WillBook:
    def __init__(self) -> None:
        self._records: dict[str, dict[bytes, tuple[int, bytes]]] = {}  # client id -> key -> (revision, value)

    def revision(self, client_id: str, key: bytes) -> int:
        """0: there is no such key."""
        return self._records.get(client_id, {}).get(key, (0, b""))[0]

    def record(self, client_id: str, key: bytes) -> RegisteredWill | None:
        found = self._records.get(client_id, {}).get(key)
        return None if found is None else decode_will(found[1])

    def write(self, revision: int, writes: Iterable[WillWrite]) -> None:
        for key, value in writes:
            client_id = client_of_key(key)
            if value is not None:
                self._records.setdefault(client_id, {})[key] = revision, value
            elif client_id in self._records:
                self._records[client_id].pop(key, None)
                if not self._records[client_id]:
                    del self._records[client_id]

    def of_client(self, client_id: str) -> tuple[WillKey, ...]:
        return tuple([(key, *record) for key, record in self._records.get(client_id, {}).items()])

    def besides(self, client_id: str, node: int) -> tuple[WillKey, ...]:
        """Those of the client id, but for the will that its session at that node leaves."""
        return tuple([each for each in self.of_client(client_id) if each[0] != will_key(node, client_id)])

    def of_node(self, node: int) -> tuple[WillKey, ...]:
        return tuple([each for each in self.all() if node_of(each[0]) == node])

    def all(self) -> Iterator[WillKey]:
        for records in self._records.values():
            for key, (revision, value) in records.items():
                yield key, revision, value

    def add(self, wills: Iterable[WillKey]) -> None:
        """Adds keys of another book, or of a node that states them; of two records of a key the later one stays."""
        for key, revision, value in wills:
            if revision > self.revision(client_of_key(key), key):
                self.write(revision, ((key, value),))

    def replace_node(self, node: int, stated: tuple[WillKey, ...], collected: int) -> None:
        """The node has said which keys it has: of its other keys, those count that were written since ``collected``,
        by other nodes."""
        known = {key: None for key, _, _ in stated}
        for key, revision, _ in self.of_node(node):
            if key not in known and revision <= collected:
                self.write(0, ((key, None),))
        self.add(stated)
