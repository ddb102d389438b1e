"""A target outside of this broker that takes rows in batches, one batch after the other.

| outcome of a batch | then |
|---|---|
| stored | the rows are delivered |
| RefusedRows | its rows are sent one by one; one that is refused alone becomes a dead letter |
| UnusableTarget, or another error | the attempt ends: messages wait in the session, which sends again |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from starlingmq.config.rules_section import RuleSink
from starlingmq.config.secret_masking import without_login
from starlingmq.rules.rule_flow import Arrived, Work
from starlingmq.rules.sql_values import printable, size_of

log = logging.getLogger("starlingmq")

WAITING_BYTES: Final = 16 * 1024**2  # of rows, before messages are to wait in the session

Delivered = Callable[[Work, list[tuple[Arrived, str]]], None]
"""Called for each row that is done, with the work of its message, and the message with a reason if it is refused."""


class RefusedRows(Exception):
    """The target will never take these rows."""


class UnusableTarget(Exception):
    """The target takes nothing for now."""


class RuleTarget:
    """``ended`` is called with the problem when the target is of no use for now."""

    def __init__(self, sink: RuleSink, delivered: Delivered, ended: Callable[[str], None]) -> None:
        self.sink = sink
        self.shown = without_login(sink.url)
        self._delivered = delivered
        self._ended = ended
        self._rows: deque[tuple[Work, Arrived, Any]] = deque()
        self._size = 0  # of these rows
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises UnusableTarget, OSError."""

    async def write(self, rows: list[Any]) -> None:
        """Store all rows, or none. Raises RefusedRows, UnusableTarget, OSError."""
        raise NotImplementedError

    async def close(self) -> None:
        """Raises nothing."""

    async def begin(self) -> None:
        """Raises OSError."""
        try:
            await self.open()
        except UnusableTarget as error:
            raise ConnectionError(f"{self.shown}: {error}") from None
        self._task = asyncio.ensure_future(self._run())

    def offer(self, work: Work, message: Arrived, rows: list[Any]) -> None:
        self._rows.extend((work, message, row) for row in rows)
        self._size += sum(map(size_of, rows))
        self._wanted.set()

    def full(self) -> bool:
        return self._size >= WAITING_BYTES

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.close()

    async def _run(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                while self._rows:
                    rows = [self._rows.popleft() for _ in range(min(len(self._rows), self.sink.batch))]
                    self._size -= sum(size_of(row) for _, _, row in rows)
                    await self._send(rows)
        except (UnusableTarget, OSError) as error:
            self._ended(f"{self.shown}: {printable(str(error)) or type(error).__name__}")
        except Exception:
            log.exception("internal error in the target of a rule; please report it")
            self._ended("internal error")

    async def _send(self, rows: list[tuple[Work, Arrived, Any]]) -> None:
        try:
            await self.write([row for _, _, row in rows])
        except RefusedRows as error:
            if len(rows) > 1:
                for each in rows:
                    await self._send([each])
            else:
                self._delivered(rows[0][0], [(rows[0][1], str(error))])
        else:
            for work, _, _ in rows:
                self._delivered(work, [])
