"""Logins by OpenID Connect over HTTP. Other logins need no route: each request brings its token or password."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from starlingmq.api.guard import GUARD, LOGIN, PAGE, Guard
from starlingmq.auth.oidc_outcome import LoggedIn, Started

if TYPE_CHECKING:
    from starlingmq.api.oidc_login import OidcLogin

log = logging.getLogger("starlingmq.http")

T = TypeVar("T")
Text = Annotated[str, Meta(max_length=4096)]


class LoginOffer(Struct, frozen=True):
    """``provider``: the host of the provider; "" if there is none."""

    provider: str


class LoginReturn(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters with which the provider has sent the browser back, and the attempt of the tab that began the
    login."""

    code: Text
    state: Text
    attempt: Text
    issuer: Text = ""


def _guard(request: Request[Any, Any, Any]) -> Guard:
    guard: Guard = request.scope["state"][GUARD]
    return guard


async def _by_provider(request: Request[Any, Any, Any], step: Callable[[OidcLogin], Awaitable[T]]) -> T:
    return await _guard(request).log_in_by_provider(_address(request), step)


def _address(request: Request[Any, Any, Any]) -> str:
    client = request.scope["client"]
    return client[0] if client else ""


def routes() -> list[HTTPRouteHandler]:
    @get("/login", summary="Get the OpenID Connect provider that the dashboard offers for logins", opt=PAGE)
    async def offered(request: Request[Any, Any, Any]) -> LoginOffer:
        oidc = _guard(request).access.oidc
        return LoginOffer("" if oidc is None else oidc.host)

    @post("/login/start", summary="Begin a login by OpenID Connect", status_code=200, opt=LOGIN)
    async def start(request: Request[Any, Any, Any]) -> Started:
        return await _by_provider(request, lambda oidc: oidc.start())

    @post("/login/finish", summary="Finish a login by OpenID Connect", status_code=200, opt=LOGIN)
    async def finish(request: Request[Any, Any, Any], data: JSONBody[LoginReturn]) -> LoggedIn:
        found = await _by_provider(request, lambda oidc: oidc.finish(data.code, data.state, data.attempt, data.issuer))
        log.info("%s logged in to the HTTP API from %s as %s", found.user, _address(request), found.role)
        return found

    return [offered, start, finish]
