"""The process that passwords are hashed in: ``python -m starlingmq.auth.hashing``, begun by ``auth.verifier``.

It knows nothing but what it is asked, over its standard input, which is a socket: whether this password fits that
hash. It answers there, and ends when the other end is closed, as it is when the broker dies. It lets the broker go
first where both want the processor.

``PING`` as a number is answered at once, however many hashes are under way, and once unasked when it begins to serve.
"""

from __future__ import annotations

import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BufferedReader
from threading import Lock
from typing import Final

import bcrypt
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHash

BCRYPT: Final = ("$2a$", "$2b$", "$2y$")
NICENESS: Final = 10
THREADS_MAX: Final = 4
PING: Final = 0
QUESTION: Final = struct.Struct(">IHI")  # its number, how long the hash is and how long the password; then both
ANSWER: Final = struct.Struct(">I?")

HASHER: Final = PasswordHasher()  # what it costs is said in each hash


def threads() -> int:
    """How many hashes are computed at once."""
    return min(THREADS_MAX, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def fits(known: str, password: bytes) -> bool:
    if known.startswith(BCRYPT):
        try:
            return bcrypt.checkpw(password, known.encode())
        except ValueError:  # a password of more than 72 bytes, which bcrypt does not take
            return False
    try:
        return HASHER.verify(known, password)
    except (Argon2Error, InvalidHash):
        return False


def serve(sock: socket.socket, questions: BufferedReader) -> None:
    """Until there are no more questions."""
    speaking = Lock()

    def say(number: int, right: bool) -> None:
        with speaking, suppress(OSError):
            sock.sendall(ANSWER.pack(number, right))

    def answer(number: int, known: str, password: bytes) -> None:
        right = False
        try:
            right = fits(known, password)
        finally:
            say(number, right)  # in any case: somebody waits

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
    os._exit(0)  # nobody waits for what is under way


if __name__ == "__main__":
    main()
