"""Lame duck mode: a leaving node sends its NATS clients to other nodes, spread over time.

All clients, including new ones, get INFO with ``ldm`` first. Then they are closed one after the other, oldest first,
evenly over the available time. None comes back here, since the listeners are closed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import Context
from starlingmq.core.session.session import Client

TICK: Final = 0.05  # minimum seconds between two ticks
CLOSED_PER_LOOK: Final = 1000


class LameDuck:
    due_at: float  # next call of ``tick``; 0.0: not leaving, or no client is left
    begun: bool
    closed: int  # clients closed so far
    _ctx: Context
    _ending: Ending
    _clients: dict[int, Client]
    _send_info_to_all: Callable[[], None]
    _end: float
    _each: float  # seconds per client

    def __init__(
        self, ctx: Context, ending: Ending, clients: dict[int, Client], send_info_to_all: Callable[[], None]
    ) -> None:
        """``clients``: all clients, the oldest first. ``send_info_to_all`` sends them INFO again."""
        self.due_at = 0.0
        self.begun = False
        self.closed = 0
        self._ctx = ctx
        self._ending = ending
        self._clients = clients
        self._send_info_to_all = send_info_to_all
        self._end = 0.0
        self._each = 0.0

    def begin(self, now: float, seconds: float) -> None:
        """Close the last client ``seconds`` from now. May be called again: the earlier end counts."""
        if self.begun and now + seconds >= self._end:
            return
        self._end = now + seconds
        self._each = seconds / max(1, len(self._clients))
        self.due_at = now + max(TICK, self._each)
        if not self.begun:
            self.begun = True
            self.closed = 0
            self._send_info_to_all()

    def cancel(self) -> None:
        """The node stays: close no more clients, and tell all of them."""
        if self.begun:
            self.begun = False
            self.due_at = self._end = 0.0
            self._send_info_to_all()

    def tick(self) -> None:
        now = self._ctx.now
        if self.due_at == 0.0 or now < self.due_at:
            return
        clients = self._clients
        stay = math.ceil((self._end - now) / self._each) if now < self._end else 0
        for client in list(clients.values())[: min(len(clients) - stay, CLOSED_PER_LOOK)]:
            self._ending.close(client, "lame duck")
            self.closed += 1
        self.due_at = now + max(TICK, min(self._each, self._end - now)) if clients else 0.0
