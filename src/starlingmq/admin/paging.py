"""Lists, one page at a time, of up to millions of entries, without holding up other work.

Sessions are numbered, and no number is used twice. The cursor is such a number, and a page has the lowest numbers above
it. So a session that exists throughout is listed exactly once, whatever sessions begin and end between two pages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

from msgspec import MsgspecError, json

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.printable import PAGE_MAX
from starlingmq.core.reports.session_totals import of_clients
from starlingmq.core.session.session import Session

PIECE: Final = 1000  # sessions per turn of the event loop: well below a millisecond
NUMBER: Final = attrgetter("number")
PLACE: Final = itemgetter(0)
WRONG_CURSOR: Final = "cursor: must be the value of next in the previous page"

P = TypeVar("P")
T = TypeVar("T")


def number_after(cursor: str | None) -> int:
    """Raises AdminError."""
    if not cursor:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 20:
        raise AdminError(400, WRONG_CURSOR)
    return int(cursor)


def pack(topic: bytes) -> str:
    return base64.urlsafe_b64encode(topic).decode()


def unpack(cursor: str | None) -> bytes:
    """Raises AdminError."""
    try:
        return base64.b64decode(cursor or "", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise AdminError(400, WRONG_CURSOR) from None


def place_of(cursor: str, kind: Any) -> Any:
    """The place of a sorted list, of type ``kind``, behind which a page begins; None: its beginning. Raises
    AdminError."""
    if not cursor:
        return None
    try:
        return json.decode(unpack(cursor), type=kind)
    except MsgspecError:
        raise AdminError(400, WRONG_CURSOR) from None


def first_of(rows: list[tuple[P, T]], limit: int, descending: bool, more: bool) -> tuple[list[T], str | None]:
    """The page of rows from several nodes, each with its place, and the cursor behind it. ``more``: a node may have
    further rows."""
    rows.sort(key=PLACE, reverse=descending)
    page = rows[:limit]
    following = pack(json.encode(page[-1][0])) if page and (more or len(rows) > limit) else None
    return [entry for _, entry in page], following


def limit_of(arguments: dict[str, str]) -> int:
    """The requested number of entries. Raises AdminError."""
    text = arguments.get("limit", "100")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= PAGE_MAX:
        raise AdminError(400, f"limit: must be 1 to {PAGE_MAX:,}")
    return int(text)


def in_pieces(sessions: dict[str, Session]) -> Iterator[list[Session]]:
    """The sessions as of now. The caller lets other tasks run between two pieces."""
    every = list(sessions.values())
    return (every[start : start + PIECE] for start in range(0, len(every), PIECE))


async def page_of(
    sessions: dict[str, Session], wanted: Callable[[Session], bool], after: int, limit: int
) -> tuple[list[Session], str | None]:
    """The next ``limit`` of the wanted sessions, and the cursor behind them; None if the list ends.

    Sessions are nearly in the order of their numbers, so as soon as a page is full most other sessions are outside it.
    """
    found: list[Session] = []
    beyond = sys.maxsize  # sessions with this number or above are not on the page
    for piece in in_pieces(sessions):
        matching = [one for one in piece if after < one.number < beyond and of_clients(one) and wanted(one)]
        if matching:
            found = heapq.nsmallest(limit + 1, found + matching, key=NUMBER)
            if len(found) > limit:
                beyond = found[limit].number
        await asyncio.sleep(0)
    more = len(found) > limit
    return found[:limit], str(found[limit - 1].number) if more else None
