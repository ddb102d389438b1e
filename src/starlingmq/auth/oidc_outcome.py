"""The results and the errors of a login by OpenID Connect. This module imports none of the packages that such logins
need."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class OidcError(Exception):
    """The login is refused. One line that says why."""


class ProviderUnavailable(OidcError):
    """The provider does not answer as it should, so nothing is known about the person."""


class Started(Struct, frozen=True):
    """``address``: the page of the provider. ``attempt``: the browser sends it with the code that it gets there."""

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
