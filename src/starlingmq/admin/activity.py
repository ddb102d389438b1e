"""Who does most at the moment: rates of clients, from two looks at what was counted of each.

A look goes over all clients, some a turn, and is good for a second: whoever asks meanwhile gets the same answer. Nobody
looks while nobody asks.
"""

from __future__ import annotations

import asyncio
import heapq
from operator import itemgetter
from typing import Any, Final

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import PIECE, limit_of
from starlingmq.admin.sessions import count_of, queued
from starlingmq.core.session.session import Client
from starlingmq.net.control_socket import Action, Report
from starlingmq.net.driver import Driver

FRESH: Final = 1.0  # seconds between two looks
FORGOTTEN_SECONDS: Final = 30.0  # after the last one
KEYS: Final = ("messages_in", "bytes_in", "bytes_out", "queued", "dropped", "subscriptions")

Result = dict[str, Any]


class NodeActivity:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._before: dict[Client, tuple[int, int, int]] = {}
        self._looked_at = 0.0
        self._rows: list[Result] = []
        self._seconds = 0.0  # that the rates are of
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def actions(self) -> dict[str, Action]:
        return {"activity": self.activity}

    async def activity(self, report: Report, arguments: dict[str, str]) -> Result:
        """The clients with most of ``sort``; without rates (``seconds`` 0) at the first look. Raises AdminError."""
        key, limit = arguments.get("sort", "") or KEYS[0], limit_of(arguments)
        if key not in KEYS:
            raise AdminError(400, f"sort: must be one of {', '.join(KEYS)}")
        if self._driver.loop.time() >= self._looked_at + FRESH:
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._look())
            await asyncio.shield(self._task)
        self.stop()
        self._timer = self._driver.loop.call_later(FORGOTTEN_SECONDS, self._forget)
        most = heapq.nlargest(limit, self._rows, key=itemgetter(key))
        return {"clients": most, "seconds": self._seconds, "connected": len(self._rows)}

    def _forget(self) -> None:
        self._before, self._rows = {}, []

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _look(self) -> None:
        now = self._driver.loop.time()
        seconds = now - self._looked_at if self._before else 0.0
        before, after, rows = self._before, {}, []
        for place, client in enumerate(list(self._driver.clients)):
            if place % PIECE == PIECE - 1:
                await asyncio.sleep(0)
            session = client.session
            if session is None or client.link:
                continue
            counted = after[client] = client.published, client.bytes_in, client.bytes_out
            last = before.get(client, (0, 0, 0) if seconds else counted)
            rates = [(new - old) / seconds if seconds else 0.0 for new, old in zip(counted, last, strict=True)]
            rows.append(
                {
                    "client_id": session.client_id,
                    "peer": client.peer,
                    "messages_in": round(rates[0], 1),
                    "bytes_in": round(rates[1]),
                    "bytes_out": round(rates[2]),
                    "queued": queued(session),
                    "dropped": session.dropped,
                    "subscriptions": count_of(session),
                    "slow": client.blocked or session.stalled,
                }
            )
        self._before, self._rows, self._seconds, self._looked_at = after, rows, round(seconds, 3), now
