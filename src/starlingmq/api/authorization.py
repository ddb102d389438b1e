"""Authorization for the HTTP API: by a token of the token file, by name and password of a listed user, or by a session
that began with a login by OpenID Connect.

Without either, all who reach a loopback listener may administer the broker; but not once clients have to log in, and
not through a proxy (``guard``), which may serve others.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from secrets import token_bytes
from typing import TYPE_CHECKING, Final

from starlingmq.auth.oidc_outcome import SIGNED
from starlingmq.auth.stored_access import NOTHING_STORED, ApiRole, StoredAccess
from starlingmq.auth.token_file import is_known, read_tokens
from starlingmq.config.api_section import guarded
from starlingmq.config.auth_section import AuthConfig
from starlingmq.config.cluster_section import cluster_secret
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import Config, has_logins
from starlingmq.hooks import AuthRequest
from starlingmq.wire.properties import Properties
from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from starlingmq.api.oidc_login import OidcLogin, OidcSession
    from starlingmq.auth.password_file import PasswordFile
    from starlingmq.auth.passwords import Hashing, Passwords

BEARER: Final = "token"  # the log names a client with a token like this


class Busy(Exception):
    """The password could not be checked: too many checks are waiting."""


class HttpAuthorization:
    """``hashing`` is that of the broker, ``stored`` the users that operators made; None: they are not known yet,
    so there may be some. ``secret`` signs sessions where there is no ``cluster.secret``. Raises ConfigError for
    unusable files. Call ``close`` at the end."""

    asks: bool  # for a login
    has_login: bool  # with which a client can be admitted

    def __init__(
        self,
        config: Config,
        hashing: Hashing | None,
        stored: StoredAccess | None = NOTHING_STORED,
        secret: bytes = b"",
    ) -> None:
        auth = config.auth
        self._config = config
        self._tokens = read_tokens(auth.api.token_file, "auth.api.token_file") if auth.api.token_file else []
        self._file = _users_of_file(auth) if auth.password.file else None
        self._passwords: Passwords | None = None
        self.oidc: OidcLogin | None = _logins_of(config, secret) if auth.api.oidc.issuer else None
        self.use(stored, hashing)

    def use(self, stored: StoredAccess | None, hashing: Hashing | None) -> None:
        """Decide with these users beside those of the password file, which is not read again."""
        auth = self._config.auth
        table = stored or NOTHING_STORED
        roles: dict[str, ApiRole] = {}
        self._passwords = None
        if table.users or auth.api.users or auth.api.viewers:
            from starlingmq.auth.password_file import PasswordFile
            from starlingmq.auth.passwords import Passwords

            assert hashing is not None, "auth.api.users needs a Hashing"
            file = self._file or PasswordFile()
            roles = table.roles(file)
            self._passwords = Passwords(table.joined(file), auth.password.remember, hashing)
        operators = {*auth.api.users, *(name for name, role in roles.items() if role == "operator")}
        self._viewers = frozenset({*auth.api.viewers, *roles} - operators)
        self._users = self._viewers | operators
        self.has_login = guarded(auth.api) or bool(roles)
        self.asks = self.has_login or stored is None or bool(table.users) or has_logins(self._config)

    def by_token(self, authorization: str) -> str | None:
        """A name for a client whose header has a token of the file, or of a session that holds; None for any other."""
        if self._known(authorization):
            return BEARER
        session = self._session(authorization)
        return session.user if session is not None and session.holds else None

    def has_ended(self, authorization: str) -> bool:
        """Whether the header, which ``by_token`` does not know, has the token of a session: one that has ended, or that
        was begun before a restart or with other settings. That is no guess."""
        return SIGNED.fullmatch(_token(authorization)) is not None

    async def by_password(self, authorization: str, peer: str) -> str | None:
        """The user name of a client whose header has the right password of a listed user; None for any other. Raises
        Busy."""
        scheme, _, credentials = authorization.partition(" ")
        return await self._user(credentials.strip(), peer) if scheme.lower() == "basic" else None

    def only_views(self, authorization: str) -> bool:
        """Whether a client that was admitted with this header may only look."""
        session = None if self._known(authorization) else self._session(authorization)
        return self.name_in(authorization) in self._viewers if session is None else not session.operates

    def holds(self, authorization: str, proof: object) -> bool:
        """Whether a client that was admitted with this header, and with a password that matched ``proof``, would be
        admitted now."""
        if not self.asks or self.by_token(authorization) is not None:
            return True
        name = self.name_in(authorization)
        return self._passwords is not None and name in self._users and self._passwords.holds(name, proof or "")

    def proof_of(self, authorization: str) -> object:
        """The hash that the password in this header was checked against; None for a token."""
        name = self.name_in(authorization)
        return self._passwords.proof_of(name) if self._passwords is not None and name else None

    def is_basic(self, authorization: str) -> bool:
        """Whether the header has a user name and a password, not a token."""
        return authorization.partition(" ")[0].lower() == "basic"

    def name_in(self, authorization: str) -> str:
        """The user name in this header, for counting failures."""
        scheme, _, credentials = authorization.partition(" ")
        return _name_and_password(credentials.strip())[0] if scheme.lower() == "basic" else ""

    def _known(self, authorization: str) -> bool:
        """Whether the header has a token of the file."""
        return is_known(_token(authorization).encode(), self._tokens)

    def _session(self, authorization: str) -> OidcSession | None:
        return None if self.oidc is None else self.oidc.session(_token(authorization))

    async def _user(self, credentials: str, peer: str) -> str | None:
        name, password = _name_and_password(credentials)
        if self._passwords is None or not name:
            return None
        request = AuthRequest("", name, password, 5, peer, "", "", "", None, Properties())
        verdict = await self._passwords.check(request)
        if verdict is not None and verdict.reason == Reason.SERVER_BUSY:
            raise Busy
        # The password is checked in any case, so that the time it takes does not reveal who is a listed user.
        known = verdict is not None and verdict.reason == Reason.SUCCESS and name in self._users
        if known and self._passwords is not None and verdict is not None:
            known = self._passwords.holds(name, verdict.proof)  # an operator may have changed it meanwhile
        return name if known else None

    async def close(self) -> None:
        if self._passwords is not None:
            await self._passwords.close()
        if self.oidc is not None:
            await self.oidc.close()


def _token(authorization: str) -> str:
    """The token in a Bearer header; "" if it is not one."""
    scheme, _, credentials = authorization.partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else ""


def _logins_of(config: Config, secret: bytes) -> OidcLogin:
    """Raises ConfigError."""
    try:
        from starlingmq.api.oidc_login import OidcLogin
    except ImportError as error:
        raise ConfigError(f"auth.api.oidc: {error}; run pip install '.[auth]' in the sources") from None
    return OidcLogin(config.auth.api.oidc, cluster_secret(config.cluster) or secret or token_bytes(32))


def _name_and_password(credentials: str) -> tuple[str, bytes]:
    """Name and password in a Basic header (RFC 7617); ("", b"") if it is not one."""
    try:
        name, colon, password = b64decode(credentials, validate=True).partition(b":")
        return (name.decode(), password) if colon else ("", b"")
    except (binascii.Error, ValueError):
        return "", b""


def _users_of_file(auth: AuthConfig) -> PasswordFile:
    """Raises ConfigError."""
    try:
        from starlingmq.auth.password_file import read_passwords
    except ImportError as error:
        raise ConfigError(f"auth.api.users: {error}; run pip install '.[auth]' in the sources") from None
    users = read_passwords(auth.password.file)
    for setting, names in (("users", auth.api.users), ("viewers", auth.api.viewers)):
        for name in names:
            if name not in users.hashes:
                raise ConfigError(
                    f"auth.api.{setting}: {name!r} is not in {auth.password.file}; add this user with starlingmq passwd"
                )
    return users
