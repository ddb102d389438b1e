"""The figures of a queue group on one node: for $SYS, for ``ctl groups``, for metrics."""

from __future__ import annotations

from starlingmq.core.groups.group import Group
from starlingmq.core.groups.member_selection import STRATEGIES


def cursor(group: Group) -> int:
    """The journal offset of the oldest message that waits here or is lent to a member; -1: no such message is
    stored."""
    line = group.line
    if line is None:
        return -1
    offsets: list[int] = []
    queue = line.queue
    if queue is not None:
        if queue.items:
            offsets.append(queue.items[0].message.offset)
        elif queue.stored is not None and len(queue.stored) != 0:
            offsets.append(queue.stored.peek().offset)
    if line.window is not None:
        for lent in line.window.entries.values():  # the first is the oldest, except for messages that were given back
            offsets.append(lent.message.offset)
            break
    stored = [offset for offset in offsets if offset >= 0]
    return min(stored) if stored else -1


def title(group: Group) -> str:
    return f"{group.name.decode(errors='replace')}/{group.filter.decode(errors='replace')}"


def figures(group: Group) -> dict[str, object]:
    """All figures that this node knows. ``lag`` counts the messages that wait on this node and, as far as the primary
    knows, on others.

    ``nodes`` has the other nodes by number: the number of members of each, and at the primary how many of them are
    connected (``online``), how many messages they can take (``room``), and how many wait there (``waiting``).
    """
    line = group.line
    lent = 0
    if line is not None and line.window is not None:
        lent = len(line.window.entries) - len(line.window.owed)
    waiting = group.waiting()
    found: dict[str, object] = {
        "name": group.name.decode(errors="replace"),
        "filter": group.filter.decode(errors="replace"),
        "strategy": STRATEGIES[group.strategy],
        "primary": group.chooser,
        "here": group.primary,
        "epoch": group.epoch,
        "members": len(group.members) + sum(group.counts.values()),
        "members_here": len(group.members),
        "online_here": group.online(),
        "cursor": cursor(group),
        "waiting_here": waiting,
        "lag": waiting + sum(group.waits_at.values()),
        "lent": lent,
        "received": group.received,
        "given": group.given,
        "redelivered": group.redelivered,
        "nodes": elsewhere(group),
    }
    return found


def elsewhere(group: Group) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for node in sorted({**group.counts, **group.waits_at}):
        told = found[node] = {"members": group.counts.get(node, 0)}
        if group.primary:
            room = group.rooms.get(node)
            told["online"] = 0 if room is None else room.online
            told["room"] = 0 if room is None else room.given
            told["waiting"] = group.waits_at.get(node, 0)
    return found
