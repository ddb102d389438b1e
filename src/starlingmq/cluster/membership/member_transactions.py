"""The transactions that change the members in etcd: what each one compares and writes.

Invariant: each transaction compares every key that it depends on, so that a late or repeated one changes nothing. One
that changes the set of registered nodes compares ``members/changed`` as well, and writes it.
"""

from __future__ import annotations

import json
from typing import Final

from starlingmq.cluster.copies.copy_marks import CopyMarks
from starlingmq.cluster.etcd.etcd_requests import Compare, Delete, Operation, Put
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.membership.registry import Registry, member_value


class MemberTransaction:
    name: str  # for its tag
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]

    def __init__(self, name: str, compares: tuple[Compare, ...] = (), operations: tuple[Operation, ...] = ()) -> None:
        self.name = name
        self.compares = compares
        self.operations = operations


READ: Final = MemberTransaction("read")


class MemberTransactions:
    """``registry``: the keys as they were last read; ``name``: of this node; ``marks``: see there."""

    def __init__(self, registry: Registry, name: str, marks: CopyMarks) -> None:
        self._registry = registry
        self._keys = registry.keys
        self._name = name
        self._marks = marks

    def enter(self, me: MemberInfo, is_new: bool) -> MemberTransaction:
        """A new node takes its number and starts joining. Another one takes a new incarnation."""
        keys, registry, name = self._keys, self._registry, self._name
        compares = [registry.unchanged(key) for key in (keys.registered(name), keys.joining(name), keys.online(name))]
        if is_new:
            compares.append(Compare(keys.next_number, "mod_revision", "=", registry.number_revision))
            writes = [Put(keys.next_number, b"%d" % (me.number + 1)), self._joining(me), *self._marks.entered(name)]
        elif name not in registry.parsed.registered:
            writes = [self._joining(me)]
        else:
            compares.append(registry.unchanged(keys.changed))
            writes = [self._change(), Put(keys.registered(name), member_value(me)), self._online(me)]
        return MemberTransaction("enter", tuple(compares), tuple(writes))

    def join(self, me: MemberInfo) -> MemberTransaction:
        return MemberTransaction("joining", self._not_registered(), (self._joining(me),))

    def register(self, me: MemberInfo) -> MemberTransaction:
        keys, name = self._keys, self._name
        writes = (
            self._change(),
            Put(keys.registered(name), member_value(me)),
            self._online(me),
            Delete(keys.joining(name)),
        )
        return MemberTransaction("register", (self._registry.unchanged(keys.changed), *self._not_registered()), writes)

    def come_online(self, me: MemberInfo) -> MemberTransaction:
        same = self._registry.unchanged(self._keys.registered(self._name))
        return MemberTransaction("online", (same,), (self._online(me),))

    def stop_joining(self, me: MemberInfo) -> MemberTransaction:
        key = self._keys.joining(me.name)
        return MemberTransaction("leave", (self._registry.unchanged(key),), (Delete(key),))

    def leave(self, me: MemberInfo) -> MemberTransaction:
        operations = (*self._removal(me), *self._marks.left(me.name))
        return MemberTransaction("leave", self._still_registered(me), operations)

    def forget(self, member: MemberInfo, forced: bool) -> MemberTransaction:
        """``forced``: even if the node is online."""
        offline = () if forced else (Compare(self._keys.online(member.name), "create_revision", "=", 0),)
        uncopied, marked = self._marks.forgotten(member.name, forced)
        compares = (*self._still_registered(member), *offline, *uncopied)
        return MemberTransaction("forget", compares, (*self._removal(member), *marked))

    def refused(self, forced: bool) -> str:
        """Why ``forget`` was not done although the member is still there."""
        if self._marks.kept or forced:
            return "the membership has changed meanwhile; try again"
        return (
            "other nodes have copies of its data, or the membership has changed meanwhile; try again, at a node with "
            "cluster.copies as on those nodes"
        )

    # Parts of them

    def _not_registered(self) -> tuple[Compare, ...]:
        absent = Compare(self._keys.registered(self._name), "create_revision", "=", 0)
        return absent, self._registry.unchanged(self._keys.joining(self._name))

    def _still_registered(self, member: MemberInfo) -> tuple[Compare, ...]:
        registry, keys = self._registry, self._keys
        return registry.unchanged(keys.changed), registry.unchanged(keys.registered(member.name))

    def _removal(self, member: MemberInfo) -> tuple[Operation, ...]:
        return self._change(), Delete(self._keys.registered(member.name)), Delete(self._keys.online(member.name))

    def _change(self) -> Put:
        return Put(self._keys.changed, json.dumps(self._name).encode())

    def _joining(self, me: MemberInfo) -> Put:
        return Put(self._keys.joining(self._name), member_value(me), leased=True)

    def _online(self, me: MemberInfo) -> Put:
        return Put(self._keys.online(self._name), b"%d" % me.incarnation, leased=True)
