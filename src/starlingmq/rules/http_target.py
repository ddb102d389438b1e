"""A URL that rows are POSTed to, as an array of JSON objects. 2xx stores them; REFUSED refuses them for good."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from starlingmq.rules.rule_target import RefusedRows, RuleTarget, UnusableTarget

try:
    import httpx
except ImportError as error:
    raise ImportError(f"its client is not installed ({error}): pip install 'starlingmq[rules]'") from None

REFUSED: Final = frozenset((400, 409, 413, 415, 422))
BODY_MAX: Final = 65_536  # bytes of an answer that are read
SHOWN: Final = 200


class HttpTarget(RuleTarget):
    _client: httpx.AsyncClient | None = None

    async def open(self) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "starlingmq"}
        if self.sink.token_file:
            token = await asyncio.to_thread(Path(self.sink.token_file).read_text)
            headers["Authorization"] = f"Bearer {token.strip()}"
        self._client = await asyncio.to_thread(httpx.AsyncClient, headers=headers, timeout=self.sink.timeout)

    async def write(self, rows: list[str]) -> None:
        assert self._client is not None
        body = "[" + ",".join(rows) + "]"
        try:
            async with self._client.stream("POST", self.sink.url, content=body) as answer:
                text = await _begin_of(answer)
        except httpx.HTTPError as error:
            raise UnusableTarget(str(error) or type(error).__name__) from None
        if answer.is_success:
            return
        said = f"it answers {answer.status_code} {answer.reason_phrase}".rstrip()
        if answer.status_code not in REFUSED:
            raise UnusableTarget(said)
        raise RefusedRows(f"{said}: {text}" if text else said)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _begin_of(answer: httpx.Response) -> str:
    """The begin of the body. A longer one than BODY_MAX is not read to its end, and its connection closed."""
    found = b""
    async for part in answer.aiter_bytes():
        found += part
        if len(found) > BODY_MAX:
            break
    return found[: 4 * SHOWN].decode(errors="replace")[:SHOWN].strip()
