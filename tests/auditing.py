"""The broker's own events about its messages, judged the plain way: the twin of the audit in Spark.

The horizon is the last census that is over; with several nodes the last but one, and of the node that is behind: a
message between two nodes is then in the census of one of them. A message that was due before the horizon, and was
neither delivered nor dropped by the end, waits or is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

Key = tuple[str, str]  # client, message id


@dataclass
class Verdict:
    """Clients and how many messages; ``doubled`` by message, at QoS 0 and 2. ``again``: at QoS 1, which may be."""

    lost: dict[str, int] = field(default_factory=dict)
    doubled: list[Key] = field(default_factory=list)
    again: list[Key] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return not self.lost and not self.doubled


def events_of(payloads: Iterable[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """Topics and payloads of batches, as events in the order in which they were told; a run as its events."""
    found: list[dict[str, Any]] = []
    for topic, payload in payloads:
        batch = msgspec.json.decode(payload)
        for line in batch["events"]:
            event = {"kind": topic.removeprefix("$events/"), "node": batch["node"], **line}
            begin, _, number = event["id"].rpartition(":")
            run = event.pop("run", 1)
            found += [event | {"id": f"{begin}:{int(number) + more}"} for more in range(run)] if run > 1 else [event]
    return sorted(found, key=lambda event: (event["at"], event["n"]))


def judge(events: list[dict[str, Any]]) -> Verdict:
    verdict = Verdict()
    began = {event["node"]: event["n"] for event in events if event["kind"] == "began"}
    horizons = _horizons(events)
    due: Counter[Key] = Counter()
    late: Counter[Key] = Counter()
    done: Counter[Key] = Counter()
    delivered: Counter[Key] = Counter()
    at_least_once: set[Key] = set()
    acknowledged: Counter[Key] = Counter()
    sent_since: set[Key] = set()  # at QoS 2, with DUP, since the last acknowledgement
    for event in events:
        key = (event["client"], event["id"])
        kind = event["kind"]
        verdict.counts[kind] += 1
        if kind == "due":
            due[key] += 1
            if event["n"] > horizons[event["node"]]:
                late[key] += 1
            elif _excused(event, began):
                done[key] += 1
        elif kind == "delivered":
            if event["qos"] == 1:
                at_least_once.add(key)
            if not event["dup"]:
                delivered[key] += 1
                done[key] += 1
            elif event["qos"] == 2:
                sent_since.add(key)
        elif kind == "acknowledged":
            acknowledged[key] += 1
            sent_since.discard(key)
        elif kind == "dropped":
            verdict.reasons[event["reason"]] += 1
            done[key] += 1
    open_: Counter[str] = Counter()
    for key, count in due.items():
        open_[key[0]] += max(0, count - done[key] - late[key])
    several = [key for key, count in delivered.items() if count > due[key] and not key[0].startswith("$node/")]
    several += [key for key in sent_since if acknowledged[key] >= due[key]]
    verdict.doubled = [key for key in several if key not in at_least_once]
    verdict.again = [key for key in several if key in at_least_once]
    waiting = _waiting(events)
    for client, count in open_.items():
        if count > waiting[client]:
            verdict.lost[client] = count - waiting[client]
    return verdict


def _excused(due: dict[str, Any], began: dict[str, int]) -> bool:
    """Whether its loss is excused: it was in memory only, and the process is gone; or at QoS 0 on a link that broke."""
    gone = not due["kept"] and due["n"] < began.get(due["node"], 0)
    return gone or bool(due["qos"] == 0 and due["client"].startswith("$node/"))


def _ends(events: list[dict[str, Any]], node: str) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == "waiting" and event["node"] == node and not event["client"]]


def _horizons(events: list[dict[str, Any]]) -> dict[str, int]:
    """By node, the number of the event at which that census began; -1: there is none."""
    ends = {node: _ends(events, node) for node in {event["node"] for event in events}}
    wanted = 1 if len(ends) == 1 else 2
    if any(len(found) < wanted for found in ends.values()):
        return dict.fromkeys(ends, -1)
    until = min(found[-wanted]["since"] for found in ends.values())
    return {
        node: max([end["census"] for end in found if end["since"] <= until], default=-1) for node, found in ends.items()
    }


def _waiting(events: list[dict[str, Any]]) -> Counter[str]:
    """By client: the most that the last census, or one of the last two, has counted at each node."""
    nodes = {event["node"] for event in events}
    total: Counter[str] = Counter()
    for node in nodes:
        most: Counter[str] = Counter()
        numbers = [end["census"] for end in _ends(events, node)[-1 if len(nodes) == 1 else -2 :]]
        for event in events:
            if event["kind"] == "waiting" and event["node"] == node and event["client"] and event["census"] in numbers:
                most[event["client"]] = max(most[event["client"]], event["count"])
        total += most
    return total
