"""A WebSocket listener under fire: upgrades and frames that are nearly right, with packets of MQTT or noise in them."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from random import Random
from typing import Final

from starlingmq.wire.mqtt import Connack, Connect, decode, encode
from tests.fuzz import http_talk, talk
from tests.fuzz.codec import body_start
from tests.fuzz.server import PATIENCE, Server, finish

UPGRADE: Final = (
    b"Host: localhost",
    b"Upgrade: websocket",
    b"Connection: Upgrade",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Protocol: mqtt",
)
ODD: Final = (
    b"Sec-WebSocket-Key: short",
    b"Sec-WebSocket-Key: " + b"A" * 5000,
    b"Sec-WebSocket-Version: 8",
    b"Sec-WebSocket-Version: 99999999999999999999",
    b"Sec-WebSocket-Protocol: nats",
    b"Sec-WebSocket-Protocol: " + b"mqtt, " * 500,
    b"Sec-WebSocket-Protocol: \xff",
    b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=99",
    b"Sec-WebSocket-Extensions: permessage-deflate; " + b"a=b; " * 500,
    b"Upgrade: h2c",
    b"Connection: keep-alive, Upgrade",
    b"Origin: https://elsewhere.example",
)
PATHS: Final = (b"/mqtt", b"/mqtt", b"/mqtt", b"/mqtt", b"/", b"/mqtt?x=%ff", b"//mqtt", b"*", b"/" + b"m" * 9000)
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
OPCODES: Final = (BINARY, BINARY, BINARY, BINARY, TEXT, CONTINUATION, CLOSE, PING, PONG, 3, 11, 15)
CLOSES: Final = (
    b"",
    b"\x03",
    b"\x03\xe8",
    b"\x03\xed",
    b"\xff\xff",
    b"\x00\x00",
    b"\x03\xe8\xff\xfe",
    b"\x03\xe8" + b"x" * 200,
)
ATTACKERS: Final = 20
AT_ONCE: Final = 5

_server: WebSocketServer | None = None


class WebSocketServer(Server):
    def __init__(self) -> None:
        super().__init__(["ws://127.0.0.1:0/mqtt"])
        (self.ws_port,) = self.other_ports

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ws_port), PATIENCE)

    def check(self) -> None:
        """A client that keeps to the protocol comes in."""
        with self.connect() as connection:
            connection.sendall(upgrade(PATHS[0], UPGRADE))
            reader = connection.makefile("rb")
            assert reader.readline() == b"HTTP/1.1 101 Switching Protocols\r\n"
            while reader.readline() != b"\r\n":
                pass
            connection.sendall(frame(BINARY, encode(Connect(5, "sane over ws"), 5)))
            first, length = reader.read(2)
            assert first == 0x80 | BINARY, first
            packet = reader.read(length)
            connack = decode(packet[0], packet, body_start(packet), len(packet), 5)
            assert isinstance(connack, Connack) and connack.reason == 0, connack
        super().check()


def run(seed: int) -> int:
    """One episode of twenty mad connections to the broker, which is started for the first; how many."""
    global _server
    if _server is None:
        _server = WebSocketServer()
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
    kind = rng.random()
    if kind < 0.6:
        said = upgrade(PATHS[0], UPGRADE) + frames(rng)
    elif kind < 0.9:
        headers = [header for header in UPGRADE if rng.random() < 0.9]
        headers += [rng.choice(ODD + http_talk.EXTRA) for _ in range(rng.randrange(3))]
        rng.shuffle(headers)
        said = upgrade(rng.choice(PATHS), headers, rng.choice((b"GET", b"GET", b"GET", b"POST", b"get")))
        said = (http_talk.damaged(rng, said) if rng.random() < 0.4 else said) + frames(rng)
    else:
        said = http_talk.request(rng)
    with suppress(ConnectionError):
        for piece in talk.pieces(rng, said)[:50]:
            connection.sendall(piece)
    return connection


def upgrade(path: bytes, headers: tuple[bytes, ...] | list[bytes], method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", *headers, b"", b""])


def frames(rng: Random) -> bytes:
    """A client's input, in frames that do not end where packets end; some are damaged."""
    version = talk.version(rng)
    said = talk.opening(rng, version) + b"".join(talk.anything(rng, version) for _ in range(rng.randrange(12)))
    out = b""
    while said:
        size = rng.choice((1, 2, 10, 125, 126, 200, 70_000))
        piece, said = said[:size], said[size:]
        if rng.random() < 0.15:
            out += odd_frame(rng, piece)
        else:
            out += frame(BINARY, piece, rng.randbytes(4))
    if rng.random() < 0.2:
        out += frame(CLOSE, rng.choice(CLOSES))
    return http_talk.damaged(rng, out) if rng.random() < 0.15 else out


def odd_frame(rng: Random, payload: bytes) -> bytes:
    """Of any kind, unmasked, in fragments, with reserved bits, or with a length that is not its own."""
    opcode = rng.choice(OPCODES)
    data = rng.choice(CLOSES) if opcode == CLOSE else payload
    made = bytearray(frame(opcode, data, rng.randbytes(4), final=rng.random() < 0.6))
    kind = rng.randrange(5)
    if kind == 0:
        made[0] |= rng.choice((0x10, 0x20, 0x40))
    elif kind == 1:
        made[1] ^= 0x80
    elif kind == 2:
        length = rng.choice((0, 125, 65_535, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1))
        made[1:2] = b"\xff" + struct.pack("!Q", length)
    elif kind == 3:
        made[1:2] = b"\xfe" + struct.pack("!H", rng.choice((0, 5, 65_535)))
    return bytes(made)


def frame(opcode: int, payload: bytes, mask: bytes = b"\1\2\3\4", final: bool = True) -> bytes:
    """As a client has to send it."""
    size = len(payload)
    head = bytes((opcode | 0x80 * final,))
    if size < 126:
        head += bytes((0x80 | size,))
    elif size < 65_536:
        head += b"\xfe" + struct.pack("!H", size)
    else:
        head += b"\xff" + struct.pack("!Q", size)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
