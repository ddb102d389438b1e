"""The body of a request: read completely, bounded in size and time, before the request is handled."""

from __future__ import annotations

import asyncio
from typing import Final

from starlingmq.api.asgi import CHANGING, CLOSE, Message, Receive, RequestRefused, Scope, header

BODY_BYTES_MAX: Final = 2 << 20
OPEN_BODY_BYTES_MAX: Final = 32 << 10  # of routes without a login, so of strangers
BODY_SECONDS: Final = 30.0


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """Raises RequestRefused for a body that is too large, too slow, or could come from an HTML form."""
    length = header(scope, b"content-length") or "0"
    if not length.isdigit() or int(length) > most:
        raise RequestRefused(413, f"the request body may have at most {most:,} bytes", [CLOSE])
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestRefused(400, "the request ended before its body was complete")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise RequestRefused(413, f"the request body may have at most {most:,} bytes", [CLOSE])
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise RequestRefused(408, "the request was not received in time", [CLOSE]) from None
    kind = header(scope, b"content-type").partition(";")[0].strip().lower()
    if size and scope["method"] in CHANGING and kind != "application/json":
        raise RequestRefused(415, "the request body must be application/json")
    return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` for the application that returns the whole body at once."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
