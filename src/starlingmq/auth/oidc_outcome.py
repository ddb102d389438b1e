"""The results and the errors of a login by OpenID Connect. This module imports none of the packages that such logins
need."""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import Struct

SIGNED: Final = re.compile(r"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43}")
"""The form of attempts and sessions (``api.oidc_login``): the header that nodes write, and a signature of 256 bits,
which is not guessed."""


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
