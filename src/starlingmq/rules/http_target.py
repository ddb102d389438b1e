"""A URL that rows are POSTed to, as an array of JSON objects, one request after the other.

| answer | then |
|---|---|
| 2xx | the rows are delivered |
| 400, 409, 413, 415, 422 | the rows of the request are sent one by one; one that is refused alone is a dead letter |
| another one, or none | the attempt ends: messages wait in the session, which sends again |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from starlingmq.config.rules_section import RuleSink
from starlingmq.rules.rule_flow import Arrived, Work

try:
    import httpx
except ImportError as error:
    raise ImportError(f"its client is not installed ({error}): pip install 'starlingmq[rules]'") from None

REFUSED: Final = frozenset((400, 409, 413, 415, 422))
SHOWN: Final = 200

Delivered = Callable[[Work, int, list[tuple[Arrived, str]]], None]
"""Called with a message's work, how many of its rows are done, and those that are refused for good, with a reason."""


class HttpTarget:
    """``ended`` is called with the problem when the target is of no use for now."""

    def __init__(self, sink: RuleSink, delivered: Delivered, ended: Callable[[str], None]) -> None:
        self._sink = sink
        self._delivered = delivered
        self._ended = ended
        self._rows: deque[tuple[Work, Arrived, str]] = deque()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Raises OSError if the file of the token cannot be read."""
        headers = {"Content-Type": "application/json", "User-Agent": "starlingmq"}
        if self._sink.token_file:
            token = await asyncio.to_thread(Path(self._sink.token_file).read_text)
            headers["Authorization"] = f"Bearer {token.strip()}"
        client = await asyncio.to_thread(httpx.AsyncClient, headers=headers, timeout=self._sink.timeout)
        self._task = asyncio.ensure_future(self._run(client))

    def offer(self, work: Work, message: Arrived, texts: list[str]) -> None:
        self._rows.extend((work, message, text) for text in texts)
        self._wanted.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, client: httpx.AsyncClient) -> None:
        async with client:
            try:
                while True:
                    await self._wanted.wait()
                    self._wanted.clear()
                    while self._rows:
                        await self._send(
                            [self._rows.popleft() for _ in range(min(len(self._rows), self._sink.batch))], client
                        )
            except httpx.HTTPError as error:
                self._ended(f"{self._sink.url}: {error or type(error).__name__}")
            except Unusable as error:
                self._ended(f"{self._sink.url}: {error}")

    async def _send(self, rows: list[tuple[Work, Arrived, str]], client: httpx.AsyncClient) -> None:
        answer = await client.post(self._sink.url, content="[" + ",".join(text for _, _, text in rows) + "]")
        if answer.is_success:
            for work, _, _ in rows:
                self._delivered(work, 1, [])
            return
        said = f"it answers {answer.status_code} {answer.reason_phrase}".rstrip()
        if answer.status_code not in REFUSED:
            raise Unusable(said)
        if len(rows) > 1:
            for each in rows:
                await self._send([each], client)
            return
        work, message, _ = rows[0]
        text = answer.text[:SHOWN].strip()
        self._delivered(work, 1, [(message, f"{said}: {text}" if text else said)])


class Unusable(Exception):
    """The target takes nothing for now."""
