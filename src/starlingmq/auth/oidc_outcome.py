"""What comes of a login by OpenID Connect. It needs no package, so a broker without such logins loads none."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class OidcError(Exception):
    """The login is refused. One line that says why."""


class ProviderUnavailable(OidcError):
    """The provider does not answer as it should, so nothing is known about the person."""


class Started(Struct, frozen=True):
    """``address``: where the browser goes. ``attempt``: what it brings back to finish the login."""

    address: str
    attempt: str


class LoggedIn(Struct, frozen=True):
    """``token``: of the session. ``user``: as logs name it. ``logout``: the address that also ends the session at the
    provider; "" if it has none."""

    token: str
    user: str
    role: Literal["operator", "viewer"]
    expires_in: int
    logout: str
