"""The copies of one node's data, as etcd stores them below ``copies/<origin>``.

The law of this package: *nothing that was acknowledged is lost while one disk of ``in_step`` survives, and nothing is
accepted under two generations.* It rests on four rules:

1. A record changes only by compare-and-set on its revision. ``generation`` never falls.
2. One incarnation of one node serves under a generation. A successor and a restart each take a higher one.
3. ``in_step`` names the nodes whose disks have everything that was acknowledged. Naming a successor does not change it.
   The server of the generation adds other nodes and removes them; a node may only remove itself, or write its own
   incarnation. The server acknowledges nothing before every node in ``in_step`` has stored it (``copies.copy_server``).
4. A node that knows of a generation stores nothing more from an older one (``copies.copy_roles``). A successor is one
   of ``in_step``, so once it knows of its generation the earlier server can acknowledge nothing.

Terms: the *origin* is the node whose data it is; the *server* is the node that serves that data now; a *follower*
stores what the server sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


class CopyRecordError(ValueError):
    """The value of a key is not a record."""


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """``incarnation``: that of the server's process which may serve under this generation. ``in_step``: by name, the
    incarnation in which that node's copy was last known to be whole; includes the server, unless the server found its
    own disk old. ``followers``: the nodes that the server sends to. ``given_up``: the last generation that began with
    what was left, because an operator had given up what the nodes in step had."""

    origin: str
    generation: int
    server: str
    incarnation: int
    in_step: Mapping[str, int]
    followers: tuple[str, ...] = ()
    given_up: int = 0

    def is_served_by(self, name: str, incarnation: int) -> bool:
        """Whether this incarnation of the node may serve: it is named, and its disk is known to be whole."""
        return self.server == name and self.incarnation == self.in_step.get(name) == incarnation

    def is_stale(self) -> bool:
        """Whether the server does not have everything that was acknowledged: another node has to serve."""
        return self.server not in self.in_step

    def handed_to(self, name: str, incarnation: int) -> CopyRecord:
        """Another node is named server; the earlier one becomes a follower."""
        others = [each for each in (*self.followers, self.server) if each != name]
        followers = tuple(dict.fromkeys(others))
        return replace(self, generation=self.generation + 1, server=name, incarnation=incarnation, followers=followers)

    def returned(self, name: str, incarnation: int, known: int = 0) -> CopyRecord:
        """A node in step has restarted and has its disk. The server takes a new generation for its new incarnation,
        above the one that its disk has ``known``: etcd may have been restored from a backup."""
        in_step = {**self.in_step, name: incarnation}
        if name != self.server:
            return replace(self, in_step=in_step)
        generation = max(self.generation, known) + 1
        return replace(self, generation=generation, incarnation=incarnation, in_step=in_step)

    def given_up_to(self, name: str, incarnation: int) -> CopyRecord:
        """An operator gives up what the nodes in step had: this node serves what it has."""
        record = self.handed_to(name, incarnation)
        return replace(record, in_step={name: incarnation}, given_up=record.generation)

    def unfollowed_by(self, name: str) -> CopyRecord:
        """The record without a follower that is not in step. A change of the server that is under way, and may list it,
        is void then."""
        return replace(self, followers=tuple([each for each in self.followers if each != name]))

    def without(self, name: str) -> CopyRecord:
        """A node is not in step any more."""
        return replace(self, in_step={each: incarnation for each, incarnation in self.in_step.items() if each != name})


def too_few(count: int, required: int) -> str:
    """Why nothing is accepted while ``count`` nodes are in step; "": it is."""
    return f"{count} of the required {required} nodes are in step" if count < required else ""


def new_record(origin: str, incarnation: int, known: int = 0) -> CopyRecord:
    """Its generation is above those of an earlier record of the same name, which was deleted: an incarnation is a
    revision of etcd, and so is above the number of changes so far. It is also above the one that the disk of the node
    has ``known``: etcd may be a new one."""
    return CopyRecord(origin, max(incarnation, known + 1), origin, incarnation, {origin: incarnation})


def record_value(record: CopyRecord) -> bytes:
    facts = {
        "generation": record.generation,
        "server": record.server,
        "incarnation": record.incarnation,
        "in_step": dict(record.in_step),
        "followers": list(record.followers),
        "given_up": record.given_up,
    }
    return json.dumps(facts, sort_keys=True).encode()


def record_from(origin: str, value: bytes) -> CopyRecord:
    """Raises CopyRecordError."""
    try:
        facts: dict[str, Any] = json.loads(value)
        in_step = {str(name): int(incarnation) for name, incarnation in dict(facts["in_step"]).items()}
        followers = tuple([str(name) for name in facts["followers"]])
        generation, incarnation = int(facts["generation"]), int(facts["incarnation"])
        record = CopyRecord(origin, generation, str(facts["server"]), incarnation, in_step, followers)
        record = replace(record, given_up=int(facts.get("given_up", 0)))
    except (KeyError, TypeError, ValueError) as error:
        raise CopyRecordError(f"etcd key copies/{origin} has an invalid value: {error!r}; repair it") from None
    known = {record.server, *followers}
    if not in_step or not known.issuperset(in_step) or record.server in followers or generation < 1:
        raise CopyRecordError(f"etcd key copies/{origin} has an invalid value: {value!r}; repair it")
    return record
