"""User names and passwords, held against a file of Argon2 hashes.

Hashing takes tens of milliseconds of several cores on purpose. It happens in a process of its own, and a login that was
good is remembered for a while: a fleet that comes back does not wait for it.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from argon2 import extract_parameters

from starlingmq.auth.method import BUSY, REFUSED, Verdict
from starlingmq.auth.password_file import HASHER, PasswordFile
from starlingmq.auth.verifier import Verifier

if TYPE_CHECKING:
    from starlingmq.hooks import AuthRequest

WAITING_MAX: Final = 2000  # logins that wait to be hashed; who comes then is told that the server is busy
REMEMBERED_MAX: Final = 100_000


class Passwords:
    """``remember`` in seconds, 0 to hash every time."""

    def __init__(self, users: PasswordFile, remember: float, clock: Callable[[], float] = monotonic) -> None:
        self._hashes = users.hashes
        self._remember = remember
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._good: OrderedDict[bytes, float] = OrderedDict()  # until when
        self._nobody = made_up(next(iter(users.hashes.values()), ""))
        self._verifier = Verifier()
        self._waiting = 0

    async def check(self, request: AuthRequest) -> Verdict | None:
        """A name that is not in the file takes as long as one that is."""
        if request.method or request.username is None or request.password is None:
            return None
        known = self._hashes.get(request.username)
        login = self._login(known or self._nobody, request.password)
        if known is not None and self._is_remembered(login):
            return Verdict(username=request.username)
        if self._waiting >= WAITING_MAX:
            return BUSY
        self._waiting += 1
        try:
            right = await self._verifier.fits(known or self._nobody, request.password)
        except OSError:
            return BUSY  # there is nobody to ask, who has said why
        finally:
            self._waiting -= 1
        if known is None:
            return None
        if not right:
            return REFUSED
        self._keep(login)
        return Verdict(username=request.username)

    async def close(self) -> None:
        await self._verifier.close()

    def _login(self, known: str, password: bytes) -> bytes:
        """What is remembered instead of a password: it goes with this hash, and is of no use elsewhere."""
        return hashlib.blake2b(known.encode() + b"\0" + password, key=self._secret, digest_size=32).digest()

    def _is_remembered(self, login: bytes) -> bool:
        until = self._good.get(login, 0.0)
        if until and until <= self._clock():
            del self._good[login]
            return False
        return until != 0.0

    def _keep(self, login: bytes) -> None:
        if not self._remember:
            return
        self._good[login] = self._clock() + self._remember
        if len(self._good) > REMEMBERED_MAX:
            self._good.popitem(last=False)


def made_up(like: str) -> str:
    """A hash of nothing that anybody knows, which takes as long as this one. Nothing is hashed for it, for it is made
    where others would wait: in the event loop."""
    if like:
        costs = extract_parameters(like)
        memory, rounds, lanes = costs.memory_cost, costs.time_cost, costs.parallelism
    else:
        memory, rounds, lanes = HASHER.memory_cost, HASHER.time_cost, HASHER.parallelism
    salt, digest = (b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (16, 32))
    return f"$argon2id$v=19$m={memory},t={rounds},p={lanes}${salt}${digest}"
