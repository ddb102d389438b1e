"""User names and passwords, checked against a file of Argon2 hashes (or bcrypt, or PBKDF2).

Hashing takes tens of milliseconds of several cores on purpose. A separate process does it, a few at a time and fairly
between addresses (``Hashing``). A successful login is remembered for a while, so that a fleet that reconnects does not
wait for hashing. Later it is hashed again, but with precedence.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

import bcrypt
from argon2 import extract_parameters

from starlingmq.auth.checks import Checks, ChecksBusy
from starlingmq.auth.hashing import BCRYPT, PBKDF2, threads
from starlingmq.auth.method import BUSY, REFUSED, Verdict
from starlingmq.auth.password_file import HASHER, PasswordFile
from starlingmq.auth.verifier import Verifier

if TYPE_CHECKING:
    from starlingmq.auth.automatic_bans import AutomaticBans
    from starlingmq.hooks import AuthRequest

REMEMBERED_MAX: Final = 100_000


class RightLogins:
    """When each of the latest right logins was, under a key that is bound to the user's hash. A reload keeps them."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._at: OrderedDict[bytes, float] = OrderedDict()

    def key(self, known: str, password: bytes) -> bytes:
        """Takes the place of the password, and is useless elsewhere."""
        return hashlib.blake2b(known.encode() + b"\0" + password, key=self._secret, digest_size=32).digest()

    def at(self, login: bytes) -> float | None:
        return self._at.get(login)

    def keep(self, login: bytes, now: float) -> None:
        self._at[login] = now
        self._at.move_to_end(login)
        if len(self._at) > REMEMBERED_MAX:
            self._at.popitem(last=False)


class Hashing:
    """The password checks of one broker: for MQTT, NATS, HTTP and stream readers. Call ``close`` at the end.

    The process gets only as many requests as it computes at once, so the queue here decides their order.
    """

    def __init__(self, bans: AutomaticBans, waiting_per_address: int) -> None:
        self.verifier = Verifier()
        self.checks = Checks(threads(), waiting_per_address, bans)
        self.logins = RightLogins()

    async def fits(self, request: AuthRequest, known: str, expected: bool) -> bool:
        """Whether the password matches a hash. ``expected``: it did before. Raises ChecksBusy if it could not be
        checked."""
        password = request.password or b""
        try:
            return bool(await self.checks.run(request, expected, lambda: self.verifier.fits(known, password)))
        except OSError:
            raise ChecksBusy from None  # there is no process; the verifier has logged why

    async def close(self) -> None:
        await self.verifier.close()
        await self.checks.close()


class Passwords:
    """``remember`` is in seconds; 0 hashes every time."""

    def __init__(
        self, users: PasswordFile, remember: float, hashing: Hashing, clock: Callable[[], float] = monotonic
    ) -> None:
        self.hashes = users.hashes
        self._remember = remember
        self._clock = clock
        self._nobody = made_up(next(iter(users.hashes.values()), ""))
        self._hashing = hashing

    async def check(self, request: AuthRequest) -> Verdict | None:
        """A name that is not in the file takes as long as one that is, and waits and is refused like it."""
        if request.method or request.username is None or request.password is None:
            return None
        known = self.hashes.get(request.username)
        logins = self._hashing.logins
        login = logins.key(known or self._nobody, request.password)
        at = logins.at(login) if known is not None else None
        if at is not None and self._clock() < at + self._remember:
            return Verdict(username=request.username, proof=known)
        try:
            right = await self._hashing.fits(request, known or self._nobody, at is not None)
        except ChecksBusy:
            return BUSY
        if known is None:
            return None
        if not right:
            return REFUSED
        logins.keep(login, self._clock())
        return Verdict(username=request.username, proof=known)

    def proof_of(self, username: str) -> object:
        return self.hashes.get(username)

    def holds(self, username: str, proof: object) -> bool:
        known = self.hashes.get(username)
        return known is not None and (proof is None or proof == known)

    async def close(self) -> None:
        """The process belongs to the broker, and continues."""


def made_up(like: str) -> str:
    """A hash of an unknown password that takes as long to check as this one. It is made without hashing, since it is
    made in the event loop."""
    if like.startswith(BCRYPT):
        return bcrypt.gensalt(int(like[4:6])).decode() + secrets.token_hex(16)[:31]
    if like.startswith(PBKDF2):
        return "$".join([*like.split("$")[:3], *[b64encode(secrets.token_bytes(size)).decode() for size in (12, 64)]])
    if like:
        costs = extract_parameters(like)
        memory, rounds, lanes = costs.memory_cost, costs.time_cost, costs.parallelism
    else:
        memory, rounds, lanes = HASHER.memory_cost, HASHER.time_cost, HASHER.parallelism
    salt, digest = (b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (16, 32))
    return f"$argon2id$v=19$m={memory},t={rounds},p={lanes}${salt}${digest}"
