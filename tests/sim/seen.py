"""Events in worlds, counted: an event that never happened was not tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

EVERYTHING = (
    "crashes",
    "processes seen to end",
    "power failures",
    "joins",
    "leaves",
    "forgets",
    "isolations",
    "relayed frames",
    "relayed messages",
    "frames of an earlier life",
    "snapshots",
    "records after a gap",
    "watches compacted",
    "leases lost",
    "requests without an answer",
    "losses of the leader",
    "errors of disks",
    "group messages sent across",
    "group messages sent at once",
    "retained messages replayed",
)
"""The events that eighty worlds have to contain."""

WITH_COPIES = ("disks lost", "old disks", "lost nodes served elsewhere")

Seen = Counter[str]


def told(seen: Seen, what: Sequence[str] = EVERYTHING) -> str:
    return ", ".join(f"{seen[each]} {each}" for each in what)
