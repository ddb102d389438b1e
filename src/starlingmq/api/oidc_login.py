"""Logins by OpenID Connect: the attempt that a browser begins, and the session that it gets.

::

    page                          node                            provider
     | POST login/start            |                                 |
     |---------------------------->|                                 |
     |    address, attempt         |                                 |
     |<----------------------------|                                 |
     | keeps the attempt in its tab, goes to the address             |
     |-------------------------------------------------------------->|
     |                 back to the dashboard, with code and state    |
     |<--------------------------------------------------------------|
     | POST login/finish           |                                 |
     |  code, state, attempt       | code, verifier                  |
     |---------------------------->|-------------------------------->|
     |    token of the session     |         ID token                |
     |<----------------------------|<--------------------------------|

No node stores an attempt or a session: a stranger who begins logins takes no memory, and any node of a cluster can
finish a login that another node began. Both are JSON Web Tokens, signed with keys that are derived from
``cluster.secret``, or from a random secret if there is no cluster secret. State, nonce and PKCE verifier are derived
from the id of the attempt, so only nodes know the verifier. The attempt stays in the tab that began the login, and only
the state goes through the provider: a link with the state of another browser is refused. There is no cookie, and the
browser returns only to the address in the settings.

An attempt is used once: a node remembers the attempts that it has used, and at another node the provider refuses the
code. A session is not extended, and has the rights that the present settings give to the role of its user.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import scrypt, sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import jwt

from starlingmq.auth.oidc_outcome import SIGNED, LoggedIn, OidcError, ProviderUnavailable, Started
from starlingmq.auth.oidc_provider import Provider
from starlingmq.config.oidc_section import PATH, OidcConfig

ATTEMPT_SECONDS: Final = 600
PATIENCE_SECONDS: Final = 20.0  # for all requests to the provider in one login
USED_MAX: Final = 4096  # attempts; the provider refuses the code of an older one


class OidcSession(NamedTuple):
    """``user``: as logs name it. A Basic header can hold no such name, as it has a colon. ``holds``: it has not
    expired, and its role still has rights."""

    user: str
    operates: bool
    holds: bool


class OidcLogin:
    """``secret`` is the same at all nodes. Raises ConfigError. Call ``close`` at the end."""

    def __init__(self, config: OidcConfig, secret: bytes) -> None:
        self._config = config
        identity = (config.issuer, config.client_id, config.username_claim, config.roles_claim)
        self._secret = _stretched(secret, repr(identity))
        self._provider = Provider(config)
        self._used: OrderedDict[str, float] = OrderedDict()  # ids of attempts, until when they could be used
        self.host = urlsplit(config.issuer).netloc

    async def start(self) -> Started:
        """Raises OidcError."""
        number = secrets.token_urlsafe(16)
        challenge = _text(sha256(self._derived("verifier", number).encode()).digest())
        async with _in_time():
            address = await self._provider.address(
                self._derived("state", number), self._derived("nonce", number), challenge
            )
        return Started(address, self._signed("attempt", {"jti": number}, ATTEMPT_SECONDS))

    async def finish(self, code: str, state: str, attempt: str, issuer: str) -> LoggedIn:
        """``issuer``: that which the provider has sent along (RFC 9207), or "". Raises OidcError."""
        number = self._take(attempt, state)
        if issuer not in ("", self._config.issuer):
            raise OidcError("another provider has answered (iss)")
        if not code or not code.isascii() or not code.isprintable():
            raise OidcError("the provider has sent no usable code")
        async with _in_time():
            found = await self._provider.identify(
                code, self._derived("verifier", number), self._derived("nonce", number)
            )
        role = self._role(found.roles)
        if not role:
            raise OidcError(
                f"user {found.name!r} is in no group of {PATH}.operators or {PATH}.viewers ({PATH}.roles_claim)"
            )
        seconds = max(1, int(self._config.session))
        token = self._signed("session", {"sub": found.name, "role": role}, seconds)
        session = self.session(token)
        assert session is not None
        return LoggedIn(token, session.user, "operator" if session.operates else "viewer", seconds, found.logout)

    def session(self, token: str) -> OidcSession | None:
        """The session of this token; None if no node has signed it."""
        try:
            claims = self._claims("session", token, verify_exp=False)
        except jwt.PyJWTError:
            return None
        role = claims["role"]
        operates = role in self._config.operators
        holds = claims["exp"] > time.time() and (operates or role in self._config.viewers)
        return OidcSession(f"oidc:{claims['sub']}", operates, holds)

    async def close(self) -> None:
        await self._provider.close()

    def _take(self, attempt: str, state: str) -> str:
        """The id of an attempt that has this state and was not used before. Raises OidcError."""
        try:
            claims = self._claims("attempt", attempt)
        except jwt.ExpiredSignatureError:
            raise OidcError("the login took too long; begin again") from None
        except jwt.PyJWTError:
            raise OidcError("the login was begun at another broker, or before it restarted; begin again") from None
        number: str = claims["jti"]
        if not hmac.compare_digest(self._derived("state", number).encode(), state.encode(errors="replace")):
            raise OidcError("the login was begun in another browser (state)")
        now = time.time()
        while self._used and (len(self._used) >= USED_MAX or next(iter(self._used.values())) < now):
            self._used.popitem(last=False)
        if number in self._used:
            raise OidcError("this login has been used already; begin again")
        self._used[number] = claims["exp"]
        return number

    def _role(self, roles: tuple[str, ...]) -> str:
        """The one that gives most rights; "" if none gives any."""
        for granting in (self._config.operators, self._config.viewers):
            for role in roles:
                if role in granting:
                    return role
        return ""

    # Signatures. Keys differ by what is signed, by issuer, client and claims, so none is taken for another.

    def _key(self, purpose: str) -> bytes:
        return hmac.digest(self._secret, purpose.encode(), "sha256")

    def _derived(self, purpose: str, number: str) -> str:
        """43 characters, as RFC 7636 asks of a verifier."""
        return _text(hmac.digest(self._key(purpose), number.encode(), "sha256"))

    def _signed(self, purpose: str, claims: dict[str, Any], seconds: int) -> str:
        return jwt.encode({**claims, "exp": int(time.time()) + seconds}, self._key(purpose), "HS256")

    def _claims(self, purpose: str, token: str, verify_exp: bool = True) -> dict[str, Any]:
        if SIGNED.fullmatch(token) is None:  # so no header of a stranger is parsed
            raise jwt.DecodeError
        options: Any = {"require": ["exp"], "verify_exp": verify_exp}
        claims: dict[str, Any] = jwt.decode(token, self._key(purpose), ["HS256"], options=options)
        return claims


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Raises ProviderUnavailable."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield
    except TimeoutError:
        raise ProviderUnavailable(f"the provider has not answered within {PATIENCE_SECONDS:.0f} s") from None


def _stretched(secret: bytes, salt: str) -> bytes:
    """Takes about 40 ms: a stranger gets signatures, and must not find out a ``cluster.secret`` that is easy to
    guess."""
    return scrypt(secret, salt=f"starlingmq oidc {salt}".encode(), n=1 << 14, r=8, p=1)


def _text(digest: bytes) -> str:
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
