"""Conditions of links to other brokers: each look returns all that hold.

| kind | condition | severity |
|---|---|---|
| link | not connected, or not for long, for ``DOWN_SECONDS`` | warning |
| link_queue | above ``FULL_SHARE`` of its bounds, or growing for ``GROWING_MINUTES`` | warning |
| link_queue | full, or above it messages were dropped within ``DROPPED_SECONDS`` | critical |
| link_refused | one of the brokers refused filters | warning |

The subject is the name of the link. The node that carries it tells them; one that is idle, paused, done or elsewhere is
as it shall be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from starlingmq.admin.remedies import Condition
from starlingmq.bridges.link_view import LinkView
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.config.section_types import format_size

DOWN_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 10.0  # a connection that ends earlier again and again is none
FULL_SHARE: Final = 0.8
GROWING_MINUTES: Final = 5
MINUTE: Final = 60.0
DROPPED_SECONDS: Final = 60.0

CONNECT_NEXT: Final = (
    "starlingmq doctor checks its servers, certificates and files; starlingmq ctl links shows its state, and ctl link "
    "pause ends the attempts"
)
QUEUE_NEXT: Final = (
    "repair the connection or the other broker, raise bridges[].max_mqueue_len and queue_bytes, or carry fewer topics; "
    "starlingmq ctl links shows what waits"
)
REFUSED_NEXT: Final = "correct the filters in bridges[].topics, or the rights of its user at the other broker"


class Growth:
    """Whether a number has grown for ``GROWING_MINUTES``: the least one of each minute is above that of the minute
    before, so that steady traffic, which comes and goes, is no growth."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, int]] = deque(maxlen=GROWING_MINUTES + 1)  # and the least number in each

    def look(self, now: float, number: int) -> bool:
        minute = int(now // MINUTE)
        if not self._minutes or self._minutes[-1][0] != minute:
            if self._minutes and self._minutes[-1][0] != minute - 1:
                self._minutes.clear()  # nothing is known about the time between
            self._minutes.append((minute, number))
        elif number < self._minutes[-1][1]:
            self._minutes[-1] = minute, number
        least = [number for _, number in self._minutes]
        return len(least) > GROWING_MINUTES and all(a < b for a, b in pairwise(least))


class _SeenLink:
    """One link at the looks so far."""

    def __init__(self, now: float, one: LinkView) -> None:
        self.down_since: float | None = None
        self.growth = Growth()
        self.dropped = one.dropped
        self.dropped_at = -DROPPED_SECONDS + now

    def look(self, now: float, one: LinkView) -> None:
        if one.state in ("connecting", "waiting"):
            if self.down_since is None:
                self.down_since = now - one.seconds
        elif one.state != "connected" or one.seconds >= STEADY_SECONDS:
            self.down_since = None
        if one.dropped > self.dropped:
            self.dropped_at = now
        self.dropped = one.dropped


class LinkConditions:
    def __init__(self) -> None:
        self._seen: dict[str, _SeenLink] = {}

    def look(self, views: Iterable[LinkView], bridges: Iterable[BridgeConfig], now: float) -> Iterator[Condition]:
        """``now``: seconds of any clock that only grows."""
        bounds = {one.name: one for one in bridges}
        seen, self._seen = self._seen, {}
        for one in views:
            known = self._seen[one.name] = seen.get(one.name) or _SeenLink(now, one)
            known.look(now, one)
            grows = known.growth.look(now, one.waiting)
            if one.state == "elsewhere":
                continue
            if known.down_since is not None and now - known.down_since > DOWN_SECONDS:
                yield _down(one, now - known.down_since)
            if one.name in bounds:
                yield from _queue(one, bounds[one.name], grows, now - known.dropped_at < DROPPED_SECONDS)
            if one.complaints:
                text = f"{one.name}: {'; '.join(one.complaints)}"
                yield Condition("link_refused", one.name, "warning", text, REFUSED_NEXT)


def _down(one: LinkView, seconds: float) -> Condition:
    why = f" ({one.problem})" if one.problem else ""
    text = f"{one.name} has had no lasting connection to {one.server} for {seconds:,.0f} s{why}; {_waiting(one)}"
    return Condition("link", one.name, "warning", text, CONNECT_NEXT)


def _queue(one: LinkView, bounds: BridgeConfig, grows: bool, drops: bool) -> Iterator[Condition]:
    most, size = bounds.max_mqueue_len, bounds.queue_bytes
    share = max(one.waiting / most if most else 0.0, one.waiting_bytes / size if size else 0.0)
    limits = [f"max_mqueue_len ({most:,} messages)"] * bool(most) + [f"queue_bytes ({format_size(size)})"] * bool(size)
    room = f"{share:.0%} of {' or '.join(limits)}" if limits else "and nothing bounds the queue"
    if share >= 1 or (drops and share > FULL_SHARE):
        text = f"{one.name} drops the oldest messages: {_waiting(one)}, {room}"
        yield Condition("link_queue", one.name, "critical", text, QUEUE_NEXT)
    elif share > FULL_SHARE:
        yield Condition("link_queue", one.name, "warning", f"{one.name}: {_waiting(one)}, {room}", QUEUE_NEXT)
    elif grows:
        text = f"{one.name} has grown for {GROWING_MINUTES} minutes: {_waiting(one)}, {room}"
        yield Condition("link_queue", one.name, "warning", text, QUEUE_NEXT)


def _waiting(one: LinkView) -> str:
    return f"{one.waiting:,} message{' waits' if one.waiting == 1 else 's wait'}"
