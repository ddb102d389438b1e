"""Connections that are closed again and again for a reason that only an operator can mend, such as a limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from starlingmq.admin.remedies import CLOSED
from starlingmq.core.context.ready import Notice

WINDOW_SECONDS: Final = 300.0
CLOSED_MIN: Final = 5  # in that time: a device that tries every minute is one, a single mistake is none
FAILED_MIN: Final = 60  # failed logins in that time: a device that tries every few seconds, or guesses
LOOKS_MAX: Final = 60

FAILED_LOGIN: Final = "bad_user_name_or_password"


class Repeated(NamedTuple):
    reason: str
    text: str


class ClosedConnections:
    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[str, int]]] = deque([(0.0, {})], maxlen=LOOKS_MAX)

    def look(self, now: float, counted: Mapping[str, int], last: Mapping[str, Notice]) -> Iterator[Repeated]:
        """``counted``: connections closed since the start, by reason. ``now``: seconds of any clock."""
        while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW_SECONDS:
            self._looks.popleft()
        before = self._looks[0][1]
        self._looks.append((now, {reason: counted[reason] for reason in counted if reason in CLOSED}))
        for reason, count in self._looks[-1][1].items():
            closed = count - before.get(reason, 0)
            if closed >= (FAILED_MIN if reason == FAILED_LOGIN else CLOSED_MIN):
                yield Repeated(
                    reason,
                    f"{closed:,} connections were closed or refused within five minutes{_last(last.get(reason))}",
                )


def _last(notice: Notice | None) -> str:
    if notice is None:
        return ""
    client = f" of client {notice.client_id!r}" if notice.client_id else ""
    return f", the last one from {notice.peer}{client}: {notice.detail}"
