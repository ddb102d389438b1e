"""A broker process under fire over TCP: it lives on, its sane clients notice nothing, it logs no traceback."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import Random

from tests.fuzz import talk
from tests.fuzz.server import PATIENCE, Server, finish

_server: Server | None = None


def run(seed: int) -> int:
    """One episode of twenty mad connections to the broker, which is started for the first; how many."""
    global _server
    if _server is None:
        _server = Server()
    rng = Random(seed)
    mad: list[socket.socket] = []
    for _ in range(20):
        mad.append(begin(rng, _server.port))
        if len(mad) > 5 or rng.random() < 0.5:
            finish(rng, mad.pop(rng.randrange(len(mad))))
    _server.exchange(rng)
    for connection in mad:
        connection.close()
    _server.exchange(rng)
    _server.check()
    return 20


def stop() -> None:
    """Stop the broker of the episodes; raises AssertionError for how it stopped."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.stop()


def begin(rng: Random, port: int) -> socket.socket:
    """A connection that has said something mad, and may have more to say."""
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
    version = talk.version(rng)
    said = talk.opening(rng, version) + b"".join(talk.anything(rng, version) for _ in range(rng.randrange(12)))
    with suppress(ConnectionError):
        for piece in talk.pieces(rng, said):
            connection.sendall(piece)
    return connection
