"""A gRPC stream as whole messages in both directions."""

from __future__ import annotations

from typing import Any, Protocol


class Pipe(Protocol):
    """``read`` returns None at the end; ``write`` waits while the other side is slow."""

    async def read(self) -> bytes | None: ...
    async def write(self, message: bytes) -> None: ...


class CallPipe:
    """``call``: either side of a stream of bytes. Raises errors of gRPC."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        message = await self._call.read()
        return message if isinstance(message, bytes) else None

    async def write(self, message: bytes) -> None:
        await self._call.write(message)
