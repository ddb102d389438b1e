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

MINUTE: Final = 60.0
MINUTES: Final = 60  # that are kept
NAMES_MAX: Final = 10_000  # of users and topics, before those that are not needed any more are removed
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
    user: Annotated[str, Meta(description="User of the client; empty: it has none, or had gone.")] = ""
    topic: Annotated[
        str,
        Meta(
            description="Topic of the last one, its first 256 bytes, or of the message that took its place in a queue; "
            "empty: unknown."
        ),
    ] = ""
    rule: Annotated[str, Meta(description="For not_authorized: the rule that refused the last one.")] = ""


class Droppers:
    """``take`` is called at least once a minute. ``user_of`` and ``why_refused`` are those of ``LocalNode``."""

    def __init__(
        self,
        counters: Counters,
        clock: Callable[[], float],
        user_of: Callable[[str], str],
        why_refused: Callable[[str], str],
    ) -> None:
        self._counters = counters
        self._clock = clock
        self._user_of = user_of
        self._why_refused = why_refused
        self._users: dict[str, str] = {}
        self._topics: dict[str, bytes] = {}
        self._minutes: deque[tuple[float, Counter[tuple[str, str]]]] = deque()  # from when on

    def take(self) -> None:
        """Take over what was counted since the last call."""
        minute = self._clock() // MINUTE * MINUTE
        self._topics |= self._counters.dropped_topics
        found = self._counters.take_droppers()
        if found:
            self._users |= {client_id: user for client_id, _ in found if (user := self._user_of(client_id))}
            if not self._minutes or self._minutes[-1][0] != minute:
                self._minutes.append((minute, Counter()))
            counted = self._minutes[-1][1]
            counted.update(found)
            if len(counted) > KEPT_MAX:
                _shorten(counted)
        while self._minutes and not 0 <= minute - self._minutes[0][0] < MINUTES * MINUTE:
            self._minutes.popleft()
        if max(len(self._users), len(self._topics)) > NAMES_MAX:
            kept = {client_id for _, counted in self._minutes for client_id, _ in counted}
            self._users = {name: self._users[name] for name in self._users.keys() & kept}
            self._topics = {name: self._topics[name] for name in self._topics.keys() & kept}

    @action(
        "droppers",
        "GET /droppers",
        ALL,
        order={"droppers": lambda found: sorted(found, key=lambda one: (-one.messages, one.client_id, one.node))},
        ctl="droppers q?",
        columns="client_id: client, user, node, messages, reasons, topic, rule, last: last/age",
        none="no message was dropped in the last hour",
    )
    async def droppers(self, request: DropperSearch) -> list[Dropper]:
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
        return [
            Dropper(
                client_id,
                total,
                dict(reasons[client_id].most_common()),
                when(last[client_id]),
                user=self._users.get(client_id, ""),
                topic=self._topics.get(client_id, b"").decode(errors="replace"),
                rule=self._why_refused(client_id) if "not_authorized" in reasons[client_id] else "",
            )
            for client_id, total in totals.most_common(request.limit)
        ]


def _shorten(counted: Counter[tuple[str, str]]) -> None:
    """Count the smallest ones without their clients."""
    for (client_id, reason), count in counted.most_common()[KEPT_MAX:]:
        if client_id:
            del counted[client_id, reason]
            counted["", reason] += count
