"""Checks for each HTTP request before routing: the form of its head, its method, the spelling of its path.

A path must be spelled exactly as one of the served paths; otherwise the reply is 404. So nothing depends on how a
router reads ``//``, ``/./``, ``%2f``, ``;x``, a trailing slash, or a target that is a whole URL. ``Guard`` decides
whether a client may use the matched route.
"""

from __future__ import annotations

from typing import Final

from starlingmq.api.asgi import (
    CHANGING,
    CLOSE,
    HEAD_BYTES_MAX,
    SAFE,
    App,
    Message,
    Receive,
    RequestRefused,
    Scope,
    Send,
    has_body,
    refuse,
)
from starlingmq.api.guard import GUARD, VIEWS, Guard
from starlingmq.api.served import Served, serving
from starlingmq.net.listeners.forwarded import ForwardedError, client_address

POLICY: Final = "default-src 'self'; frame-ancestors 'none'; form-action 'none'"
HEADERS: Final = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
ONLY_VIEWS: Final = (b"starlingmq-rights", b"view")
"""Of a reply to a user who may only look: the dashboard hides what such a user may not do."""
ONCE: Final = (b"host", b"authorization", b"origin", b"content-length", b"transfer-encoding")
"""Headers that affect a decision: a request that repeats one of them is refused."""


class Entrance:
    """An ASGI application of one broker around the routed one, whose paths are ``paths``. ``guard`` decides for each
    request with a matching route whether it is served.

    The ``state`` of a scope has ``trusted_proxies`` of the listener, and ``fault`` of ``api.framing``.
    """

    def __init__(self, app: App, paths: frozenset[bytes], served: Served, guard: Guard) -> None:
        self._app = app
        self._paths = paths
        self._served = served
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        read = not has_body(scope)

        async def reading() -> Message:
            nonlocal read
            message = await receive()
            read = read or not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in given)]
                if scope["state"].get(VIEWS):
                    message["headers"].append(ONLY_VIEWS)
                if not read:  # the rest of the body must not be read as the next request
                    message["headers"].append(CLOSE)
            await send(message)

        try:
            self._check(scope)
        except RequestRefused as refusal:
            await refuse(answer, refusal)
            return
        serving.set(self._served)
        scope["state"][GUARD] = self._guard
        await self._app(scope, reading, answer)

    def _check(self, scope: Scope) -> None:
        """Raises RequestRefused."""
        fault = scope["state"]["fault"]
        if fault:
            raise RequestRefused(400, fault, [CLOSE])
        _check_headers(scope)
        if scope["method"] not in SAFE + CHANGING:
            raise RequestRefused(405, "this method is not supported", [(b"allow", b"GET, POST, DELETE")])
        if scope["raw_path"] not in self._paths:
            raise RequestRefused(404, "not found")
        scope["client"] = _client(scope)
        scope["state"]["user"] = ""


def _check_headers(scope: Scope) -> None:
    if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES_MAX:
        raise RequestRefused(431, f"the headers may have at most {HEAD_BYTES_MAX:,} bytes", [CLOSE])
    names = [name for name, _ in scope["headers"]]
    for name in ONCE:
        if names.count(name) > 1:
            raise RequestRefused(400, f"header {name.decode()} is present more than once")


def _client(scope: Scope) -> tuple[str, int]:
    """The address for bans and for counting failures."""
    peer = (scope.get("client") or ("", 0))[0]
    try:
        return client_address(peer, scope["headers"], scope["state"]["trusted_proxies"]), 0
    except ForwardedError as error:
        raise RequestRefused(400, str(error)) from None
