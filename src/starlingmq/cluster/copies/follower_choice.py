"""Chooses the nodes that store the copies of an origin.

The order: a zone that has no copy yet; a machine that has none; the node that stores the fewest copies; the name,
spread by a checksum so that equal nodes do not all choose the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from zlib import crc32

from starlingmq.cluster.copies.copy_record import CopyRecord
from starlingmq.cluster.copies.copy_registry import StoringNode


def copies_per_node(records: Iterable[CopyRecord]) -> Counter[str]:
    """How many origins each node serves or stores."""
    return Counter([name for record in records for name in (record.server, *record.followers)])


def next_follower(
    record: CopyRecord, away: Iterable[str], nodes: Mapping[str, StoringNode], stored: Mapping[str, int]
) -> str:
    """The best node to store another copy; "": there is none. ``away``: followers whose place is to be filled, so their
    zones do not count."""
    gone = set(away)
    taken = {record.server, *record.followers}
    holders = [nodes[name] for name in taken - gone if name in nodes]
    zones = {holder.zone for holder in holders}
    machines = {holder.machine for holder in holders}

    def order(node: StoringNode) -> tuple[bool, bool, int, int, str]:
        spread = crc32(f"{record.origin} {node.name}".encode())
        return node.zone in zones, node.machine in machines, stored.get(node.name, 0), spread, node.name

    free = [node for node in nodes.values() if node.name not in taken]
    return min(free, key=order).name if free else ""
