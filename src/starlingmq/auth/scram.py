"""SCRAM-SHA-256 (RFC 5802, RFC 7677) by MQTT 5's enhanced authentication: the client does not send its password, and
the server proves that it knows it, too."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]
from scramp.utils import saslprep  # type: ignore[import-untyped]

from starlingmq.auth.method import REFUSED, Verdict, refused
from starlingmq.auth.password_file import SCRAM_ITERATIONS, PasswordFile, ScramKeys
from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from starlingmq.auth.automatic_bans import AutomaticBans
    from starlingmq.hooks import AuthRequest

METHOD: Final = "SCRAM-SHA-256"
OPEN_MAX: Final = 10_000  # open exchanges; beyond this the oldest is removed
OPEN_OF_ONE_MAX: Final = 200  # per address; beyond this its oldest is removed
MESSAGE_MAX: Final = 4096  # bytes
OPEN_SECONDS: Final = 60.0
SALT_BYTES: Final = 32  # as starlingmq passwd creates them
FIRST: Final = (b"n,", b"y,", b"p=")  # beginnings of a first message; the last message begins with c=

ExchangeKey = bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """An open exchange. ``key``: the address that it came from, or the name for an exempt address. ``keys``: those of
    the user when it began."""

    until: float
    server: Any
    name: str
    key: str
    keys: ScramKeys | None


class Scram:
    """A user name in CONNECT, if there is one, must be that of the exchange, for which failures count.

    The state of an exchange is small, bounded in total and per address, and removed after a minute. ``earlier``: its
    exchanges go on, since a change of other users must not refuse them. ``secret``: salts of unknown names are derived
    from it; empty: from the first user, so that they are the same at each start until its password changes."""

    def __init__(
        self, users: PasswordFile, bans: AutomaticBans, earlier: Scram | None = None, secret: bytes = b""
    ) -> None:
        self._users = users.scram
        self._alike = list(users.scram.values())
        self._bans = bans
        self._mechanism = ScramMechanism(METHOD)
        self.secret = secret or _secret_of(users)
        self._open: OrderedDict[ExchangeKey, Exchange] = OrderedDict()
        self._of_one: dict[str, OrderedDict[ExchangeKey, None]] = {}  # keys by address
        if earlier is not None:
            self._open, self._of_one = earlier._open, earlier._of_one

    async def check(self, request: AuthRequest) -> Verdict | None:
        if request.method != METHOD:
            return None
        key = _exchange_key(request)
        begun = self._forget(key)
        if len(request.data or b"") > MESSAGE_MAX:
            return REFUSED
        try:
            data = (request.data or b"").decode()
            if request.data is not None and request.data.startswith(FIRST):
                return self._first(key, data, request)
            if begun is None or begun.until <= monotonic():
                return _refused(begun)
            return self._last(begun, data)
        except (ScramException, ValueError):  # includes UnicodeDecodeError
            return _refused(begun)

    def claimed(self, request: AuthRequest) -> str:
        """The name of the exchange that this message ends; "" if it ends none, and so is no guess."""
        if request.data is None or request.data.startswith(FIRST):
            return ""
        exchange = self._open.get(_exchange_key(request))
        return "" if exchange is None else exchange.name

    async def close(self) -> None:
        self._open.clear()
        self._of_one.clear()

    def _first(self, key: ExchangeKey, data: str, request: AuthRequest) -> Verdict:
        names: list[str] = []

        def keys_of(name: str) -> tuple[bytes, bytes, bytes, int]:
            names.append(name)
            return self._keys(name)

        server = self._mechanism.make_server(keys_of)
        server.set_client_first(data)
        name = names[0]
        if (request.username or request.again) and name != saslprep(request.username or ""):
            return refused(name)  # also: re-authentication must not change the user [MQTT-4.12.1-1]
        of_one = self._bans.queue_key(request.peer, name)
        self._remember(key, Exchange(monotonic() + OPEN_SECONDS, server, name, of_one, self._users.get(name)))
        return Verdict(Reason.CONTINUE_AUTHENTICATION, name, server.get_server_first().encode())

    def _remember(self, key: ExchangeKey, exchange: Exchange) -> None:
        self._open[key] = exchange
        of_one = self._of_one.setdefault(exchange.key, OrderedDict())
        of_one[key] = None
        if len(of_one) > OPEN_OF_ONE_MAX:
            self._forget(next(iter(of_one)))
        now = monotonic()
        while len(self._open) > OPEN_MAX or next(iter(self._open.values())).until <= now:
            self._forget(next(iter(self._open)))

    def _forget(self, key: ExchangeKey) -> Exchange | None:
        exchange = self._open.pop(key, None)
        if exchange is not None:
            of_one = self._of_one[exchange.key]
            del of_one[key]
            if not of_one:
                del self._of_one[exchange.key]
        return exchange

    def _last(self, begun: Exchange, data: str) -> Verdict:
        begun.server.set_client_final(data)
        if self._users.get(begun.name) != begun.keys:
            return _refused(begun)  # the password was changed meanwhile
        return Verdict(username=begun.name, data=begun.server.get_server_final().encode(), proof=begun.keys)

    def holds(self, username: str, proof: object) -> bool:
        known = self._users.get(username)
        return known is not None and (proof is None or proof == known)

    def _keys(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        """For an unknown name: made-up keys with the same parameters as those of users, so that a client cannot tell
        the name from a known one."""
        keys = self._users.get(name)
        if keys is None:
            made = hmac.digest(self.secret, b"salts" + name.encode(), hashlib.sha512)
            length, iterations = SALT_BYTES, SCRAM_ITERATIONS
            if self._alike:
                like = self._alike[int.from_bytes(made[-8:], "big") % len(self._alike)]
                length, iterations = len(like.salt), like.iterations
            return made[:length], secrets.token_bytes(32), secrets.token_bytes(32), iterations
        return keys.salt, keys.stored_key, keys.server_key, keys.iterations


def _refused(begun: Exchange | None) -> Verdict:
    return REFUSED if begun is None else refused(begun.name)


def _exchange_key(request: AuthRequest) -> ExchangeKey:
    """The key of one connection; a client id may be long."""
    parts = (request.peer, request.listener, request.client_id)
    return hashlib.blake2b(repr(parts).encode(errors="replace"), digest_size=16).digest()


def _secret_of(users: PasswordFile) -> bytes:
    for keys in users.scram.values():
        return hashlib.sha256(b"salts" + keys.stored_key + keys.server_key).digest()
    return secrets.token_bytes(32)
