"""Logging: set up once by the process, with bounded output however often clients misbehave."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from starlingmq.config.settings import LogConfig  # half of the time that a command of ctl has

T = TypeVar("T")

FIELDS: Final = ("client_id", "user", "peer", "reason", "count")
"""Fields of log lines about clients beside the text, for searching and counting."""

NAME_MAX: Final = 100
"""Characters of a user name in a log line: before its authentication, a client may choose 65,535 bytes."""

served_for: ContextVar[str] = ContextVar("served_for", default="")
"""The lost node whose data the running task serves, in the process of another node; empty: it belongs to the node
itself."""


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
