"""Splits a byte stream into MQTT frames, whatever the sizes of the reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlingmq.wire.mqtt import frame_length
from starlingmq.wire.reasons import MalformedPacket, Reason

MAX_HEADER: Final = 5


class Frames:
    """``feed`` yields (first byte, data, start, end) per whole frame; the body is ``data[start:end]``.

    ``limit`` is the largest frame accepted, header included (0: no limit but the protocol's).
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0
        self._wanted = 0  # length of the first frame once known: until it has arrived nothing is joined, so that a
        # frame of many reads is copied once, not once per read

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes, int, int]]:
        if self._parts:
            self._parts.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        pos, size = 0, len(data)
        while pos < size:
            length = frame_length(data, pos)
            if self._limit and length > self._limit:
                raise MalformedPacket(
                    f"received a packet of {length} bytes, which is more than this client accepts",
                    Reason.PACKET_TOO_LARGE,
                )
            if length == 0 or pos + length > size:
                self._keep(data[pos:], length)
                return
            yield data[pos], data, body_start(data, pos), pos + length
            pos += length

    @property
    def rest(self) -> bytes:
        """The bytes of the next frame that have arrived."""
        return b"".join(self._parts)

    def _keep(self, rest: bytes, wanted: int) -> None:
        self._parts.append(rest)
        self._held = len(rest)
        self._wanted = wanted


def body_start(data: bytes, pos: int) -> int:
    """Return the start of the body of the frame that begins at ``pos``, after its one to four length bytes."""
    pos += 1
    while data[pos] >= 0x80:
        pos += 1
    return pos + 1
