"""SCRAM-SHA-256 (RFC 5802, RFC 7677) by MQTT 5's enhanced authentication: the password never leaves the client, and the
server proves as well that it knows it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]

from starlingmq.auth.method import REFUSED, Verdict
from starlingmq.auth.password_file import SCRAM_ITERATIONS, PasswordFile
from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from starlingmq.hooks import AuthRequest

METHOD: Final = "SCRAM-SHA-256"
OPEN_MAX: Final = 10_000  # exchanges that were begun; of more the oldest is forgotten
OPEN_SECONDS: Final = 60.0
SALT_BYTES: Final = 32  # as starlingmq passwd makes them
FIRST: Final = (b"n,", b"y,", b"p=")  # what a first message begins with; the last one with c=

Place = tuple[str, str, str]


class Scram:
    def __init__(self, users: PasswordFile) -> None:
        self._users = users.scram
        self._mechanism = ScramMechanism(METHOD)
        self._secret = _secret_of(users)
        self._open: OrderedDict[Place, tuple[float, Any, str]] = OrderedDict()

    async def check(self, request: AuthRequest) -> Verdict | None:
        if request.method != METHOD:
            return None
        place = (request.peer, request.listener, request.client_id)
        begun = self._open.pop(place, None)
        try:
            data = (request.data or b"").decode()
            if request.data is not None and request.data.startswith(FIRST):
                return self._first(place, data, request)
            if begun is None or begun[0] <= monotonic():
                return REFUSED
            return self._last(begun[1], begun[2], data)
        except (ScramException, ValueError):  # UnicodeDecodeError is one
            return REFUSED

    async def close(self) -> None:
        self._open.clear()

    def _first(self, place: Place, data: str, request: AuthRequest) -> Verdict:
        names: list[str] = []

        def keys_of(name: str) -> tuple[bytes, bytes, bytes, int]:
            names.append(name)
            return self._keys(name)

        server = self._mechanism.make_server(keys_of)
        server.set_client_first(data)
        if request.again and names[0] != request.username:
            return REFUSED  # who is connected stays who they are [MQTT-4.12.1-1]
        self._open[place] = (monotonic() + OPEN_SECONDS, server, names[0])
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)
        return Verdict(Reason.CONTINUE_AUTHENTICATION, data=server.get_server_first().encode())

    def _last(self, server: Any, name: str, data: str) -> Verdict:
        server.set_client_final(data)
        return Verdict(username=name, data=server.get_server_final().encode())

    def _keys(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        """Of a name that nobody has, keys that nobody knows, with what some user's look like: none can tell it from
        others."""
        keys = self._users.get(name)
        if keys is None:
            made = hmac.digest(self._secret, name.encode(), hashlib.sha512)
            length, iterations = SALT_BYTES, SCRAM_ITERATIONS
            if self._users:
                like = list(self._users.values())[int.from_bytes(made[-8:], "big") % len(self._users)]
                length, iterations = len(like.salt), like.iterations
            return made[:length], secrets.token_bytes(32), secrets.token_bytes(32), iterations
        return keys.salt, keys.stored_key, keys.server_key, keys.iterations


def _secret_of(users: PasswordFile) -> bytes:
    """What salts of names that nobody has are made of. All nodes have the same, and after a restart, for the salt of a
    name that somebody has is the same there, too."""
    for keys in users.scram.values():
        return hashlib.sha256(b"salts" + keys.stored_key + keys.server_key).digest()
    return secrets.token_bytes(32)
