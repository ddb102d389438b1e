"""Types and helpers for the parts of the HTTP side that handle ASGI requests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEAD_BYTES_MAX: Final = 32 << 10
SAFE: Final = ("GET", "HEAD")
CHANGING: Final = ("POST", "PUT", "PATCH", "DELETE")
CLOSE: Final = (b"connection", b"close")


class RequestRefused(Exception):
    """``status`` and one line for the client."""

    def __init__(self, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = list(headers)


async def refuse(send: Send, refusal: RequestRefused) -> None:
    body = json.dumps({"error": str(refusal)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *refusal.headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, wanted: bytes) -> str:
    """The first value of a header, "" if it is absent. ``Entrance`` has refused repeated headers where repetition
    matters."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


def has_body(scope: Scope) -> bool:
    """Whether bytes of a body follow the head."""
    return header(scope, b"content-length") not in ("", "0") or header(scope, b"transfer-encoding") != ""
