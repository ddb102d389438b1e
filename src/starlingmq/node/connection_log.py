"""Log lines about connections: why they were ended, and with ``log.connections`` which clients come and go."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from starlingmq.admin.local_node import LastNotices
from starlingmq.core.connect.session_reset import LOST
from starlingmq.core.context.ready import PUBLISH_REFUSED, SUBSCRIBE_REFUSED, Event, Notice, Refusal
from starlingmq.core.session.overlaps import OVERLAPS
from starlingmq.log import NAME_MAX

log = logging.getLogger("starlingmq.clients")

HEALTHY: Final = ("connected", "disconnected")
"""Reasons for log lines that report no problem."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class NoticeLog:
    """Logs why connections were ended: at most ``rate`` lines per second and reason (0: unlimited), and the number left
    out, a second later at the latest. ``later`` is ``call_later`` of the event loop; ``why`` names the rule by which
    something was refused."""

    def __init__(
        self,
        rate: int,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Timer],
        why: Callable[[Refusal], str] = lambda refusal: "not authorized",
    ) -> None:
        self.rate = rate
        self.clock = clock
        self.later = later
        self.why = why
        self.last = LastNotices()
        self._seconds: dict[str, tuple[int, int]] = {}  # reason -> (second, lines in it)
        self._left_out: dict[str, int] = {}  # by reason, not reported yet
        self._timer: Timer | None = None

    def add(self, notice: Notice) -> None:
        reason = notice.reason
        if notice.closing:
            self.last.closed[reason] = notice
        if isinstance(notice, Refusal):
            self.last.refuse(notice)
        if not self.may_log(reason):
            return
        told = {"client_id": notice.client_id, "peer": notice.peer, "reason": reason}
        user = notice.username[:NAME_MAX]
        if user:
            told["user"] = user
        what = "closed " if notice.closing else ""
        # a connection that continues may have lost a message
        detail, level = notice.detail, logging.INFO if notice.closing else logging.WARNING
        if isinstance(notice, Refusal):
            level = logging.INFO
            if not log.isEnabledFor(level):
                return
            detail = f"{notice.text()}: {detail or self.why(notice)}"
        whose = f" of client {notice.client_id!r}" if notice.client_id else ""
        whose += f", user {user!r}" if user else ""
        log.log(level, "%s%s%s: %s (%s)", what, notice.peer, whose, detail, reason, extra=told)

    def may_log(self, reason: str) -> bool:
        """Whether another line for this reason is within the rate; if not, it is counted."""
        second = int(self.clock())
        last, lines = self._seconds.get(reason, (0, 0))
        if last != second:
            self._tell(reason)
            lines = 0
        if self.rate and lines >= self.rate:
            self._left_out[reason] = self._left_out.get(reason, 0) + 1
            if self._timer is None:
                self._timer = self.later(1.0, self.flush)
            return False
        self._seconds[reason] = (second, lines + 1)
        return True

    def _tell(self, reason: str) -> None:
        count = self._left_out.pop(reason, 0)
        if count:
            told = {"reason": reason, "count": count}
            if reason in HEALTHY:
                log.info("%d more clients %s", count, reason, extra=told)
                return
            if reason in (PUBLISH_REFUSED, SUBSCRIBE_REFUSED):
                log.info("%s: %d more were refused", reason, count, extra=told)
                return
            what = (
                "log lines about connections that stay open were suppressed"
                if reason in ("pubrel_unknown", OVERLAPS, LOST)
                else "connections were closed for this reason"
            )
            log.warning("%s: %d more %s", reason, count, what, extra=told)

    def flush(self) -> None:
        """Report the lines that were left out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for reason in list(self._left_out):
            self._tell(reason)


class ConnectionLog:
    """Takes the events of the core, logs some of them at the rate of ``notices``, and passes all on to ``hook``."""

    def __init__(self, notices: NoticeLog, hook: Callable[[Event], None] | None) -> None:
        self._notices = notices
        self._hook = hook

    def event(self, event: Event) -> None:
        if event.kind in HEALTHY and log.isEnabledFor(logging.INFO) and self._notices.may_log(event.kind):
            extra = {"client_id": event.client_id, "reason": event.kind}
            if event.kind == "connected":
                log.info("client %r connected from %s", event.client_id, event.detail, extra=extra)
            else:
                log.info("client %r disconnected: %s", event.client_id, event.detail, extra=extra)
        if self._hook is not None:
            self._hook(event)
