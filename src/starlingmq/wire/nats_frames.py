"""The frames of a NATS server. Copies of a message for several subscribers differ in the ``sid`` only: head + sid +
tail.
"""

from __future__ import annotations

from typing import Final

import msgspec

OK_FRAME: Final = b"+OK\r\n"
PING_FRAME: Final = b"PING\r\n"
PONG_FRAME: Final = b"PONG\r\n"

NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"


# Line ends of messages without reply and headers, for common payload sizes: "%d" is slow.
_SIZES: Final[list[bytes]] = [b" %d\r\n" % (size,) for size in range(4096)]


def message_head(subject: bytes) -> bytes:
    """Return the head of a MSG; prefixed with ``H`` it is the head of an HMSG."""
    return b"MSG %b " % (subject,)


def message_tail(reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """Return the part after the sid. ``headers``: b"" for a MSG, else the whole header block of an HMSG."""
    if len(headers) == 0:
        if len(reply) == 0:
            size = len(payload)
            return b"%b%b\r\n" % (_SIZES[size] if size < 4096 else b" %d\r\n" % (size,), payload)
        return b" %b %d\r\n%b\r\n" % (reply, len(payload), payload)
    total = len(headers) + len(payload)
    if len(reply) == 0:
        return b" %d %d\r\n%b%b\r\n" % (len(headers), total, headers, payload)
    return b" %b %d %d\r\n%b%b\r\n" % (reply, len(headers), total, headers, payload)


def info_frame(fields: dict[str, object]) -> bytes:
    return b"INFO %b\r\n" % (msgspec.json.encode(fields),)


def error_frame(text: str) -> bytes:
    return b"-ERR '%b'\r\n" % (text.encode(),)
