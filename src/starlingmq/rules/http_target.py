"""A URL that rows are POSTed to, as an array of JSON objects. 2xx stores them; REFUSED refuses them for good."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from starlingmq.rules.rule_target import RefusedRows, RuleTarget, UnusableTarget

try:
    import httpx
except ImportError as error:
    raise ImportError(f"its client is not installed ({error}): pip install 'starlingmq[rules]'") from None

REFUSED: Final = frozenset((400, 409, 413, 415, 422))
BODY_MAX: Final = 65_536  # bytes of an answer that are read
BODY_SECONDS: Final = 2.0  # for these
SHOWN: Final = 200


class HttpTarget(RuleTarget):
    _client: httpx.AsyncClient | None = None

    async def open(self) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "starlingmq", "Accept-Encoding": "identity"}
        if self.sink.token_file:
            token = (await asyncio.to_thread(Path(self.sink.token_file).read_bytes)).strip().decode("latin-1")
            if not token or not token.isascii() or not token.isprintable():  # the client would show it in its error
                raise UnusableTarget(f"{self.sink.token_file} must have one line of ASCII: the token")
            headers["Authorization"] = f"Bearer {token}"
        self._client = await asyncio.to_thread(httpx.AsyncClient, headers=headers, timeout=self.sink.timeout)

    async def write(self, rows: list[str]) -> None:
        assert self._client is not None
        body = "[" + ",".join(rows) + "]"
        try:
            request = self._client.build_request("POST", self.sink.url, content=body.encode(errors="replace"))
            async with asyncio.timeout(self.sink.timeout):  # that of the client begins again with each byte
                answer = await self._client.send(request, stream=True)
            text = await _begin_of(answer)
        except TimeoutError:
            raise UnusableTarget(f"no answer within {self.sink.timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
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
    """The begin of the body. One that is longer than BODY_MAX, or slow, or broken, is not read to its end, and its
    connection closed: the status has said all that counts."""
    found = b""
    try:
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(BODY_SECONDS):
                async for part in answer.aiter_raw():
                    found += part
                    if len(found) > BODY_MAX:
                        break
    finally:
        await answer.aclose()
    return found[: 4 * SHOWN].decode(errors="replace")[:SHOWN].strip()
