"""Authorization of requests, by the route that a request was matched to.

Invariant: each route requires a login, unless its handler says otherwise with one of ``OPEN``. No decision looks at the
text of a path.

| ``opt`` of the handler | served to |
|---|---|
| none | clients with a token or a password; all clients if no login is required (see below) |
| ``PAGE`` | all: the files of the dashboard, which hold nothing about the broker |
| ``HEALTH`` | all, under any host name, since probes use addresses |
| ``LOGIN`` | all except pages of other sites, if there is a provider: the steps of a login by OpenID Connect |
| ``CONTENT`` | as none, but not to ``auth.api.viewers``: it shows what messages contain |

No login is required at loopback listeners alone, while clients of MQTT and NATS need none either. A request that came
through a proxy is refused then: the proxy may serve a network.

The operator's browser may act for others. A page of another site may make it send requests with remembered credentials,
and may use a host name that resolves to this machine (DNS rebinding). So a listener without logins answers only to
names of this machine, and no request of another origin or from a form can change anything. Pages of other sites get
nothing but what a link leads to: the browser names them by ``Sec-Fetch-Site``. CORS headers are never sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from starlingmq.api.asgi import CHANGING, App, Receive, RequestRefused, Scope, Send, header, refuse
from starlingmq.api.authorization import BEARER, Busy, HttpAuthorization
from starlingmq.api.body import BODY_BYTES_MAX, OPEN_BODY_BYTES_MAX, read_body, replay
from starlingmq.api.connection_limit import Slots
from starlingmq.auth.automatic_bans import AutomaticBans
from starlingmq.auth.oidc_outcome import OidcError, ProviderUnavailable
from starlingmq.config.api_section import NO_LOGIN_YET, SET_LOGIN
from starlingmq.core.limits.address_key import network_key
from starlingmq.log import SparingLog
from starlingmq.net.own_origin import is_own, is_plain

if TYPE_CHECKING:
    from starlingmq.api.oidc_login import OidcLogin

log = logging.getLogger("starlingmq.http")

T = TypeVar("T")

GOES_ON: Final = "goes_on"  # in the state of a request: a function that tells whether its client would be admitted now
GUARD: Final = "guard"  # in the same: that of the broker
VIEWS: Final = "only_views"  # in the same: whether its client may only look
OPEN: Final = "open_to_all"  # the key in ``opt`` of a handler
SHOWS_CONTENT: Final = "shows_content"  # the key in ``opt`` of a handler
CONTENT: Final = {SHOWS_CONTENT: True}
PAGE: Final = {OPEN: "page"}
HEALTH: Final = {OPEN: "health"}
LOGIN: Final = {OPEN: "login"}

PROXIED: Final = frozenset((b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip"))  # headers of proxies
REQUESTS_MAX: Final = 64
LOG_IN: Final = "a token or a password is required"
ONLY_VIEWS: Final = "this user may look, but change nothing and not see messages (auth.api.viewers)"
BANNED: Final = "this address or user is banned for a while"
ENDED: Final = "the session has ended; log in again"
WHO: Final = (b"www-authenticate", b'Bearer realm="starlingmq"')
LOG_INS_MAX: Final = 64  # being checked, or wrong and delayed; fewer than the connections of an address
LOG_INS_PER_ADDRESS: Final = 16
PROVIDER_LOG_INS_MAX: Final = 32  # waiting for the OpenID Connect provider, which may be slow
PROVIDER_LOG_INS_PER_ADDRESS: Final = 4
NAME_SHOWN: Final = 128  # characters of a user name in the log
REFUSALS: Final = {
    "password": "wrong user name or password",
    "token": "wrong token",
    "banned": "the address or the user is banned",
    "busy": "too many logins wait for verification",
    "proxied": "it came through a proxy, whose clients need a login",
    "unset": NO_LOGIN_YET,
    "oidc": "by OpenID Connect: %s",
    "provider": "the OpenID Connect provider is not available: %s",
}
BANNED_SECONDS: Final = 1.0  # delay of a wrong login from a banned address


class Guard:
    """``access`` and ``hosts`` may be replaced while serving. ``refused`` counts failed logins by their reason, and
    ``lines`` logs them."""

    def __init__(
        self,
        access: HttpAuthorization,
        bans: AutomaticBans,
        hosts: Iterable[str],
        refused: Counter[str],
        lines: SparingLog,
    ) -> None:
        self.access = access
        self.bans = bans
        self.hosts = frozenset(host.lower() for host in hosts)
        self.refused = refused
        self.lines = lines
        self._requests = Slots(REQUESTS_MAX, REQUESTS_MAX, "requests")
        self._log_ins = Slots(LOG_INS_MAX, LOG_INS_PER_ADDRESS, "log-ins")
        self._at_provider = Slots(PROVIDER_LOG_INS_MAX, PROVIDER_LOG_INS_PER_ADDRESS, "log-ins")

    async def pass_on(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._admit(scope)
            is_open = OPEN in scope["route_handler"].opt
            body = await read_body(scope, receive, OPEN_BODY_BYTES_MAX if is_open else BODY_BYTES_MAX)
            self._admit_again(scope)
            with self._requests.taken("") if not is_open else nullcontext():
                await app(scope, replay(body, receive), send)
        except RequestRefused as refusal:
            await refuse(send, refusal)

    async def _admit(self, scope: Scope) -> None:
        """Raises RequestRefused."""
        open_to = scope["route_handler"].opt.get(OPEN)
        if open_to == HEALTH[OPEN]:
            return
        if open_to in (None, LOGIN[OPEN]) and _from_another_site(scope):
            raise RequestRefused(403, "requests by pages of another site are not answered")
        if open_to == LOGIN[OPEN]:
            self._logins()
        host = header(scope, b"host")
        if open_to is None and not self.access.asks:
            self._refuse_proxied(scope)
        if not self.access.asks and not is_own(host, self.hosts):
            raise RequestRefused(421, "this host name is not allowed; use localhost, or add the name to auth.api.hosts")
        if open_to is None:
            authorization = header(scope, b"authorization")
            operates = SHOWS_CONTENT in scope["route_handler"].opt or scope["method"] in CHANGING
            proof = None
            if self.access.asks:
                access = self.access
                scope["state"]["user"] = await self._identify(scope)
                scope["state"][VIEWS] = access.only_views(authorization)
                if scope["state"][VIEWS] and operates:
                    raise RequestRefused(403, ONLY_VIEWS)
                proof = access.proof_of(authorization)
            scope["state"][GOES_ON] = partial(self._goes_on, authorization, proof, operates, scope["state"]["user"])
        if scope["method"] in CHANGING:
            self._check_origin(scope, host)

    def _refuse_proxied(self, scope: Scope) -> None:
        """A proxy on this machine comes from loopback; its clients may not. Raises RequestRefused."""
        through = [name.decode() for name, _ in scope["headers"] if name in PROXIED]
        if through:
            self._note_refusal("proxied", scope["client"][0], "")
            why = f"{REFUSALS['proxied']} (it has {through[0]})"
            raise RequestRefused(403, f"the request is refused: {why}; {SET_LOGIN}")

    def _admit_again(self, scope: Scope) -> None:
        """Users may have changed while the body arrived, however slowly. Raises RequestRefused."""
        goes_on = scope["state"].get(GOES_ON)
        if goes_on is not None and not goes_on():
            raise RequestRefused(401, LOG_IN, [WHO])

    def _goes_on(self, authorization: str, proof: object, operates: bool, user: str) -> bool:
        """Whether a client that was admitted would be admitted now, by the present tokens and users: for long-running
        replies. ``operates``: a viewer would not."""
        holds = self.access.holds(authorization, proof) and not self._is_banned(user)
        return holds and not (operates and self.access.only_views(authorization))

    def _check_origin(self, scope: Scope, host: str) -> None:
        """For requests that change something. Programs send none of these headers, and browsers cannot omit them."""
        origin = header(scope, b"origin")
        if not any(name == b"origin" for name, _ in scope["headers"]):
            return
        authority = urlsplit(origin).netloc.lower() if is_plain(origin) else ""
        if not authority or (authority != host.lower() and not self._is_a_name_of_ours(authority, host)):
            raise RequestRefused(403, "requests from another origin must not change anything")

    def _is_a_name_of_ours(self, authority: str, host: str) -> bool:
        """Whether a page's origin is a configured name, as a proxy in front of this listener serves it: without a port,
        or with the port of this request. A page at another port of that host is another site's."""
        name, _, port = authority.partition(":")
        return name in self.hosts and port in ("", host.partition(":")[2])

    async def _identify(self, scope: Scope) -> str:
        """The name of the client. A valid token is accepted even from a banned address; a session ends with a ban of
        its user."""
        authorization = header(scope, b"authorization")
        who = self.access.by_token(authorization)
        if who is not None:
            if self._is_banned(who):
                raise RequestRefused(403, BANNED)
            return who
        if not self.access.has_login:
            self._note_refusal("unset", scope["client"][0], "")
            raise RequestRefused(401, NO_LOGIN_YET)
        if not authorization:
            raise RequestRefused(401, LOG_IN, [WHO])
        if self.access.has_ended(authorization):
            raise RequestRefused(401, ENDED, [WHO])
        with self._log_ins.taken(network_key(scope["client"][0])):
            return await self._log_in(authorization, scope["client"][0])

    async def _log_in(self, authorization: str, address: str) -> str:
        name = self.access.name_in(authorization)
        try:
            self._refuse_banned(address, name)
        except RequestRefused:
            await asyncio.sleep(BANNED_SECONDS)
            raise
        try:
            who = await self.access.by_password(authorization, f"{address}:0")
        except Busy:
            self._note_refusal("busy", address, name)
            raise RequestRefused(
                503, "too many logins wait for verification; try again later", [(b"retry-after", b"1")]
            ) from None
        if who is not None:
            return who
        reason = "password" if self.access.is_basic(authorization) else "token"
        self._note_refusal(reason, address, name)
        await asyncio.sleep(self._count_failure(address, name))
        raise RequestRefused(401, REFUSALS[reason], [WHO])

    def _is_banned(self, user: str) -> bool:
        """Whether an operator has banned a user by name. A token of the file has no user."""
        return user != BEARER and self.bans.of(monotonic(), "", user, "") is not None

    def _logins(self) -> OidcLogin:
        """Raises RequestRefused."""
        if self.access.oidc is None:
            raise RequestRefused(404, "this broker has no OpenID Connect provider (auth.api.oidc)")
        return self.access.oidc

    async def log_in_by_provider(self, address: str, step: Callable[[OidcLogin], Awaitable[T]]) -> T:
        """One step of a login by OpenID Connect. Raises RequestRefused."""
        oidc = self._logins()
        self._refuse_banned(address, "")
        with self._at_provider.taken(network_key(address)):
            try:
                return await step(oidc)
            except ProviderUnavailable as error:
                self._note_refusal("provider", address, "", str(error))
                raise RequestRefused(503, REFUSALS["provider"] % error) from None
            except OidcError as error:
                self._note_refusal("oidc", address, "", str(error))
                self._count_failure(address, "")  # no delay, which would keep the slot: codes are not guessed
                raise RequestRefused(403, str(error)) from None

    def _refuse_banned(self, address: str, name: str) -> None:
        """Raises RequestRefused."""
        if self.bans.of(monotonic(), address, name, "") is not None:
            self._note_refusal("banned", address, name)
            raise RequestRefused(403, BANNED)

    def _count_failure(self, address: str, name: str) -> float:
        """A login was wrong. Returns the seconds by which to delay its answer."""
        delay, ban = self.bans.failed(monotonic(), address, name)
        if ban is not None:
            log.warning("%s is banned for %.0f s: %s", ban.name, ban.until - monotonic(), ban.reason)
        return delay

    def _note_refusal(self, reason: str, address: str, name: str, detail: str = "") -> None:
        self.refused[reason] += 1
        whom = f" as {name[:NAME_SHOWN]!r}" if name else ""
        why = REFUSALS[reason] % detail if detail else REFUSALS[reason]
        self.lines.warning("login from %s%s to the HTTP API refused: %s", address, whom, why)


def _from_another_site(scope: Scope) -> bool:
    """Whether a page of another site makes this request, also in a frame. A link that a person follows is none, unless
    it changes something. Programs, and browsers from before 2023, do not send these headers."""
    if header(scope, b"sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    return scope["method"] in CHANGING or header(scope, b"sec-fetch-dest") != "document"
