"""Queue groups in worlds: the primary, and the invariants of every group at the end.

A message of a group has one holder: where no member and no node is lost, one member gets it, once. Where some are lost,
it comes again only to another member, and it always reaches one: no acknowledged message stays anywhere when all faults
are healed and the group has members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.checkers import Books, matches

from starlingmq.core.groups.group_stats import figures

if TYPE_CHECKING:
    from tests.sim.node import Node
    from tests.sim.world import World


def primaries(world: World) -> list[Node]:
    """Nodes that take themselves for the primary of some group."""
    return [
        node
        for node in world.nodes
        if node.process is not None and any(group.primary for group in node.process.state.router.groups())
    ]


def at_rest(world: World) -> list[str]:
    """Messages that still wait, or are lent to no member, though the group has members."""
    found: list[str] = []
    for node in world.nodes:
        if node.process is None:
            continue
        for group in node.process.state.router.groups():
            if not group.has_members():
                continue
            seen = figures(group)
            if seen["waiting_here"] or seen["lent"]:
                found.append(f"{node.host}: {seen}")
    return found


def unheard(books: Books) -> list[str]:
    """Messages that were acknowledged after a group had begun, and that no member got. For groups whose members never
    leave of their own will and acknowledge all messages: QoS 1.
    """
    found: list[str] = []
    for group, members in books.members.items():
        promises = [promise for promise in books.promises if promise.filter == group]
        if group in books.left or any(promise.qos != 1 for promise in promises):
            continue
        begun = min(promise.since for promise in promises)
        heard = {payload for (name, _), got in books.got.items() if name in members for payload in got}
        for sent in books.sent.values():
            owed = sent.acknowledged_at and sent.at > begun and matches(promises[0].topic_filter, sent.topic)
            if owed and sent.payload not in heard:
                found.append(f"{sent.payload!r} from {sent.node.host} came to nobody of {group!r}")
    return found


def doubled(books: Books) -> list[str]:
    """Messages that the members of a group got more than once."""
    found: list[str] = []
    for group, members in books.members.items():
        counts: dict[bytes, int] = {}
        for (name, _), got in books.got.items():
            if name in members:
                for payload, count in got.items():
                    counts[payload] = counts.get(payload, 0) + count
        found += [f"{payload!r} came {count} times to {group!r}" for payload, count in counts.items() if count > 1]
    return found
