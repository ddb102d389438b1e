"""Lists a page at a time, taken from what may be a million, without anybody having to wait for it.

Sessions are numbered, and a number is never given again: it is the cursor. The page is the least numbers behind it, so
what is there all the time comes once, whatever comes and goes between two pages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
from collections.abc import Callable, Iterator
from typing import Final

from starlingmq.admin.plain import PAGE_MAX
from starlingmq.admin.problem import AdminError
from starlingmq.core.session import MOVED_PREFIX, Session

PIECE: Final = 1000  # sessions that are looked at before everybody else gets a turn: well below a millisecond


def of_clients(session: Session) -> bool:
    """Whether a session is a client's, and not another node's, a group's line, or on its way elsewhere."""
    return session.node == 0 and not session.is_line and not session.client_id.startswith(MOVED_PREFIX)


def number_after(cursor: str | None) -> int:
    """Raises AdminError."""
    if not cursor:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 20:
        raise AdminError(400, "cursor: take what the page before has as next")
    return int(cursor)


def pack(topic: bytes) -> str:
    return base64.urlsafe_b64encode(topic).decode()


def unpack(cursor: str | None) -> bytes:
    """Raises AdminError."""
    try:
        return base64.b64decode(cursor or "", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise AdminError(400, "cursor: take what the page before has as next") from None


def limit_of(arguments: dict[str, str]) -> int:
    """How many entries are asked for. Raises AdminError."""
    text = arguments.get("limit", "100")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= PAGE_MAX:
        raise AdminError(400, f"limit: 1 to {PAGE_MAX:,}")
    return int(text)


async def in_pieces(sessions: dict[str, Session]) -> list[Iterator[Session]]:
    """Those of now, in pieces between which others get their turn."""
    every = list(sessions.values())
    return [iter(every[start : start + PIECE]) for start in range(0, len(every), PIECE)]


async def page_of(
    sessions: dict[str, Session], wanted: Callable[[Session], bool], after: int, limit: int
) -> tuple[list[Session], str | None]:
    """The next ``limit`` of the sessions that are wanted, and the cursor behind them; None: there are no more."""
    found: list[Session] = []
    for piece in await in_pieces(sessions):
        matching = [one for one in piece if one.number > after and of_clients(one) and wanted(one)]
        found = heapq.nsmallest(limit + 1, found + matching, key=lambda one: one.number)
        await asyncio.sleep(0)
    more = len(found) > limit
    return found[:limit], str(found[limit - 1].number) if more else None
