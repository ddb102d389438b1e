"""Ways to log in at a broker, for the tests of methods."""

from __future__ import annotations

import time
from typing import Any

import jwt

from starlingmq.wire.mqtt import Connack, Connect
from tests.peer import Peer

FAST = {"failures": {"delay": 0}}
SECRET = b"0123456789abcdef0123456789abcdef"


async def knock(address: str, username: str | None, password: bytes | None, version: int = 5, client: str = "c") -> int:
    peer = await Peer.open(address, version)
    peer.send(Connect(version, client, True, username=username, password=password))
    connack = await peer.expect(Connack)
    await peer.close()
    return connack.reason


def token(key: Any = SECRET, algorithm: str = "HS256", headers: dict[str, str] | None = None, **claims: Any) -> bytes:
    text = jwt.encode({"sub": "ann", "exp": time.time() + 60, **claims}, key, algorithm, headers)
    return text.encode()
