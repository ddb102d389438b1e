"""The last lines of this node's log, for those who have no other way to it."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from typing import Any, Final

from starlingmq.admin.listing import limit_of
from starlingmq.admin.plain import plain
from starlingmq.admin.problem import AdminError
from starlingmq.admin.sessions import when
from starlingmq.net.control import Action, Report

LINES_MAX: Final = 2000
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class LogTail(logging.Handler):
    """Of the logger ``starlingmq`` and those below it, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[tuple[int, logging.LogRecord, str]] = deque(maxlen=LINES_MAX)
        self._last = 0

    def start(self) -> None:
        logging.getLogger("starlingmq").addHandler(self)

    def stop(self) -> None:
        logging.getLogger("starlingmq").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._last += 1
        self._lines.append((self._last, record, plain(record.getMessage())))

    def actions(self) -> dict[str, Action]:
        return {"log": self.lines}

    async def lines(self, report: Report, arguments: dict[str, str]) -> dict[str, Any]:
        """Those after number ``after``, or the last ones; of a level or above. Raises AdminError."""
        level, limit = arguments.get("level", "") or "debug", limit_of(arguments)
        after = arguments.get("after", "")
        if level not in LEVELS or (after and not (after.isascii() and after.isdigit() and len(after) < 20)):
            raise AdminError(400, f"level: one of {', '.join(LEVELS)}; after: a number")
        wanted = [entry for entry in list(self._lines) if entry[1].levelno >= LEVELS[level]]
        lost = 0
        if after:
            first = self._lines[0][0] if self._lines else 1
            lost = max(first - int(after) - 1, 0)
            wanted = list(islice((entry for entry in wanted if entry[0] > int(after)), limit))
        else:
            wanted = wanted[-limit:]
        lines = [
            {
                "number": number,
                "time": when(record.created),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": message,
            }
            for number, record, message in wanted
        ]
        following = wanted[-1][0] if len(wanted) == limit else self._last
        return {"lines": lines, "next": following, "lost": lost}
