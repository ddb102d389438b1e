"""A stranger at the cluster port that speaks the protocol between nodes by hand, so that nothing keeps it from being
rude."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

from starlingmq.net.peers.peer_wire import MessageReader, framed, head

MIB = 1024 * 1024
CHUNK_BYTES = 16384


class Stranger:
    """One connection, from ``address``."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.port = port
        self.address = address
        self.wire = MessageReader(MIB)
        self.messages: list[bytes] = []

    async def __aenter__(self) -> Stranger:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.address, 0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def say(self, message: bytes) -> None:
        self.writer.write(framed(message))

    async def answer(self) -> bytes | None:
        """The next message of the node; None: it has closed the connection."""
        while not self.messages:
            try:
                data = await self.reader.read(CHUNK_BYTES)
            except OSError:
                return None
            if not data:
                return None
            self.messages += self.wire.feed(data)
        return self.messages.pop(0)

    @property
    def reason(self) -> str | None:
        """Why the node has closed the connection."""
        return self.wire.reason

    async def until_ended(self) -> None:
        while await self.answer() is not None:
            pass

    async def send(self, size: int) -> None:
        """A message of so many bytes, until the node closes the connection."""
        with suppress(OSError):
            self.writer.write(head(size, b""))
            chunk = bytes(CHUNK_BYTES)
            while size > 0 and not self.reader.at_eof():
                self.writer.write(chunk)
                await self.writer.drain()
                size -= CHUNK_BYTES
