"""Events in worlds, counted: an event that never happened was not tested."""

from __future__ import annotations

from collections import Counter

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
"""The events that two hundred worlds have to contain."""

Seen = Counter[str]


def told(seen: Seen) -> str:
    return ", ".join(f"{seen[what]} {what}" for what in EVERYTHING)
