"""Messages on a connection between two nodes, as bytes.

A message is a head and its bytes. The head is their length, its complement, and their CRC-32 (u32 each, big-endian).
What was damaged on the way ends the connection, and is sent again over the next one: TCP's own sum misses some damage,
and a wrong number would pass for the state of a node. TLS protects against attackers.

If the highest bit of the length is set, the bytes are the reason for which the sender closes the connection, in UTF-8,
and nothing follows. A length with all bits set is a sign of life, and has no bytes.

Invariants:
- A length that is above the limit, or damaged, is an error as soon as its head has arrived: a node keeps no more of a
  message.
- Bytes after the end are not read.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from librt.strings import read_i32_be

HEAD: Final = Struct(">III")
HEAD_BYTES: Final = 12
END: Final = 0x8000_0000
ALIVE: Final = 0xFFFF_FFFF
SIGN_OF_LIFE: Final = HEAD.pack(ALIVE, 0, 0)
REASON_BYTES_MAX: Final = 1200
BEGIN_BYTES: Final = 16  # in which HTTP/2 is recognised
HTTP2: Final = b"PRI "
NO_NODE: Final = "it does not speak the protocol between nodes, or its bytes were damaged on the way"
DAMAGED: Final = "bytes from it were damaged on the way"
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
                length, complement, check = HEAD.unpack_from(buffer, start)
                if length + complement != ALIVE:
                    error = _error(bytes(view[start : start + BEGIN_BYTES]))
                    break
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
                message = bytes(view[begin:after])
                if crc32(message) != check:
                    error = WireError(DAMAGED)
                    break
                if ends:
                    self.reason = message.decode(errors="replace")
                    break
                messages.append(message)
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
            length = int(read_i32_be(data, start))
            after = start + HEAD_BYTES + length
            if length < 0 or length > self.limit or after > size or int(read_i32_be(data, start + 4)) != ~length:
                break
            message = data[start + HEAD_BYTES : after]
            if crc32(message) != int(read_i32_be(data, start + 8)) & ALIVE:
                break
            messages.append(message)
            start = after
        return data if start == 0 else data[start:]

    def is_settings(self) -> bool:
        """Whether what has come so far is the begin of HTTP/2, from a listener of protocol version 2."""
        return self._buffer[3:9] == SETTINGS


def _error(begin: bytes) -> WireError:
    if begin.startswith(HTTP2) or begin[3:9] == SETTINGS:
        return OlderError("it speaks an older protocol between nodes")
    return WireError(NO_NODE)


def head(length: int, message: bytes) -> bytes:
    return HEAD.pack(length, ALIVE - length, crc32(message))


def framed(message: bytes) -> bytes:
    return head(len(message), message) + message


def ending(reason: str) -> bytes:
    """The last bytes of a connection."""
    text = reason.encode()[:REASON_BYTES_MAX]
    return head(END | len(text), text) + text
