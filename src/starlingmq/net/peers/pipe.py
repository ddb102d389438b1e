"""A connection as whole messages in both directions."""

from __future__ import annotations

from typing import Protocol


class Pipe(Protocol):
    """``read`` returns None at the end; ``arrived``: the messages that could be read without waiting; ``write`` waits
    while the other side is slow. ``read`` and ``write`` raise OSError."""

    async def read(self) -> bytes | None: ...
    def arrived(self) -> list[bytes]: ...
    async def write(self, message: bytes) -> None: ...
