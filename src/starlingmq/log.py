"""Logging: set up once by the process, and kept calm however often clients misbehave."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable

from starlingmq.config import LogConfig
from starlingmq.core.ready import Notice

log = logging.getLogger("starlingmq.clients")


class JsonFormatter(logging.Formatter):
    """One JSON object a line; nothing a client sends can break out of it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(settings: LogConfig) -> None:
    """Log to stderr: text on a terminal, JSON otherwise, unless ``log.format`` says which."""
    handler = logging.StreamHandler()
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s") if text else JsonFormatter())
    root = logging.getLogger("starlingmq")
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    root.propagate = False


class NoticeLog:
    """Writes why connections were ended; of one reason at most ``rate`` lines a second (0: no bound), and how many
    were left out."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        self.rate = rate
        self.clock = clock
        self._seconds: dict[str, tuple[int, int]] = {}  # reason -> (second, lines in it)

    def add(self, notice: Notice) -> None:
        second = int(self.clock())
        last, lines = self._seconds.get(notice.reason, (0, 0))
        if last != second:
            if self.rate and lines > self.rate:
                log.warning("%s: %d more connections closed for this", notice.reason, lines - self.rate)
            lines = 0
        self._seconds[notice.reason] = (second, lines + 1)
        if self.rate and lines >= self.rate:
            return
        log.info("closed %s of client %r: %s (%s)", notice.peer, notice.client_id, notice.detail, notice.reason)
