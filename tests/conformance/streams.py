"""The two ends between which net/ sits: a transport that keeps what is written, a driver that keeps what is read."""

from __future__ import annotations

import asyncio
from typing import Any


class Stream(asyncio.Transport):
    """A transport without a network. ``ended`` is set once the other side has let go of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = asyncio.Event()

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def take(self) -> bytes:
        taken, self.written = self.written, b""
        return taken

    def write_eof(self) -> None:
        self.ended.set()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.ended.set()

    def abort(self) -> None:
        self.ended.set()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Ear:
    """A driver that notes the bytes of its connection."""

    def __init__(self) -> None:
        self.heard = b""
        self.transport: Any = None

    def opened(self, transport: Any, listener: str, peer: str, full: int = 0) -> Any:
        self.transport = transport
        return self

    def received(self, client: Any, data: bytes) -> None:
        self.heard += data

    def readdressed(self, client: Any, peer: str, full: int) -> None: ...

    def identified(self, client: Any) -> None: ...

    def secured(self, client: Any) -> None: ...

    def lost(self, client: Any) -> None: ...

    def blocked(self, client: Any) -> None: ...

    def drained(self, client: Any) -> None: ...
