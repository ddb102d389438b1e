"""The last lines of this node's log, for operators who cannot read the log itself: as they come, or searched at all
nodes."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from time import time
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from starlingmq.admin.action_log import Moment, moment
from starlingmq.admin.declared_actions import ALL, NODE, action
from starlingmq.admin.printable import plain
from starlingmq.admin.sessions import when
from starlingmq.log import message_of

LINES_MAX: Final = 2000
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
Level = Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Minimum level of the lines.")]


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
    level: Level = "info"


class LogLines(Struct, frozen=True):
    """``next``: the value of ``after`` for the lines that follow."""

    lines: list[LogLine]
    next: int
    lost: Annotated[int, Meta(description="Lines that were discarded before they could be read.")]


class LineSearch(Struct, frozen=True):
    client: Annotated[str, Meta(max_length=65535, description="Only lines about the client with this client id.")] = ""
    text: Annotated[str, Meta(max_length=1000, description="Only lines that contain this text, in any case.")] = ""
    level: Level = "debug"
    since: Moment = ""
    until: Moment = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of lines of each node: the last ones.")] = 200


class FoundLine(Struct, frozen=True):
    time: str
    level: str
    message: str
    client_id: Annotated[str, Meta(description="The client that it is about; empty: none.")] = ""
    node: str = ""


class LogTail(logging.Handler):
    """Keeps lines of the logger ``starlingmq`` and of those below it, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[tuple[int, LogLine]] = deque(maxlen=LINES_MAX)  # level and line
        self._about: deque[tuple[float, str]] = deque(maxlen=LINES_MAX)  # when, and the client
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
        self._about.append((record.created, str(getattr(record, "client_id", ""))))

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

    @action(
        "lines",
        "GET /log/search",
        ALL,
        order={"lines": lambda found: sorted(found, key=lambda one: one.time, reverse=True)},
        download="log.jsonl",
    )
    async def search(self, request: LineSearch) -> list[FoundLine]:
        """Search the last 2,000 lines of the log of each node. The last ones first. Raises AdminError."""
        now = time()
        since, until = moment("since", request.since, now) or 0.0, moment("until", request.until, now) or now + 1e9
        text = request.text.lower()
        named = repr(request.client)
        found = []
        for (severity, line), (at, client_id) in zip(list(self._lines), list(self._about), strict=True):
            about = request.client in ("", client_id) or named in line.message
            if severity >= LEVELS[request.level] and since <= at < until and about and text in line.message.lower():
                found.append(FoundLine(line.time, line.level, line.message, plain(client_id)))
        return found[: -request.limit - 1 : -1]
