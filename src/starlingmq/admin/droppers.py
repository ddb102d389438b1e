"""The clients with most dropped messages in the last hour, and the reasons: also clients that have gone, but no message
from before this process began."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Annotated, Final

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import ALL, action
from starlingmq.admin.sessions import when
from starlingmq.core.observe.counters import Counters
from starlingmq.net.control_socket import Report

MINUTE: Final = 60.0
MINUTES: Final = 60  # that are kept
KEPT_MAX: Final = 500  # clients with a reason, of each minute: the largest ones


class DropperSearch(Struct, frozen=True):
    q: Annotated[
        str, Meta(max_length=65535, description="Only clients whose ids contain this text.", extra={"ctl": "PART"})
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=1000, description="Maximum number of clients per node.", extra={"ctl": "--limit -n"})
    ] = 20


class Dropper(Struct, frozen=True):
    """``node`` is set in lists of several nodes."""

    client_id: Annotated[
        str,
        Meta(
            description="The client that would have received the messages, or that published what was refused; $group/ "
            "before the name of a group; its first 256 characters. Empty: clients with fewer dropped messages, and "
            "messages without a client."
        ),
    ]
    messages: Annotated[int, Meta(description="Messages that were dropped within the last hour.")]
    reasons: Annotated[dict[str, int], Meta(description="How many of them, by the reason.")]
    last: Annotated[str, Meta(description="The minute of the last one.")]
    node: str = ""


class DroppersReply(Struct, frozen=True):
    """Most messages first."""

    droppers: list[Dropper]


class Droppers:
    """``take`` is called at least once a minute."""

    def __init__(self, counters: Counters, clock: Callable[[], float]) -> None:
        self._counters = counters
        self._clock = clock
        self._minutes: deque[tuple[float, Counter[tuple[str, str]]]] = deque()  # from when on

    def take(self) -> None:
        """Take over what was counted since the last call."""
        minute = self._clock() // MINUTE * MINUTE
        found = self._counters.take_droppers()
        if found:
            if not self._minutes or self._minutes[-1][0] != minute:
                self._minutes.append((minute, Counter()))
            counted = self._minutes[-1][1]
            counted.update(found)
            if len(counted) > KEPT_MAX:
                _shorten(counted)
        while self._minutes and not 0 <= minute - self._minutes[0][0] < MINUTES * MINUTE:
            self._minutes.popleft()

    @action(
        "droppers",
        "GET /droppers",
        ALL,
        order={"droppers": lambda found: sorted(found, key=lambda one: (-one.messages, one.client_id, one.node))},
        ctl="droppers q?",
        columns="client_id: client, node, messages, reasons, last: last/age",
        none="no message was dropped in the last hour",
    )
    async def droppers(self, report: Report, request: DropperSearch) -> DroppersReply:
        """List the clients with most dropped messages in the last hour, and why; also clients that have gone."""
        self.take()
        reasons: dict[str, Counter[str]] = {}
        last: dict[str, float] = {}
        for minute, counted in self._minutes:
            for (client_id, reason), count in counted.items():
                if request.q in client_id:
                    reasons.setdefault(client_id, Counter())[reason] += count
                    last[client_id] = minute
        totals = Counter({client_id: found.total() for client_id, found in reasons.items()})
        shown = [
            Dropper(client_id, total, dict(reasons[client_id].most_common()), when(last[client_id]))
            for client_id, total in totals.most_common(request.limit)
        ]
        return DroppersReply(shown)


def _shorten(counted: Counter[tuple[str, str]]) -> None:
    """Count the smallest ones without their clients."""
    for (client_id, reason), count in counted.most_common()[KEPT_MAX:]:
        if client_id:
            del counted[client_id, reason]
            counted["", reason] += count
