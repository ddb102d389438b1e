"""The last lines of this node's log, for those who have no other way to it."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from typing import Any, Final

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import limit_of
from starlingmq.admin.printable import plain
from starlingmq.admin.sessions import when
from starlingmq.net.control_socket import Action, Report

LINES_MAX: Final = 2000
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Result = dict[str, Any]


class LogTail(logging.Handler):
    """Of the logger ``starlingmq`` and those below it, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[tuple[int, Result]] = deque(maxlen=LINES_MAX)  # level, and the line as it is told
        self._last = 0

    def start(self) -> None:
        logging.getLogger("starlingmq").addHandler(self)

    def stop(self) -> None:
        logging.getLogger("starlingmq").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._last += 1
        line = {
            "number": self._last,
            "time": when(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": plain(record.getMessage()),
        }
        self._lines.append((record.levelno, line))  # the record would keep alive what it is about

    def actions(self) -> dict[str, Action]:
        return {"log": self.lines}

    async def lines(self, report: Report, arguments: dict[str, str]) -> Result:
        """Those after number ``after``, or the last ones; of a level or above. Raises AdminError."""
        level, limit = arguments.get("level", "") or "debug", limit_of(arguments)
        after = arguments.get("after", "")
        if level not in LEVELS or (after and not (after.isascii() and after.isdigit() and len(after) < 20)):
            raise AdminError(400, f"level must be one of {', '.join(LEVELS)}, and after a number")
        wanted = [line for severity, line in list(self._lines) if severity >= LEVELS[level]]
        lost = 0
        if after:
            first = self._lines[0][1]["number"] if self._lines else 1
            lost = max(first - int(after) - 1, 0)
            lines = list(islice((line for line in wanted if line["number"] > int(after)), limit))
        else:
            lines = wanted[-limit:]
        following = lines[-1]["number"] if len(lines) == limit else self._last
        return {"lines": lines, "next": following, "lost": lost}
