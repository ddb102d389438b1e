"""The members as etcd stores them: keys and values.

``online`` and ``joining`` keys go with the lease of their node; ``registered`` ones stay until it leaves or is
forgotten, and have its number and its incarnation. Numbers come from ``next_number``, and none is given twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from starlingmq.cluster.etcd.etcd_requests import Compare, Get, KeyChange, KeyValue
from starlingmq.cluster.links.control_frames import MemberInfo, Membership


class Keys:
    def __init__(self, cluster: str) -> None:
        root = f"/starlingmq/{cluster}/"
        self.next_number = (root + "next_number").encode()
        self.members = (root + "members/").encode()
        self.changed = self.members + b"changed"
        self.read = (Get(self.members, prefix=True), Get(self.next_number))  # the last operations of every transaction

    def registered(self, name: str) -> bytes:
        return self.members + b"registered/" + name.encode()

    def joining(self, name: str) -> bytes:
        return self.members + b"joining/" + name.encode()

    def online(self, name: str) -> bytes:
        return self.members + b"online/" + name.encode()


def member_value(member: MemberInfo) -> bytes:
    """The value of a registered or joining key."""
    facts: dict[str, Any] = {
        "number": member.number,
        "incarnation": member.incarnation,
        "address": member.address,
        "version": member.version,
    }
    if member.first:
        facts["first"], facts["since"] = member.first, member.since
    return json.dumps(facts).encode()


def member_from(name: str, value: bytes, registered: bool) -> MemberInfo:
    """The member that such a value describes. Raises ValueError for any other value."""
    try:
        facts: dict[str, Any] = json.loads(value)
        number, incarnation = int(facts["number"]), int(facts["incarnation"])
        address, version = str(facts["address"]), str(facts["version"])
        first, since = int(facts.get("first", 0)), int(facts.get("since", 0))
        return MemberInfo(name, number, incarnation, address, version, registered, first, since)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{error!r} is missing or invalid") from error


@dataclass(slots=True)
class Parsed:
    registered: dict[str, MemberInfo] = field(default_factory=dict)
    joining: dict[str, MemberInfo] = field(default_factory=dict)
    online: dict[str, int] = field(default_factory=dict)  # name -> incarnation
    membership: Membership = field(default_factory=lambda: Membership(0, ()))


class Registry:
    """All keys below ``members/`` as of an etcd revision."""

    keys: Keys
    revision: int  # 0: nothing has been read yet
    number: int  # the next node number, as of the last read
    number_revision: int  # revision at which it was last written
    there: dict[bytes, tuple[bytes, int]]  # key -> value, revision of its last change
    parsed: Parsed
    problem: str  # a value that is not valid; ``parsed`` then keeps its earlier state

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.revision = 0
        self.number = 1
        self.number_revision = 0
        self.there = {}
        self.parsed = Parsed()
        self.problem = ""

    def load(self, members: Iterable[KeyValue], number: tuple[KeyValue, ...], revision: int) -> None:
        self.number = int(number[0].value) if number else 1
        self.number_revision = number[0].mod_revision if number else 0
        if revision < self.revision:
            return  # the watch has already delivered newer changes
        self.there = {found.key: (found.value, found.mod_revision) for found in members}
        self.revision = revision
        self._parse()

    def apply(self, changes: tuple[KeyChange, ...]) -> None:
        """Changes from a watch. Those that a later read has already covered are left out. The revision of the answer
        itself is not used: while a watch catches up, it is ahead of the changes that it delivers."""
        news = [change for change in changes if change.mod_revision > self.revision]
        for change in news:
            if change.value is None:
                self.there.pop(change.key, None)
            else:
                self.there[change.key] = (change.value, change.mod_revision)
        if news:
            self.revision = news[-1].mod_revision
            self._parse()

    def modified(self, key: bytes) -> int:
        return self.there.get(key, (b"", 0))[1]

    def value(self, key: bytes) -> bytes:
        return self.there.get(key, (b"", 0))[0]

    def unchanged(self, key: bytes) -> Compare:
        """The condition that ``key`` has not changed since."""
        return Compare(key, "mod_revision", "=", self.modified(key))

    def _parse(self) -> None:
        found = Parsed()
        try:
            for key in sorted(self.there):
                kind, _, name = key[len(self.keys.members) :].decode().partition("/")
                value = self.there[key][0]
                if kind == "registered":
                    found.registered[name] = member_from(name, value, registered=True)
                elif kind == "joining":
                    found.joining[name] = member_from(name, value, registered=False)
                elif kind == "online":
                    found.online[name] = int(value)
        except ValueError as error:
            self.problem = f"etcd key {key.decode(errors='replace')} has an invalid value: {error}; delete or repair it"
            return
        self.problem = ""
        members = sorted(found.registered.values(), key=lambda member: member.number)
        found.membership = Membership(self.modified(self.keys.changed), tuple(members))
        self.parsed = found
