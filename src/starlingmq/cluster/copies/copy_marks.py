"""The part that copies of a node's data have in the transactions that add and remove members.

The law: the copies of a node's data become obsolete in the transaction that removes the node, so no process can end
between the two and leave a record that lets another node serve the data of a node that is gone.

::

    transaction   process with copies                  process without copies
    leave         deletes the record, sets the mark    nothing: this node has no record (it could not have joined)
    forget        deletes the record, sets the mark    the same if forced; else it has to find no record
    enter         nothing: CopyRoles reads the mark    a new node deletes the mark, since its data counts from now on
"""

from __future__ import annotations

from starlingmq.cluster.copies.copy_registry import CopyRegistry
from starlingmq.cluster.etcd.etcd_requests import Compare, Delete, Operation, Put


class CopyMarks:
    """``kept``: this process knows the records of copies, and keeps them up to date."""

    def __init__(self, cluster: str, kept: bool) -> None:
        self.kept = kept
        self._registry = CopyRegistry(cluster)

    def entered(self, name: str) -> tuple[Operation, ...]:
        """Of a node that gets its number."""
        return () if self.kept else (Delete(self._registry.forgotten_key(name)),)

    def left(self, name: str) -> tuple[Operation, ...]:
        return self._obsolete(name) if self.kept else ()

    def forgotten(self, name: str, forced: bool) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
        if self.kept or forced:
            return (), self._obsolete(name)
        return (Compare(self._registry.key(name), "create_revision", "=", 0),), ()

    def _obsolete(self, name: str) -> tuple[Operation, ...]:
        return Delete(self._registry.key(name)), Put(self._registry.forgotten_key(name), b"")
