"""The HTTP application: all routes, with their guard."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Final, cast

from litestar import Litestar, Request, Response, Router
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.types import ASGIApp
from msgspec import Struct

from starlingmq._version import __version__
from starlingmq.admin.operator_problem import AdminError
from starlingmq.api import declared_routes, live, login, pages, probes
from starlingmq.api.asgi import App, Receive, RequestRefused, Scope, Send
from starlingmq.api.document import Document
from starlingmq.api.entrance import Entrance
from starlingmq.api.guard import GUARD, Guard
from starlingmq.api.served import Served
from starlingmq.log import printable

log = logging.getLogger("starlingmq.http")

PREFIX: Final = "/api/v1"


class Problem(Struct, frozen=True):
    """The body of an error response."""

    error: str


def make_app(served: Served, guard: Guard) -> App:
    app = routed()
    paths = frozenset(route.path.encode() for route in app.routes)
    return Entrance(cast(App, app), paths, served, guard)  # Litestar's types are narrower than those of ASGI


def guarded(app: ASGIApp) -> ASGIApp:
    """The middleware of each route."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        await scope["state"][GUARD].pass_on(cast(App, app), scope, receive, send)

    return cast(ASGIApp, asked)


@cache
def routed() -> Litestar:
    """The application of this process."""
    parts = {"live": live.routes(), "login": login.routes(), **declared_routes.routes()}
    routers = [Router(PREFIX, route_handlers=handlers, tags=[tag]) for tag, handlers in parts.items()]
    return Litestar(
        route_handlers=[*pages.routes(), *probes.ROUTES, *routers],
        openapi_config=OpenAPIConfig(
            title="StarlingMQ",
            version=__version__,
            description="The API of one StarlingMQ node: state, statistics and operator actions.",
            path=f"{PREFIX}/openapi.json",  # Litestar answers unknown paths below this one with a page
            render_plugins=[Document(path="/")],
        ),
        middleware=[guarded],
        exception_handlers={
            Exception: _unexpected,
            HTTPException: _refused,
            AdminError: _not_done,
            RequestRefused: _not_done,
        },
        logging_config=None,
        debug=False,
    )


def _refused(_: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    """An error of the framework. For an invalid value it names the parameter."""
    text = error.detail
    if isinstance(error.extra, list):
        found = [f"{one.get('key', '')}: {one.get('message', '')}" for one in error.extra if isinstance(one, dict)]
        text = "; ".join(found) or text
    return Response(Problem(printable(" ".join(text.split()))), status_code=error.status_code, headers=error.headers)


def _not_done(_: Request[Any, Any, Any], error: AdminError | RequestRefused) -> Response[Problem]:
    return Response(Problem(printable(str(error))), status_code=error.status)


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Errors of StarlingMQ are one line for the operator; any other error is a bug."""
    if type(error).__module__.startswith("starlingmq."):
        return Response(Problem(printable(str(error))), status_code=409)
    if isinstance(error, RecursionError):
        return Response(Problem("the request body is nested too deeply"), status_code=400)
    log.error("internal error in %s %s", request.method, request.scope["path"], exc_info=error)
    return Response(Problem(f"unexpected {type(error).__name__}"), status_code=500)
