"""User names and passwords, held against a file of Argon2 hashes.

Hashing takes tens of milliseconds of a core on purpose. It happens in threads, which the library runs without the
interpreter's lock, and a login that was good is remembered for a while: a fleet that comes back does not wait for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Final

from argon2.exceptions import Argon2Error, InvalidHash

from starlingmq.auth.method import BUSY, REFUSED, Verdict
from starlingmq.auth.password_file import HASHER, PasswordFile

if TYPE_CHECKING:
    from starlingmq.hooks import AuthRequest

WAITING_MAX: Final = 2000  # logins that wait for a thread; who comes then is told that the server is busy
REMEMBERED_MAX: Final = 100_000
THREADS_MAX: Final = 4


class Passwords:
    """``remember`` in seconds, 0 to hash every time."""

    def __init__(self, users: PasswordFile, remember: float, clock: Callable[[], float] = monotonic) -> None:
        self._hashes = users.hashes
        self._remember = remember
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._good: OrderedDict[bytes, float] = OrderedDict()  # until when
        self._nobody = HASHER.hash(secrets.token_hex(16))
        self._threads = ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1), "password")
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
            loop = asyncio.get_running_loop()
            right = await loop.run_in_executor(self._threads, verify, known or self._nobody, request.password)
        finally:
            self._waiting -= 1
        if known is None:
            return None
        if not right:
            return REFUSED
        self._keep(login)
        return Verdict(username=request.username)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

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


def verify(known: str, password: bytes) -> bool:
    try:
        return HASHER.verify(known, password)
    except (Argon2Error, InvalidHash):
        return False
