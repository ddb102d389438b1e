"""The records of all copies, and the nodes that store copies, as etcd has them below ``copies/``.

::

    copies/<origin>        a ``CopyRecord``
    copies/nodes/<name>    JSON ``StoringNode``; with the lease of that node
    copies/forgotten/<origin>   that node has left for good, or was removed: what a disk has of its data is obsolete.
                           Counts while there is no record, and is deleted after the node has begun without data

The law: of two states of a key, the one with the higher revision counts, in whatever order they arrive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from starlingmq.cluster.copies.copy_record import CopyRecord, CopyRecordError, record_from
from starlingmq.cluster.etcd.etcd_requests import KeyChange, KeyValue

NODES: Final = "nodes/"
FORGOTTEN: Final = "forgotten/"


@dataclass(frozen=True, slots=True)
class StoringNode:
    """A node that can store copies. ``machine``: its host; ``zone``: see ``node.zone``; ``address``: host:port at which
    it takes copies; ``stopping``: it is being shut down, and is expected to return; ``waiting``: the origins that it
    does not serve before an operator has given up the disk that it had; ``leaving``: it has left the cluster, and ends
    once it is in step for no other node."""

    name: str
    incarnation: int
    machine: str
    zone: str
    address: str = ""
    stopping: bool = False
    waiting: tuple[str, ...] = ()
    leaving: bool = False


def node_value(node: StoringNode) -> bytes:
    return json.dumps(asdict(node)).encode()


def _node_from(name: str, value: bytes) -> StoringNode:
    """Raises CopyRecordError."""
    try:
        facts: dict[str, Any] = json.loads(value)
        machine, zone, address = [str(facts[key]) for key in ("machine", "zone", "address")]
        incarnation, stopping = int(facts["incarnation"]), bool(facts["stopping"])
        waiting = tuple([str(origin) for origin in facts.get("waiting", ())])
        leaving = bool(facts.get("leaving", False))
        return StoringNode(name, incarnation, machine, zone, address, stopping, waiting, leaving)
    except (KeyError, TypeError, ValueError) as error:
        raise CopyRecordError(f"etcd key copies/nodes/{name} has an invalid value: {error!r}") from None


class CopyRegistry:
    records: dict[str, CopyRecord]  # by origin
    nodes: dict[str, StoringNode]  # by name; only those that have their lease
    forgotten: set[str]  # origins
    stopped: set[str]  # nodes that said that they were being shut down, until they are there again

    def __init__(self, cluster: str) -> None:
        self.prefix = f"/starlingmq/{cluster}/copies/".encode()
        self.records = {}
        self.nodes = {}
        self.forgotten = set()
        self.stopped = set()
        self._seen: dict[bytes, int] = {}  # key -> the revision of its known state
        self._changed: dict[str, None] = {}
        self._problems: list[str] = []

    def key(self, origin: str) -> bytes:
        return self.prefix + origin.encode()

    def node_key(self, name: str) -> bytes:
        return self.prefix + NODES.encode() + name.encode()

    def forgotten_key(self, origin: str) -> bytes:
        return self.prefix + FORGOTTEN.encode() + origin.encode()

    def forgotten_revision(self, origin: str) -> int:
        return self._seen.get(self.forgotten_key(origin), 0) if origin in self.forgotten else 0

    def is_forgotten(self, origin: str) -> bool:
        return origin in self.forgotten and origin not in self.records

    def origin_of(self, key: bytes) -> str:
        return key[len(self.prefix) :].decode()

    def revision(self, origin: str) -> int:
        """Of the last change of its record; 0: it has none."""
        return self._seen.get(self.key(origin), 0) if origin in self.records else 0

    def whole(self, record: CopyRecord) -> list[str]:
        """The nodes in step that are there and have confirmed their disks."""
        nodes = self.nodes
        return [name for name, seen in record.in_step.items() if name in nodes and nodes[name].incarnation == seen]

    def is_at_risk(self, record: CopyRecord) -> bool:
        """Whether a part of the data would be lost with the node that serves it now."""
        return not any(name != record.server for name in self.whole(record))

    def origins_at_risk(self) -> list[str]:
        return sorted(record.origin for record in self.records.values() if self.is_at_risk(record))

    def served_elsewhere(self) -> list[tuple[str, str]]:
        """The origins whose data another node serves, with that node."""
        found = [(one.origin, one.server) for one in self.records.values() if one.server not in ("", one.origin)]
        return sorted(found)

    def server_of(self, origin: str) -> str:
        """The node that serves the data of this one; empty: none does, or it has no copies."""
        record = self.records.get(origin)
        return "" if record is None else record.server

    def only_at(self, name: str) -> list[str]:
        """The origins whose data would be lost with that node: it is in step, and no other such node is there."""
        found = []
        for origin, record in self.records.items():
            others = [other for other in record.in_step if other != name and other in self.nodes]
            if name in record.in_step and not others:
                found.append(origin)
        return sorted(found)

    def load(self, found: Iterable[KeyValue], revision: int) -> None:
        """All keys as of that revision."""
        there = {each.key: each for each in found}
        for each in there.values():
            self.set(each.key, each.value, each.mod_revision)
        for key in [key for key, seen in self._seen.items() if key not in there and seen <= revision]:
            self.set(key, None, revision)

    def apply(self, changes: tuple[KeyChange, ...]) -> None:
        for change in changes:
            self.set(change.key, change.value, change.mod_revision)

    def set(self, key: bytes, value: bytes | None, revision: int) -> None:
        """``value`` None: the key does not exist at that revision."""
        if revision <= self._seen.get(key, 0):
            return
        self._seen[key] = revision
        name = self.origin_of(key)
        try:
            if name.startswith(NODES):
                self._set_node(name.removeprefix(NODES), value)
            elif name.startswith(FORGOTTEN):
                self._set_forgotten(name.removeprefix(FORGOTTEN), value)
            else:
                self._set_record(name, value)
        except CopyRecordError as error:
            self._problems.append(str(error))

    def _set_node(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.nodes.pop(name, None)
        else:
            node = self.nodes[name] = _node_from(name, value)
            (self.stopped.add if node.stopping else self.stopped.discard)(name)

    def _set_forgotten(self, origin: str, value: bytes | None) -> None:
        if value is None:
            self.forgotten.discard(origin)
        else:
            self.forgotten.add(origin)

    def _set_record(self, origin: str, value: bytes | None) -> None:
        if value is None:
            self.records.pop(origin, None)
        else:
            self.records[origin] = record_from(origin, value)
        self._changed[origin] = None

    def take_changed(self) -> list[str]:
        """The origins whose records have changed."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def take_problems(self) -> list[str]:
        problems, self._problems = self._problems, []
        return problems
