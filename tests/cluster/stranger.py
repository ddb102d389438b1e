"""A stranger at the cluster port that speaks HTTP/2 by hand, so that no client library keeps it from being rude."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_BYTES = 16384
MIB = 1024 * 1024


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def literal(text: bytes) -> bytes:
    """A string of HPACK, not compressed."""
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    head = bytearray((127,))
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes((*head, size)) + text


def headers(path: str, extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"node"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *extra,
    ]
    return b"".join(b"\x00" + literal(name) + literal(value) for name, value in fields)


class Stranger:
    """One connection. ``window`` is what the listener lets it send: of the connection and of each stream."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.initial = 65535
        self.window = 65535
        self.windows: dict[int, int] = {}
        self.sent = 0
        self.ended = False
        self.closed: set[int] = set()  # streams that the listener has ended
        self.settings: dict[int, int] = {}
        self.news = asyncio.Event()

    async def __aenter__(self) -> Stranger:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
        self.task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.task.cancel()
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def open(self, stream: int, path: str, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.windows[stream] = self.initial
        block = headers(path, extra)
        kind = HEADERS
        while block:
            piece, block = block[:FRAME_BYTES], block[FRAME_BYTES:]
            self.writer.write(frame(kind, 0 if block else END_HEADERS, stream, piece))
            kind = CONTINUATION

    async def send(self, stream: int, size: int) -> None:
        """A message of so many bytes, as far as the listener lets it through, until the stream is ended."""
        await self._put(stream, b"\0" + size.to_bytes(4, "big"))
        chunk = bytes(FRAME_BYTES)
        while size > 0 and not self.is_over(stream):
            await self._put(stream, chunk[: min(size, FRAME_BYTES)])
            size -= FRAME_BYTES

    def is_over(self, stream: int) -> bool:
        return self.ended or stream in self.closed

    async def until_over(self, stream: int) -> None:
        while not self.is_over(stream):
            self.news.clear()
            await self.news.wait()

    async def until_ended(self) -> None:
        while not self.ended:
            self.news.clear()
            await self.news.wait()

    async def until_settled(self) -> Mapping[int, int]:
        while not self.settings and not self.ended:
            self.news.clear()
            await self.news.wait()
        return self.settings

    async def _put(self, stream: int, body: bytes) -> None:
        while not self.is_over(stream) and min(self.window, self.windows[stream]) < len(body):
            self.news.clear()
            await self.news.wait()
        if self.is_over(stream):
            return
        self.window -= len(body)
        self.windows[stream] -= len(body)
        self.sent += len(body)
        self.writer.write(frame(DATA, 0, stream, body))
        with suppress(ConnectionError):
            await self.writer.drain()

    async def _read(self) -> None:
        try:
            while True:
                head = await self.reader.readexactly(9)
                stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                body = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], stream, body)
                self.news.set()
        except (asyncio.IncompleteReadError, OSError):
            self.ended = True
            self.news.set()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(body), 6):
                self.settings[int.from_bytes(body[at : at + 2], "big")] = int.from_bytes(body[at + 2 : at + 6], "big")
            grown = self.settings.get(4, 65535) - self.initial
            self.initial += grown
            for each in self.windows:
                self.windows[each] += grown
            self.writer.write(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.writer.write(frame(PING, ACK, 0, body))
        elif kind == WINDOW_UPDATE:
            grown = int.from_bytes(body, "big")
            if stream:
                self.windows[stream] = self.windows.get(stream, self.initial) + grown
            else:
                self.window += grown
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self.closed.add(stream)
        elif kind == GOAWAY:
            self.ended = True
