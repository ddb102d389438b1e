"""The process that hashes passwords: ``python -m starlingmq.auth.hashing``, started by ``auth.verifier``.

It knows nothing but the requests on its standard input, which is a socket: whether a password matches a hash. It
answers there, and ends when the other end is closed, as happens when the broker dies. It runs at a lower priority than
the broker.

A request with the number ``PING`` is answered at once, however many hashes are being computed. The process sends one
such answer unasked when it begins to serve.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BufferedReader
from threading import Lock
from typing import Final

import bcrypt
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHash

BCRYPT: Final = ("$2a$", "$2b$", "$2y$")
PBKDF2: Final = "$7$"
PBKDF2_HASH: Final = re.compile(r"\$7\$([1-9]\d{0,6})\$([A-Za-z0-9+/]{16,88}={0,2})\$([A-Za-z0-9+/]{86}==)")
"""Of mosquitto: iterations, salt, and 64 bytes of PBKDF2 with HMAC-SHA-512 (RFC 8018). Iterations of more digits
would take minutes per login, so they are refused as a mistake."""
NICENESS: Final = 10
THREADS_MAX: Final = 4
PING: Final = 0
QUESTION: Final = struct.Struct(">IHI")  # number, length of the hash, length of the password; then both
ANSWER: Final = struct.Struct(">I?")

HASHER: Final = PasswordHasher()  # each hash states its cost


def threads() -> int:
    """The number of hashes that are computed at once."""
    return min(THREADS_MAX, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def fits(known: str, password: bytes) -> bool:
    if known.startswith(BCRYPT):
        try:
            return bcrypt.checkpw(password, known.encode())
        except ValueError:  # bcrypt refuses passwords of more than 72 bytes
            return False
    if known.startswith(PBKDF2):
        return _fits_pbkdf2(known, password)
    try:
        return HASHER.verify(known, password)
    except (Argon2Error, InvalidHash):
        return False


def _fits_pbkdf2(known: str, password: bytes) -> bool:
    from hashlib import pbkdf2_hmac  # loads OpenSSL, which a broker does without at its start
    from hmac import compare_digest

    parts = PBKDF2_HASH.fullmatch(known)
    if parts is None:
        return False
    salt, digest = b64decode(parts[2]), b64decode(parts[3])
    return compare_digest(pbkdf2_hmac("sha512", password, salt, int(parts[1])), digest)


def serve(sock: socket.socket, questions: BufferedReader) -> None:
    """Runs until the input ends."""
    speaking = Lock()

    def say(number: int, right: bool) -> None:
        with speaking, suppress(OSError):
            sock.sendall(ANSWER.pack(number, right))

    def answer(number: int, known: str, password: bytes) -> None:
        right = False
        try:
            right = fits(known, password)
        finally:
            say(number, right)  # always answer, since the broker waits

    pool = ThreadPoolExecutor(threads())
    say(PING, True)
    while len(head := questions.read(QUESTION.size)) == QUESTION.size:
        number, known, password = QUESTION.unpack(head)
        if number == PING:
            say(PING, True)
        else:
            pool.submit(answer, number, questions.read(known).decode(), questions.read(password))


def main() -> None:
    with suppress(OSError):
        os.nice(NICENESS)
    sock = socket.socket(fileno=0)
    serve(sock, sock.makefile("rb"))
    os._exit(0)  # no result in progress is needed


if __name__ == "__main__":
    main()
