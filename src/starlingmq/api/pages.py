"""The dashboard and the API page: a few files of the package, read once and served from memory."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any, Final

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from starlingmq.api.entrance import POLICY
from starlingmq.api.guard import PAGE

KINDS: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
PAGES: Final = {"/": "index.html", "/docs": "docs.html"} | {
    f"/ui/{file.name}": file.name
    for file in files("starlingmq.api").joinpath("ui").iterdir()
    if file.name.endswith((".js", ".css", ".svg"))
}
FRESH: Final = {"cache-control": "no-cache"}
HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,253}(?=:\d{1,5}$|$)")  # a policy can name no IPv6 address


def routes() -> list[HTTPRouteHandler]:
    return [_page(path, name) for path, name in PAGES.items()]


def _page(path: str, name: str) -> HTTPRouteHandler:
    body = files("starlingmq.api").joinpath("ui", name).read_bytes()
    kind = KINDS[name.rpartition(".")[2]]

    @get(path, include_in_schema=False, opt=PAGE)
    async def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        return Response(body, media_type=kind, headers=FRESH | _policy(request.headers.get("host", "")))

    return page


def _policy(host: str) -> dict[str, str]:
    """The page may connect to the WebSocket listeners of the host it was loaded from, and to no other host."""
    name = HOST.match(host)
    sockets = f" ws://{name[0]}:* wss://{name[0]}:*" if name else ""
    return {"content-security-policy": f"{POLICY}; connect-src 'self'{sockets}"}
