"""The beginning of a frame, kept until the bytes that it lacks have arrived.

Pieces are joined once, when they may be enough: joining at each read would copy a frame of n pieces n times.
"""

from __future__ import annotations


class PartialFrame:
    parts: list[bytes]
    missing: int  # bytes that it lacks at least

    def __init__(self) -> None:
        self.parts = []
        self.missing = 0

    def join(self, data: bytes) -> bytes:
        """All bytes of the frame so far, with ``data`` at their end; b"" if they are not enough."""
        if not self.parts:
            return data
        self.parts.append(data)
        self.missing -= len(data)
        if self.missing > 0:
            return b""
        whole = b"".join(self.parts)
        self.parts = []
        return whole

    def keep(self, data: bytes, pos: int, missing: int) -> None:
        """The frame that begins at ``pos`` lacks so many bytes, or more."""
        self.parts = [data[pos:]]
        self.missing = missing
