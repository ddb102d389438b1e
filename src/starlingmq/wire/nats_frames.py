"""What a NATS server says. A message to many subscribers is the same but for its ``sid``: head + sid + tail."""

from __future__ import annotations

from typing import Final

import msgspec

OK_FRAME: Final = b"+OK\r\n"
PING_FRAME: Final = b"PING\r\n"
PONG_FRAME: Final = b"PONG\r\n"

NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"


# The end of the line of a message without reply and headers, for payloads of usual sizes: "%d" is slow.
_SIZES: Final[list[bytes]] = [b" %d\r\n" % (size,) for size in range(4096)]


def message_head(subject: bytes) -> bytes:
    """Of a MSG; an ``H`` before it makes it that of an HMSG."""
    return b"MSG %b " % (subject,)


def message_tail(reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """What follows the sid: ``headers`` b"" for a MSG, else the whole block of an HMSG."""
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
