"""Chooses the nodes that store the copies of an origin.

The order: a zone that has no copy yet; a machine that has none; the node that stores the fewest copies; the name,
spread by a checksum so that equal nodes do not all choose the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final
from zlib import crc32

from starlingmq.cluster.copies.copy_record import CopyRecord
from starlingmq.cluster.copies.copy_registry import StoringNode

BALANCED: Final = 1
"""A difference in the number of copies that is not worth another copy of the data: moving one would only swap the two
nodes."""

Place = tuple[bool, bool, int]
"""Whether another copy is in this zone, whether one is on this machine, and how many copies the node stores."""


def copies_per_node(records: Iterable[CopyRecord]) -> Counter[str]:
    """How many origins each node serves or stores."""
    return Counter([name for record in records for name in (record.server, *record.followers)])


def next_follower(
    record: CopyRecord, away: Iterable[str], nodes: Mapping[str, StoringNode], stored: Mapping[str, int]
) -> str:
    """The best node to store another copy; "": there is none. ``away``: followers whose place is to be filled, so their
    zones do not count."""
    taken = {record.server, *record.followers}
    others = taken.difference(away)
    free = [name for name in nodes if name not in taken]
    spread = {name: crc32(f"{record.origin} {name}".encode()) for name in free}
    return min(free, key=lambda name: (_place(name, others, nodes, stored), spread[name], name), default="")


def misplaced_follower(record: CopyRecord, nodes: Mapping[str, StoringNode], stored: Mapping[str, int]) -> str:
    """A follower for which another node is a clearly better place; "": there is none."""
    for name in record.followers:
        if name not in nodes:
            continue
        better = next_follower(record, (name,), nodes, stored)
        if better:
            others = {record.server, *record.followers} - {name}
            here, there = [_place(each, others, nodes, stored) for each in (name, better)]
            if there[:2] < here[:2] or (there[:2] == here[:2] and there[2] + BALANCED < here[2]):
                return name
    return ""


def _place(name: str, others: Iterable[str], nodes: Mapping[str, StoringNode], stored: Mapping[str, int]) -> Place:
    node = nodes[name]
    holders = [nodes[other] for other in others if other in nodes]
    same_zone = any(holder.zone == node.zone for holder in holders)
    same_machine = any(holder.machine == node.machine for holder in holders)
    return same_zone, same_machine, stored.get(name, 0)
