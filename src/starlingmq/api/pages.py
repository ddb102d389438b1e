"""The dashboard and the API page: a few files of the package, read once and served from memory."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from starlingmq.api.guard import PAGE

KINDS: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
PAGES: Final = {
    "/": "index.html",
    "/docs": "docs.html",
    **{
        f"/ui/{name}": name
        for name in (
            "activity.js",
            "alarms.js",
            "app.js",
            "bans.js",
            "base.js",
            "chart.js",
            "docs.js",
            "icon.svg",
            "lists.js",
            "log.js",
            "map.js",
            "overview.js",
            "publish.js",
            "rules.js",
            "settings.js",
            "stream.js",
            "style.css",
            "tail.js",
            "trace.js",
            "views.js",
        )
    },
}
FRESH: Final = {"cache-control": "no-cache"}


def routes() -> list[HTTPRouteHandler]:
    return [_page(path, name) for path, name in PAGES.items()]


def _page(path: str, name: str) -> HTTPRouteHandler:
    body = files("starlingmq.api").joinpath("ui", name).read_bytes()
    kind = KINDS[name.rpartition(".")[2]]

    @get(path, include_in_schema=False, opt=PAGE)
    async def page() -> Response[bytes]:
        return Response(body, media_type=kind, headers=FRESH)

    return page
