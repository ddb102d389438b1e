"""The HTTP API under fire: it stays healthy, never fails, and tells and does nothing without the token."""

from __future__ import annotations

import atexit
import re
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from starlingmq.wire.mqtt import Publish
from tests.fuzz import http_talk, talk
from tests.fuzz.server import PATIENCE, Server, finish

TOKEN: Final = b"a-token-of-the-fuzzer-0123456789"
CANARY: Final = b"canary-4f7c1b"
"""The topic of a retained message: it is only told to those who have the token."""

STATUS: Final = re.compile(rb"^HTTP/1\.[01] (\d{3}) ", re.MULTILINE)
FAILED: Final = (b"500", b"502", b"504")
ANSWER_SECONDS: Final = 0.05  # that an answer is waited for: not all of them come
ATTACKERS: Final = 20
AT_ONCE: Final = 5  # below every bound for one address

_server: HttpServer | None = None


class HttpServer(Server):
    def __init__(self) -> None:
        directory = tempfile.TemporaryDirectory()
        atexit.register(directory.cleanup)
        token_file = Path(directory.name, "tokens")
        token_file.write_bytes(TOKEN + b"\n")
        settings = [f"auth.api.token_file={token_file}", "auth.failures.limit=0", "auth.failures.delay=0s"]
        super().__init__(["http://127.0.0.1:0"], [*settings, "auth.allow_anonymous=true"])
        self.sane[0].send(Publish(CANARY, b"retained", retain=True))
        self.directory = directory
        (self.http_port,) = self.other_ports

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.http_port), PATIENCE)

    def ask(self, path: bytes) -> bytes:
        """The answer to a request that is right."""
        with self.connect() as connection:
            head = b"GET %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\nConnection: close\r\n\r\n"
            connection.sendall(head % (path, TOKEN))
            answer = b""
            while data := connection.recv(65536):
                answer += data
            return answer

    def check(self) -> None:
        """It is ready, and no request without the token has changed anything."""
        ready = self.ask(b"/health/ready")
        assert ready.startswith(b"HTTP/1.1 200 "), ready
        bans = self.ask(b"/api/v1/bans")
        assert bans.startswith(b"HTTP/1.1 200 ") and b'"name":' not in bans, bans
        super().check()

    def stop(self) -> None:
        assert CANARY in self.ask(b"/api/v1/retained")
        super().stop()
        self.directory.cleanup()


def run(seed: int) -> int:
    """One episode of twenty mad connections to the broker, which is started for the first; how many."""
    global _server
    if _server is None:
        _server = HttpServer()
    rng = Random(seed)
    mad: list[socket.socket] = []
    for _ in range(ATTACKERS):
        mad.append(attack(rng, _server.connect()))
        if len(mad) >= AT_ONCE or rng.random() < 0.5:
            finish(rng, mad.pop(rng.randrange(len(mad))))
    _server.exchange(rng)
    for connection in mad:
        connection.close()
    _server.exchange(rng)
    _server.check()
    return ATTACKERS


def stop() -> None:
    """Stop the broker of the episodes; raises AssertionError for how it stopped."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.stop()


def attack(rng: Random, connection: socket.socket) -> socket.socket:
    """Say a few requests one after the other, and look at the answers that come."""
    known = rng.random() < 0.2
    said = b"".join(http_talk.request(rng, TOKEN if known else b"") for _ in range(rng.choice((1, 1, 1, 2, 5))))
    with suppress(ConnectionError):
        for piece in talk.pieces(rng, said)[:50]:
            connection.sendall(piece)
    answer = heard(connection) if rng.random() < 0.8 else b""
    failed = [status for status in STATUS.findall(answer) if status in FAILED]
    assert not failed, (failed, said[:2000], answer[:2000])
    assert known or CANARY not in answer, (said[:2000], answer[:2000])
    return connection


def heard(connection: socket.socket) -> bytes:
    """Whatever is answered until it is silent for a moment."""
    answer, end = b"", time.monotonic() + 1.0
    connection.settimeout(ANSWER_SECONDS)
    with suppress(OSError):
        while time.monotonic() < end and (data := connection.recv(65536)):
            answer += data
    with suppress(OSError):
        connection.settimeout(PATIENCE)
    return answer
