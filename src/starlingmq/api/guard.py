"""What every HTTP request goes through before it is looked at: who sends it, from where, and how much of it there is.

A browser of the operator is not the operator. A page from elsewhere may have it send requests, with what it remembers
of log-ins, and may call itself by a name that leads here (DNS rebinding). So a listener that asks nobody who he is
answers to names of this machine only, and nothing is changed for a page of another origin or by a form. No CORS header
is ever sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from starlingmq.api.access import Access
from starlingmq.auth.bans import Bans
from starlingmq.net.forwarded import ForwardedError, client_address

log = logging.getLogger("starlingmq.http")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEAD_BYTES_MAX: Final = 32 << 10
BODY_BYTES_MAX: Final = 2 << 20
BODY_SECONDS: Final = 30.0
SAFE: Final = ("GET", "HEAD")
CHANGING: Final = ("POST", "PUT", "PATCH", "DELETE")
ASKED: Final = ("/api/", "/metrics")  # for these one has to be somebody; the rest says nothing of anybody

CLOSE: Final = (b"connection", b"close")
HEADERS: Final = [
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; form-action 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]


class Refusal(Exception):
    """``status`` and one line for whoever asked."""

    def __init__(self, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = list(headers)


class Guard:
    """An ASGI application around another one. ``access`` and ``hosts`` may be replaced while it serves."""

    def __init__(self, app: App, access: Access, bans: Bans, hosts: Iterable[str]) -> None:
        self.app = app
        self.access = access
        self.bans = bans
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in given)]
            await send(message)

        try:
            headers = _headers(scope)
            scope["client"] = _client(scope)
            scope["state"]["user"] = await self._admit(scope, headers)
            body = await _body(scope, headers, receive)
            await self.app(scope, _replay(body, receive), answer)
        except Refusal as refusal:
            if not started:
                await _refuse(answer, refusal)

    async def _admit(self, scope: Scope, headers: dict[str, str]) -> str:
        """The name of who may go on. Raises Refusal."""
        method, path = scope["method"], scope["path"]
        if method not in SAFE + CHANGING:
            raise Refusal(405, f"there is no {method} here", [(b"allow", b"GET, POST, DELETE")])
        if path.startswith("/health/"):
            return ""
        if not self.access.asks and not self._is_ours(headers.get("host", "")):
            raise Refusal(421, "this listener is for its own machine; auth.api.hosts can name others")
        who = ""
        if self.access.asks and path.startswith(ASKED):
            who = await self._identify(scope, headers)
        if method in CHANGING:
            self._check_origin(headers)
        return who

    def _is_ours(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname if _plain(host) else None
        if name is None:
            return False
        if name == "localhost" or name in self.hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _check_origin(self, headers: dict[str, str]) -> None:
        """For what changes something. A program sends none of these headers, a browser cannot leave them out."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refusal(403, "a page of another site may not change anything here")
        origin = headers.get("origin")
        if origin is None:
            return
        authority = urlsplit(origin).netloc.lower() if _plain(origin) else ""
        name = authority.rpartition(":")[0] or authority
        if not authority or (authority != headers.get("host", "").lower() and name not in self.hosts):
            raise Refusal(403, "a page of another origin may not change anything here")

    async def _identify(self, scope: Scope, headers: dict[str, str]) -> str:
        address = scope["client"][0]
        authorization = headers.get("authorization", "")
        now = monotonic()
        name = self.access.name_in(authorization)
        if self.bans.of(now, address, name, "") is not None:
            raise Refusal(403, "banned for a while")
        who = await self.access.who(authorization, f"{address}:0")
        if who is not None:
            return who
        if authorization:
            delay, ban = self.bans.failed(now, address, name)
            if ban is not None:
                log.warning("%s is banned for %.0f s: %s", ban.name, ban.until - now, ban.reason)
            await asyncio.sleep(delay)
        raise Refusal(401, "a token or a password is needed", [(b"www-authenticate", b'Bearer realm="starlingmq"')])


def _headers(scope: Scope) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES_MAX:
        raise Refusal(431, f"the headers have {HEAD_BYTES_MAX:,} bytes at most", [CLOSE])
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in ("host", "authorization", "origin", "content-length") and name in found:
            raise Refusal(400, f"more than one header {name}")
        found[name] = value.decode("latin-1")
    return found


def _client(scope: Scope) -> tuple[str, int]:
    """The address that bans and failures count for; ``trusted_proxies`` are those of the listener."""
    peer = (scope.get("client") or ("", 0))[0]
    try:
        return client_address(peer, scope["headers"], scope["state"]["trusted_proxies"]), 0
    except ForwardedError as error:
        raise Refusal(400, str(error)) from None


def _plain(text: str) -> bool:
    """Whether it can be taken apart as part of a URL without surprises."""
    if not text.isprintable() or " " in text or "\\" in text or "@" in text:
        return False
    try:
        urlsplit(text if "://" in text else f"//{text}").port  # noqa: B018  raises for what is no port
    except ValueError:
        return False
    return True


async def _body(scope: Scope, headers: dict[str, str], receive: Receive) -> bytes:
    """All of it. Raises Refusal for what is too much, too slow, or what a form could send."""
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > BODY_BYTES_MAX:
        raise Refusal(413, f"a request has {BODY_BYTES_MAX:,} bytes at most", [CLOSE])
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the request ended early")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > BODY_BYTES_MAX:
                    raise Refusal(413, f"a request has {BODY_BYTES_MAX:,} bytes at most", [CLOSE])
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refusal(408, "the request took too long", [CLOSE]) from None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if size and scope["method"] in CHANGING and kind != "application/json":
        raise Refusal(415, "a body is sent as application/json")
    return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": str(refusal)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *refusal.headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
