"""Parser for what a NATS server sends: the other end of ``wire.nats``.

Bytes arrive in any pieces. An incomplete frame is kept, and parsed again when the bytes that it lacks have arrived.
Bounds: a line has at most ``LINE_MAX`` bytes (INFO of a large cluster), a message ``SIZE_MAX``, which is the most that
nats-server can be set to.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.nats import PARSER_ERROR, NatsError
from starlingmq.wire.partial_frame import PartialFrame

INFO: Final = 0  # its JSON is the payload
MSG: Final = 1  # HMSG as well
PING: Final = 2
PONG: Final = 3
OK: Final = 4
ERR: Final = 5  # its text, without quotation marks, is the payload

LINE_MAX: Final = 256 << 10
SIZE_MAX: Final = 64 << 20

_BARE: Final = {b"PING": PING, b"PONG": PONG, b"+OK": OK}


class ServerFrame:
    kind: int
    subject: bytes
    sid: bytes
    reply: bytes  # b"" without
    headers: bytes  # the whole block, b"" without
    payload: bytes

    def __init__(
        self,
        kind: int,
        payload: bytes = b"",
        subject: bytes = b"",
        sid: bytes = b"",
        reply: bytes = b"",
        headers: bytes = b"",
    ) -> None:
        self.kind = kind
        self.subject = subject
        self.sid = sid
        self.reply = reply
        self.headers = headers
        self.payload = payload


class ServerFrames:
    _partial: PartialFrame

    def __init__(self) -> None:
        self._partial = PartialFrame()

    def read(self, data: bytes) -> list[ServerFrame]:
        """The frames that ``data`` completes. Raises NatsError."""
        data = self._partial.join(data)
        found: list[ServerFrame] = []
        pos = 0
        size = len(data)
        while pos < size:
            line_end = data.find(b"\n", pos, pos + LINE_MAX)
            if line_end < 0:
                if size - pos >= LINE_MAX:
                    raise NatsError(PARSER_ERROR)
                self._partial.keep(data, pos, 1)
                break
            start = line_end + 1
            line = data[pos:line_end].rstrip(b"\r")
            if line[:4].upper() == b"MSG " or line[:5].upper() == b"HMSG ":
                words = line.split(b" ")  # other blanks may be part of a subject
                head, total = _sizes(words)
                end = start + total
                if end + 2 > size:
                    self._partial.keep(data, pos, end + 2 - size)
                    break
                reply = words[3] if len(words) == (6 if head else 5) else b""
                found.append(
                    ServerFrame(MSG, data[start + head : end], words[1], words[2], reply, data[start : start + head])
                )
                pos = end + 2
            else:
                found.append(_line_frame(line))
                pos = start
        return found

    def waiting(self) -> bool:
        """Whether the beginning of a frame has come."""
        return bool(self._partial.parts)


def _sizes(words: list[bytes]) -> tuple[int, int]:
    """The bytes of the headers (0: MSG), and of headers and payload together."""
    with_headers = words[0].upper() == b"HMSG"
    least = 5 if with_headers else 4
    if not least <= len(words) <= least + 1 or not words[-1].isdigit() or len(words[-1]) > 8:
        raise NatsError(PARSER_ERROR)
    total = int(words[-1])
    head = int(words[-2]) if with_headers and words[-2].isdigit() and len(words[-2]) <= 8 else 0
    if total > SIZE_MAX or head > total or (with_headers and head == 0):
        raise NatsError(PARSER_ERROR)
    return head, total


def _line_frame(line: bytes) -> ServerFrame:
    kind = _BARE.get(line.strip().upper())
    if kind is not None:
        return ServerFrame(kind)
    word, _, rest = line.partition(b" ")
    if word.upper() == b"INFO":
        return ServerFrame(INFO, rest.strip())
    if word.upper() == b"-ERR":
        return ServerFrame(ERR, rest.strip().strip(b"'"))
    raise NatsError(PARSER_ERROR)
