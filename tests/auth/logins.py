"""Ways to log in at a broker, for the tests of methods."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jwt
from scramp import ScramClient  # type: ignore[import-untyped]

from starlingmq.wire.mqtt import Auth, Connack, Connect
from starlingmq.wire.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD, Properties
from starlingmq.wire.reasons import Reason
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


async def scram(
    address: str, name: str, password: str, changed: Callable[[str], str] = str, username: str | None = None
) -> int:
    """``username`` is that of CONNECT."""
    client = ScramClient(["SCRAM-SHA-256"], name, password)
    peer = await Peer.open(address)
    properties: Properties = {AUTHENTICATION_METHOD: "SCRAM-SHA-256"}
    properties[AUTHENTICATION_DATA] = client.get_client_first().encode()
    peer.send(Connect(5, "s", True, username=username, properties=properties))
    challenge = await peer.receive()
    if isinstance(challenge, Auth):
        data = challenge.properties[AUTHENTICATION_DATA]
        assert isinstance(data, bytes)
        client.set_server_first(data.decode())
        properties[AUTHENTICATION_DATA] = changed(client.get_client_final()).encode()
        peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, properties))
        challenge = await peer.receive()
    assert isinstance(challenge, Connack)
    if challenge.reason == 0:
        final = challenge.properties[AUTHENTICATION_DATA]
        assert isinstance(final, bytes)
        client.set_server_final(final.decode())  # raises unless the server knows the password too
    await peer.close()
    return challenge.reason
