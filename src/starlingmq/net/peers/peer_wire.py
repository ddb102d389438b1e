"""Messages on a connection between two nodes, as bytes.

A message is its length (u32, big-endian) and its bytes. If the highest bit of the length is set, the bytes are the
reason for which the sender closes the connection, in UTF-8, and nothing follows. A length with all bits set is a sign
of life, and has no bytes.

Invariants:
- A length above the limit is an error as soon as it has arrived: a node keeps no more of a message.
- Bytes after the end are not read.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

HEAD: Final = Struct(">I")
HEAD_BYTES: Final = 4
END: Final = 0x8000_0000
ALIVE: Final = 0xFFFF_FFFF
SIGN_OF_LIFE: Final = HEAD.pack(ALIVE)
REASON_BYTES_MAX: Final = 1200
BEGIN_BYTES: Final = 16  # in which HTTP/2 is recognised
HTTP2: Final = b"PRI "
SETTINGS: Final = b"\x04\x00\x00\x00\x00\x00"  # of HTTP/2, behind the three bytes of its length


class WireError(Exception):
    """The bytes are not messages of a node; one line."""


class OlderError(WireError):
    """The other side speaks HTTP/2, as nodes of protocol version 2 did."""


class MessageReader:
    """``limit``: bytes of one message. ``reason`` is set once the sender has ended the connection."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reason: str | None = None
        self._buffer = bytearray()
        self._needed = HEAD_BYTES  # bytes in the buffer with which there is more to do

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now, without signs of life. Raises WireError."""
        buffer = self._buffer
        messages: list[bytes] = []
        if len(buffer) == 0 and self.reason is None:
            data = self._take_whole(data, messages)
            if len(data) == 0:
                return messages
        buffer += data
        if len(buffer) < self._needed or self.reason is not None:
            return messages
        start = 0
        error: WireError | None = None
        with memoryview(buffer) as view:
            while True:
                if len(buffer) - start < HEAD_BYTES:
                    self._needed = HEAD_BYTES
                    break
                length: int = HEAD.unpack_from(buffer, start)[0]
                if length == ALIVE:
                    start += HEAD_BYTES
                    continue
                ends = length >= END
                if ends:
                    length -= END
                if length > (REASON_BYTES_MAX if ends else self.limit):
                    error = _error(bytes(view[start : start + BEGIN_BYTES]))
                    break
                begin = start + HEAD_BYTES
                after = begin + length
                if after > len(buffer):
                    self._needed = after - start
                    break
                if ends:
                    self.reason = bytes(view[begin:after]).decode(errors="replace")
                    break
                messages.append(bytes(view[begin:after]))
                start = after
        if error is not None:
            del buffer[BEGIN_BYTES:]
            raise error
        del buffer[:start]
        return messages

    def _take_whole(self, data: bytes, messages: list[bytes]) -> bytes:
        """Take whole messages from the begin of ``data``, without a copy in between. Returns the rest."""
        size = len(data)
        start = 0
        while size - start >= HEAD_BYTES:
            length = data[start] << 24 | data[start + 1] << 16 | data[start + 2] << 8 | data[start + 3]
            after = start + HEAD_BYTES + length
            if length > self.limit or after > size:
                break
            messages.append(data[start + HEAD_BYTES : after])
            start = after
        return data if start == 0 else data[start:]

    def is_settings(self) -> bool:
        """Whether what has come so far is the begin of HTTP/2, from a listener of protocol version 2."""
        return self._buffer[3:9] == SETTINGS


def _error(begin: bytes) -> WireError:
    if begin.startswith(HTTP2) or begin[3:9] == SETTINGS:
        return OlderError("it speaks an older protocol between nodes")
    return WireError("it does not speak the protocol between nodes")


def framed(message: bytes) -> bytes:
    return HEAD.pack(len(message)) + message


def ending(reason: str) -> bytes:
    """The last bytes of a connection."""
    text = reason.encode()[:REASON_BYTES_MAX]
    return HEAD.pack(END | len(text)) + text
