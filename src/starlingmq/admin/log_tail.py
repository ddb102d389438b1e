"""The last lines of this node's log, for operators who cannot read the log itself."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import NODE, action
from starlingmq.admin.printable import plain
from starlingmq.admin.sessions import when
from starlingmq.log import message_of

LINES_MAX: Final = 2000
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class LogLine(Struct, frozen=True):
    number: int
    time: str
    level: str
    logger: str
    message: str


class LogRequest(Struct, frozen=True):
    """Lines of ``level`` or above: those after number ``after``, or the last ones."""

    after: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=2**62,
                description="Position to continue from: ``next`` of the previous response. Default: the last lines.",
            ),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Minimum level of the lines.")] = (
        "info"
    )


class LogLines(Struct, frozen=True):
    """``next``: the value of ``after`` for the lines that follow."""

    lines: list[LogLine]
    next: int
    lost: Annotated[int, Meta(description="Lines that were discarded before they could be read.")]


class LogTail(logging.Handler):
    """Keeps lines of the logger ``starlingmq`` and of those below it, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[tuple[int, LogLine]] = deque(maxlen=LINES_MAX)  # level and line
        self._last = 0

    def start(self) -> None:
        logging.getLogger("starlingmq").addHandler(self)

    def stop(self) -> None:
        logging.getLogger("starlingmq").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._last += 1
        line = LogLine(
            self._last,
            when(record.created),
            record.levelname.lower(),
            record.name,
            plain(message_of(record)),
        )
        self._lines.append((record.levelno, line))  # a record would keep its arguments alive

    @action("log", "GET /log", NODE)
    async def log(self, request: LogRequest) -> LogLines:
        """Get the last lines of a node's log, or those after a position."""
        level, limit, after = request.level, request.limit, request.after
        wanted = [line for severity, line in list(self._lines) if severity >= LEVELS[level]]
        lost = 0
        if after is not None:
            first = self._lines[0][1].number if self._lines else 1
            lost = max(first - after - 1, 0)
            lines = list(islice((line for line in wanted if line.number > after), limit))
        else:
            lines = wanted[-limit:]
        return LogLines(lines, lines[-1].number if len(lines) == limit else self._last, lost)
