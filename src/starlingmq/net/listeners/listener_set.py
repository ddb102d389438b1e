"""The listeners of one broker: open while it serves clients, closed while it drains, then open again on the same
ports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from starlingmq.config.settings import ListenerConfig
from starlingmq.net.listeners.listeners import Listener, refuse_taken
from starlingmq.net.listeners.urls import ListenerSpec, parse_listener


class ListenerSet:
    """``open_one`` binds a listener. Raises ListenerError for invalid settings."""

    def __init__(self, settings: Iterable[ListenerConfig]) -> None:
        self.listeners: list[Listener] = []
        self._specs = [parse_listener(each) for each in settings]
        self._open_one: Callable[[ListenerSpec], Awaitable[Listener]] | None = None

    async def refuse_taken(self) -> None:
        """Raises ListenerError if one of them could not be opened now."""
        for spec in self._specs:
            await refuse_taken(asyncio.get_running_loop(), spec)

    async def open(self, open_one: Callable[[ListenerSpec], Awaitable[Listener]]) -> None:
        """Raises ListenerError; listeners that are open then are closed by ``close``."""
        self._open_one = open_one
        for spec in self._specs:
            self.listeners.append(await open_one(spec))

    async def close(self) -> None:
        """Accept no connections; present ones stay. May be called again."""
        for listener in self.listeners:
            listener.close()

    async def open_again(self) -> None:
        """Open again after ``close``, on the same ports. Raises ListenerError, and then all are closed."""
        assert self._open_one is not None, "open comes first"
        specs = [listener.bound for listener in self.listeners]
        opened: list[Listener] = []
        try:
            for spec in specs:
                opened.append(await self._open_one(spec))
        except BaseException:
            for listener in opened:
                listener.close()
            raise
        self.listeners = opened
