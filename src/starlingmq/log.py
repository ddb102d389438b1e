"""Logging: set up once by the process, with bounded output however often clients misbehave."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from time import monotonic
from typing import Final, Protocol, TypeVar

from starlingmq.config.settings import LogConfig
from starlingmq.core.connect.session_reset import LOST
from starlingmq.core.context.ready import PUBLISH_REFUSED, SUBSCRIBE_REFUSED, Notice, Refusal
from starlingmq.core.session.overlaps import OVERLAPS

log = logging.getLogger("starlingmq.clients")

T = TypeVar("T")

FIELDS: Final = ("client_id", "user", "peer", "reason", "count")
"""Fields of log lines about clients beside the text, for searching and counting."""

NAME_MAX: Final = 100
"""Characters of a user name in a log line: before its authentication, a client may choose 65,535 bytes."""

served_for: ContextVar[str] = ContextVar("served_for", default="")
"""The lost node whose data the running task serves, in the process of another node; empty: it belongs to the node
itself."""

HEALTHY: Final = ("connected", "disconnected")
"""Reasons for log lines that report no problem (``connection_log``)."""


def printable(text: str) -> str:
    """The text on one line, without characters that a terminal would interpret: clients choose client ids and
    topics."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def as_this_node(call: Callable[[T], None]) -> Callable[[T], None]:
    """The same call, for callers outside of the tasks of this node: its log lines are those of the node."""
    if not served_for.get():
        return call
    own = copy_context()

    def in_context(argument: T) -> None:
        own.run(call, argument)

    return in_context


def message_of(record: logging.LogRecord) -> str:
    """The text of a line. It names the node whose data the line is about, if that is not the node of the process."""
    lost = served_for.get()
    return f"for {lost}: {record.getMessage()}" if lost else record.getMessage()


class TextFormatter(logging.Formatter):
    """One line of text; after it the traceback, if the line reports a bug."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(message_of(record))
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the name of the node and those of ``FIELDS`` that the record has. Input of clients
    cannot break out of it."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": printable(message_of(record)),
        }
        line |= {name: printable(str(getattr(record, name))) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(settings: LogConfig, node: str = "") -> None:
    """Log to stderr: text on a terminal, JSON otherwise, unless ``log.format`` says which."""
    handler = logging.StreamHandler()
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter("%(asctime)s %(levelname)-7s %(message)s") if text else JsonFormatter(node))
    root = logging.getLogger("starlingmq")
    root.handlers[:] = [handler, *(other for other in root.handlers if type(other) is not logging.StreamHandler)]
    root.setLevel(settings.level.upper())
    root.propagate = False


class SparingLog:
    """Log lines that strangers can cause: at most ``rate`` per second (0: unlimited). The next line says how many were
    left out."""

    def __init__(self, logger: logging.Logger, rate: int, clock: Callable[[], float] = monotonic) -> None:
        self.rate = rate
        self._logger = logger
        self._clock = clock
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def warning(self, text: str, *args: object, error: BaseException | None = None) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
        if self.rate and self._lines >= self.rate:
            self._left_out += 1
            return
        self._lines += 1
        if self._left_out:
            self._logger.warning("%d more lines like the next one were suppressed", self._left_out)
            self._left_out = 0
        self._logger.log(logging.ERROR if error is not None else logging.WARNING, text, *args, exc_info=error)


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
        self.last: dict[str, Notice] = {}  # the last closed connection of each reason, for alarms
        self._seconds: dict[str, tuple[int, int]] = {}  # reason -> (second, lines in it)
        self._left_out: dict[str, int] = {}  # by reason, not reported yet
        self._timer: Timer | None = None

    def add(self, notice: Notice) -> None:
        reason = notice.reason
        if notice.closing:
            self.last[reason] = notice
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
