"""Authentication and authorization of clients: bans, then one method after the other until one knows the client, then
rules."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from starlingmq.auth.acl import Acl, read_acl
from starlingmq.auth.automatic_bans import AutomaticBans, Ban
from starlingmq.auth.delays import Delays
from starlingmq.auth.method import Method, Verdict
from starlingmq.auth.name_turns import PATIENCE, NameTurn
from starlingmq.auth.nats_login import NatsLogin
from starlingmq.auth.stored_access import NOTHING_STORED, StoredAccess
from starlingmq.config.auth_section import AuthConfig, methods_of
from starlingmq.config.nats_section import NatsConfig
from starlingmq.config.section_types import ConfigError
from starlingmq.core.connect.connect_verdict import NO_ANONYMOUS, NO_METHOD
from starlingmq.core.limits.address_key import peer_host
from starlingmq.core.nats.nkey_auth import NKEY
from starlingmq.core.session.connection import UNPROVED
from starlingmq.hooks import Authenticate, AuthRequest, AuthResult
from starlingmq.log import SparingLog
from starlingmq.net.connector_counts import ConnectorCounts
from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from starlingmq.auth.acl import Rule
    from starlingmq.auth.callout import Callout
    from starlingmq.auth.password_file import PasswordFile
    from starlingmq.auth.passwords import Hashing, Passwords
    from starlingmq.auth.scram import Scram
    from starlingmq.core.limits.access import Rights
    from starlingmq.core.session.session import Client

log = logging.getLogger("starlingmq.auth")

EVERYTHING: Final = Acl((), True)
NOTHING: Final = Acl((), False)  # allows only what a client is granted
LINES_PER_SECOND: Final = 5
OF_USERS: Final = ("scram", "password")  # methods
ANSWERED: Final = 9.0  # seconds after CONNECT; shorter than mqtt.connect_timeout, and longer than a check may wait

# The way in which a client was admitted, if not by a class of methods.
HOOK: Final = "hook"
ANONYMOUS: Final = "anonymous"


class Certificate:
    """The name in a verified certificate, for listeners that do not use it anyway (``tls.identity``)."""

    async def check(self, request: AuthRequest) -> Verdict | None:
        return Verdict(username=request.certificate_name) if request.certificate_name else None

    def holds(self, username: str, proof: object) -> bool:
        return True  # the rules say what the name may do, and whether it may connect

    async def close(self) -> None:
        """Holds no resources."""


class Chain:
    """The ``authenticate`` of a broker whose settings say which clients to admit.

    ``hook``, that of an embedding program, replaces the methods; the rules apply all the same. ``nats``: its tokens,
    keys and user without credentials. ``hashing`` is for the method password, and is not closed here. ``counts`` are
    those of the HTTP service that is asked. ``stored``: the users and rules that operators made. Raises ConfigError for
    unreadable files.
    """

    def __init__(
        self,
        config: AuthConfig,
        bans: AutomaticBans,
        hook: Authenticate | None = None,
        nats: NatsConfig | None = None,
        hashing: Hashing | None = None,
        lines: SparingLog | None = None,
        counts: ConnectorCounts | None = None,
        stored: StoredAccess = NOTHING_STORED,
        salts: bytes = b"",
    ) -> None:
        """``salts``: the secret of ``Scram``, which it has afterwards also if none was given."""
        self.bans = bans
        self._file_acl = read_acl(config.acl.file) if config.acl.file else EVERYTHING
        self._config = config
        self._hook = hook
        self._nats = NatsLogin(nats or NatsConfig())
        self._lines = lines or SparingLog(log, LINES_PER_SECOND)
        self._called = counts or ConnectorCounts()
        self._delays = Delays()
        self.file_users = None if hook is not None else _read_users(config)  # of the password file
        self._by_name: dict[str, Method] = {}
        self.salts = salts
        self.use(stored, hashing)

    def use(self, stored: StoredAccess, hashing: Hashing | None) -> None:
        """Decide with these users and rules beside those of the files, which are not read again. Raises ConfigError,
        and then nothing has changed."""
        auth, file = stored.effective(self._config), self._file_acl
        names = () if self._hook is not None else methods_of(auth)
        kept = {name: one for name, one in self._by_name.items() if name not in OF_USERS}
        try:
            by_name = {name: kept.get(name) or self._make(name, stored, hashing) for name in names}
        except ImportError as error:
            raise _lacking(auth, error) from None
        rules = stored.made_rules()
        self.acl = Acl((*file.rules, *rules), file.default, file.clients, file is not EVERYTHING) if rules else file
        self._by_name, self._methods = by_name, list(by_name.values())
        self.callout = cast("Callout | None", by_name.get("http"))
        self._scram = cast("Scram | None", by_name.get("scram"))
        self._tokens = by_name.get("jwt")
        self._passwords = cast("Passwords | None", by_name.get("password"))
        self._by_certificate = any(isinstance(method, Certificate) for method in self._methods)
        self._certificate_first = bool(self._methods) and isinstance(self._methods[0], Certificate)

    def _make(self, name: str, stored: StoredAccess, hashing: Hashing | None) -> Method:
        """Libraries are imported only for the methods in use. Raises ConfigError, ImportError."""
        config = self._config
        if name in OF_USERS:
            from starlingmq.auth.password_file import PasswordFile

            users = stored.joined(self.file_users or PasswordFile())
            if name == "scram":
                from starlingmq.auth.scram import Scram

                made = Scram(users, self.bans, cast("Scram | None", self._by_name.get("scram")), self.salts)
                self.salts = made.secret
                return made
            from starlingmq.auth.passwords import Passwords

            assert hashing is not None, "auth.methods: password needs a Hashing"
            return Passwords(users, config.password.remember, hashing)
        if name == "certificate":
            return Certificate()
        if name == "jwt":
            from starlingmq.auth.tokens import Tokens

            return Tokens(config.jwt)
        from starlingmq.auth.callout import Callout

        return Callout(config.http, self.bans, self._lines, self._called)

    def stored_users(self) -> Mapping[str, str]:
        """The users of the password file and of operators, and hashes that differ where a password was changed."""
        return {} if self._passwords is None else self._passwords.hashes

    async def authenticate(self, request: AuthRequest) -> AuthResult:
        now = monotonic()
        address, user = peer_host(request.peer), request.username or ""
        ban = self.bans.of(now, address, user, request.client_id)
        proof = None
        if ban is not None and ban.automatic and ban.kind == "address":
            proof = self._proof(request)
            if proof is not None:
                ban = self.bans.of(now, address, user, request.client_id, proved=True)
        if ban is None and not request.again and request.data is None:
            ban = self.bans.came(now, request.client_id)
            self._tell_of(ban, now)
        if ban is not None:
            return AuthResult(Reason.BANNED, detail=f"its {ban.kind} is banned")
        claimed = "" if proof is not None else self._guessable(request, address)
        turn = await self.bans.turn(claimed, request.client_id, request.gone) if claimed else None
        if claimed and turn is None:
            return await self._unchecked(now)
        if proof is not None:
            verdict, method = proof
        else:
            try:
                verdict, method = await self._ask(request)
            except asyncio.CancelledError:
                # a timeout counts as a failure; otherwise being slow would avoid the limit
                self._end(turn, request, self._count(address, user))
                raise
            except BaseException:
                self._end(turn, request)
                raise
        name = user if verdict.username is None else verdict.username
        if verdict.reason in (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED):
            delay = self._count(address, name)
            self._end(turn, request, delay, method)
            left = now + ANSWERED - monotonic()  # the check may have waited for its turn
            await self._delays.wait(max(0.0, min(delay, left)))
        elif turn is not None:
            turn.end(right=verdict.reason == Reason.SUCCESS)
        if verdict.reason >= 0x80:
            return AuthResult(verdict.reason, verdict.data, verdict.username, detail=verdict.detail)
        if name != user and (ban := self.bans.of(monotonic(), "", name, "")) is not None:
            return AuthResult(Reason.BANNED, username=name, detail=f"its {ban.kind} is banned")
        if verdict.reason == Reason.CONTINUE_AUTHENTICATION:
            return AuthResult(verdict.reason, verdict.data)
        if request.version != 0 and request.client_id and not self.acl.may_be(request.client_id, name):
            return AuthResult(
                Reason.CLIENT_IDENTIFIER_NOT_VALID,
                username=verdict.username,
                detail="the rules forbid its user this client id",
            )
        if not self.acl.may_connect(request.client_id, name, request.peer, verdict.rules or (), request.listener):
            return AuthResult(
                Reason.NOT_AUTHORIZED, username=verdict.username, detail="the rules do not let it connect"
            )
        rights = self._rights(request.client_id, name, request.peer, verdict.rules, request.listener)
        standing = (method, verdict.proof)
        if rights is not None:
            rights.proved = proved(standing, name, request.certificate_name)
        return AuthResult(verdict.reason, verdict.data, verdict.username, rights, verdict.valid, standing)

    async def reader(self, username: str | None, password: bytes | None, peer: str) -> tuple[int, Rights | None]:
        """Whether a reader of streams is admitted (a reason code), and its rights (None: all). A reader without a name
        has shown the token, and has the rights of a client without a name."""
        if username is not None:
            result = await self.authenticate(AuthRequest("", username, password, 5, peer, "", "", "", None, {}))
            return result.reason, result.rights
        if self.bans.of(monotonic(), peer_host(peer), "", "") is not None:
            return Reason.BANNED, None
        if not self.acl.may_connect("", "", peer):
            return Reason.NOT_AUTHORIZED, None
        return Reason.SUCCESS, self._rights("", "", peer, None)

    def rights_of(self, client: Client) -> Rights | None:
        """The rights of a connected client by the present rules."""
        granted = client.rights.source if client.rights is not None else None
        assert granted is None or isinstance(granted, tuple)
        rights = self._rights(client.client_id, client.username, client.peer, granted, client.listener)
        if rights is not None:
            rights.proved = proved(client.standing, client.username, client.certificate_name)
        return rights

    def standing_of(self, client: Client) -> int:
        """Why a client that is connected, or was when it left its will, would not be admitted now; 0: it would be."""
        if not self._stands(client):
            return Reason.NOT_AUTHORIZED
        granted = client.rights.source if client.rights is not None else None
        assert granted is None or isinstance(granted, tuple)
        said = "" if client.assigned else client.client_id
        if client.version != 0 and said and not self.acl.may_be(said, client.username):
            return Reason.NOT_AUTHORIZED
        may = self.acl.may_connect(said, client.username, client.peer, granted or (), client.listener)
        return Reason.SUCCESS if may else Reason.NOT_AUTHORIZED

    def _stands(self, client: Client) -> bool:
        standing = client.standing
        if standing is UNPROVED:
            named = client.username and self._methods
            return not named or any(method.holds(client.username, None) for method in self._methods)
        method, proof = standing if isinstance(standing, tuple) else (ANONYMOUS, None)
        if method == HOOK:
            return True
        if method == NKEY:
            return proof in self._nats.keys
        if method is NatsLogin:
            return self._nats.holds(client.username, proof)
        if method == ANONYMOUS:
            named = client.username and self._methods  # a name that it never proved
            return not named and self._anonymous().reason == Reason.SUCCESS
        return any(type(found) is method and found.holds(client.username, proof) for found in self._methods)

    async def close(self) -> None:
        for method in self._methods:
            await method.close()

    def _rights(
        self, client_id: str, username: str, peer: str, granted: Sequence[Rule] | None, listener: str = ""
    ) -> Rights | None:
        """None: everything. Without an ACL file, a client with granted rules may do nothing else."""
        acl = self.acl
        if acl is EVERYTHING:
            if granted is None:
                return None
            acl = NOTHING
        rights = acl.rights(client_id, username, peer, granted, count=True, listener=listener)
        rights.filters = self._config.acl.filter == "deliver"
        return rights

    async def _ask(self, request: AuthRequest) -> tuple[Verdict, object]:
        """The verdict, and its source: a class of methods, or ``HOOK``, ``NKEY`` or ``ANONYMOUS``."""
        if self._hook is not None:
            return await _asked(self._hook, request), HOOK
        if request.nkey_listed:
            return Verdict(proof=request.nkey), NKEY
        verdict = self._nats.check(request)
        if verdict is not None:
            return verdict, NatsLogin
        for method in self._methods:
            verdict = await method.check(request)
            if verdict is not None:
                return verdict, type(method)
        if self._nats.required and request.version == 0:
            return Verdict(Reason.NOT_AUTHORIZED), ANONYMOUS
        if request.method:
            return Verdict(Reason.BAD_AUTHENTICATION_METHOD), ANONYMOUS
        if request.username is not None or request.password is not None:
            # Where no credentials are required, a name proves nothing.
            if self._methods:
                return Verdict(Reason.BAD_USER_NAME_OR_PASSWORD), ANONYMOUS
            return self._anonymous(NO_METHOD), ANONYMOUS
        return self._anonymous(), ANONYMOUS

    def _anonymous(self, detail: str = NO_ANONYMOUS) -> Verdict:
        allowed = self._config.allow_anonymous
        if allowed is None:
            allowed = not self._methods
        return Verdict() if allowed else Verdict(Reason.NOT_AUTHORIZED, detail=detail)

    def _proof(self, request: AuthRequest) -> tuple[Verdict, object] | None:
        """The verdict for a client that authenticates with a key alone. Guessing got its address banned, not such a
        client."""
        if self._hook is not None:
            return None
        if request.nkey_listed:
            return Verdict(proof=request.nkey), NKEY
        name = request.certificate_name
        if name and not request.method and (self._certificate_first or (self._by_certificate and not request.password)):
            return Verdict(username=name), Certificate
        if name and not self._methods and request.username == name:
            return self._anonymous(), ANONYMOUS  # the listener has tls.use_identity_as_username
        return None

    def _guessable(self, request: AuthRequest, address: str) -> str:
        """The name for which the login has to wait for its turn; "": it does not. Only names behind exempt addresses
        do: from elsewhere guesses get their address banned, and a stranger must not make the user wait."""
        guess = request.password is not None or request.data is not None
        if not guess or request.nkey or (address and not self.bans.exempt(address)):
            return ""
        if request.method and self._scram is not None:
            return self._scram.claimed(request)
        return request.username or ""

    async def _unchecked(self, since: float) -> AuthResult:
        """The answer for a login without a turn. It comes late, so that guessers do not fill the line at once."""
        await self._delays.wait(max(0.0, since + PATIENCE - monotonic()))
        return AuthResult(Reason.SERVER_BUSY, detail="failed logins by this name delay others; try again")

    def _end(self, turn: NameTurn | None, request: AuthRequest, delay: float = 0.0, method: object = None) -> None:
        """A login was wrong (``delay``), as ``method`` found, or was not decided. A refused token is no guess."""
        if turn is None:
            return
        if self._tokens is not None and method is type(self._tokens):
            delay = 0.0
        turn.end(delay=delay, window=self.bans.window, password=None if request.method else request.password)

    def _count(self, address: str, user: str) -> float:
        """A login failed. Returns the seconds by which to delay the refusal."""
        now = monotonic()
        delay, ban = self.bans.failed(now, address, user)
        self._tell_of(ban, now)
        return delay

    def _tell_of(self, ban: Ban | None, now: float) -> None:
        if ban is not None:
            self._lines.warning("%s %r is banned for %.0f s: %s", ban.kind, ban.name, ban.until - now, ban.reason)


def proved(standing: object, username: str, certificate_name: str) -> bool:
    """Whether a client has proved its identity. A name without a password, where none is required, proves nothing; nor
    does a hook that has admitted a client without a name."""
    if certificate_name and username == certificate_name:
        return True
    method, proof = standing if isinstance(standing, tuple) else (ANONYMOUS, None)
    if method == HOOK:
        return bool(username)
    if method is NatsLogin:
        return proof is not None
    return bool(method != ANONYMOUS)


async def _asked(hook: Authenticate, request: AuthRequest) -> Verdict:
    result = hook(request)
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, AuthResult):
        return Verdict(result.reason, result.username, result.data, detail=result.detail)
    return Verdict(Reason.SUCCESS if result else Reason.NOT_AUTHORIZED)


def _read_users(config: AuthConfig) -> PasswordFile | None:
    """None without a password file. Raises ConfigError."""
    if not config.password.file or not {*OF_USERS} & {*methods_of(config)}:
        return None
    try:
        from starlingmq.auth.password_file import read_passwords
    except ImportError as error:
        raise _lacking(config, error) from None
    users = read_passwords(config.password.file)
    if not users.names():
        log.warning("%s has no users: nobody can log in by password", config.password.file)
    return users


def _lacking(config: AuthConfig, error: ImportError) -> ConfigError:
    wanted = ", ".join(methods_of(config))
    return ConfigError(f"auth.methods: {wanted}: {error}; run pip install '.[auth]' in the sources")
