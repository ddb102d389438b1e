"""The client's side of a WebSocket: the test controls requests and frames byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.patience import within
from wsproto.frame_protocol import Frame, FrameProtocol, Opcode
from wsproto.utilities import generate_accept_token

from .conftest import PATIENCE

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="

HEADERS = (
    b"Host: localhost",
    b"Upgrade: websocket",
    b"Connection: Upgrade",
    b"Sec-WebSocket-Key: " + KEY,
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Protocol: mqtt",
)


def request(path: bytes = b"/mqtt", headers: Iterable[bytes] = HEADERS) -> bytes:
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", *headers, b"", b""])


class Peer:
    """A connection to a WebSocket listener; ``frames`` makes and reads the client's frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = FrameProtocol(client=True, extensions=[])
        self._inbox: list[Frame] = []

    def send(self, *data: bytes | bytearray) -> None:
        self.writer.write(b"".join(data))

    async def response(self) -> tuple[bytes, dict[bytes, bytes]]:
        """Status line and headers of the answer to a request."""
        async with within(PATIENCE):
            head = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = head.rstrip().split(b"\r\n")
        pairs = (line.split(b": ", 1) for line in lines)
        return status, {name.lower(): value for name, value in pairs}

    async def upgrade(self, sent: bytes = request()) -> None:
        self.send(sent)
        status, headers = await self.response()
        assert status == b"HTTP/1.1 101 Switching Protocols"
        assert headers[b"sec-websocket-accept"] == generate_accept_token(KEY)
        assert headers[b"sec-websocket-protocol"] == b"mqtt"
        assert b"sec-websocket-extensions" not in headers

    async def frame(self) -> Frame | None:
        """Return the next piece of a frame; None when the other side has closed the connection."""
        async with within(PATIENCE):
            while not self._inbox:
                data = await self.reader.read(65536)
                if not data:
                    return None
                self.frames.receive_bytes(data)
                self._inbox += self.frames.received_frames()
        return self._inbox.pop(0)

    async def binary(self, size: int) -> bytes:
        """Read ``size`` bytes of binary payload, in any number of frames."""
        data = b""
        while len(data) < size:
            frame = await self.frame()
            assert frame is not None and frame.opcode is Opcode.BINARY
            assert isinstance(frame.payload, bytes)
            data += frame.payload
        return data

    async def closed(self) -> int:
        """Read up to the Close frame and return its code."""
        while True:
            frame = await self.frame()
            assert frame is not None
            if frame.opcode is Opcode.CLOSE:
                assert isinstance(frame.payload, tuple)
                return int(frame.payload[0])


@asynccontextmanager
async def connected(port: int, **options: Any) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
