"""Input that h11 accepts, and that this broker refuses: request heads that a proxy in front may read differently, and
input that costs far more to read than to send.

Two readers that disagree about where a request ends let a client smuggle a second request past the first reader (RFC
9112, 11.2). h11 ends lines at a bare LF, joins folded lines, reads equal Content-Length headers as one, and lets
Transfer-Encoding outweigh Content-Length. All of it is allowed, none of it is needed, and all of it is refused here.

h11 accepts as many lines as fit into a head, and bodies in chunks of one byte. A read of a quarter of a megabyte could
contain tens of thousands of either, and everything else in the process would wait for it.
"""

from __future__ import annotations

import re
from typing import Final

import h11

LINES_MAX: Final = 128
"""Lines of a head, and of the trailers after a chunked body."""
CHUNKS_MAX: Final = 256
"""Chunks of one body. For the largest body this is 8 KiB on average."""

_size_line: Final = re.compile(rb"\r?\n?([0-9A-Fa-f]+)[ \t]*(?:;[^\r\n]*)?\r\n")


class BoundedConnection(h11.Connection):
    """``next_event`` raises ``h11.RemoteProtocolError`` when a bound is exceeded, before h11 has read the excess."""

    def __init__(self, incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, incomplete_event_size)
        self._chunked = False
        self._chunks = 0  # complete ones; h11 does not always report where a chunk begins
        self._between = False  # the next bytes are the size of a chunk
        self._trailers = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            _check_lines(self.trailing_data[0])
        elif self._between and self.their_state is h11.SEND_BODY:
            self._check_trailers(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = 0
            self._between = self._chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            self._trailers = False
        elif isinstance(event, h11.Data) and self._chunked:
            self._chunks += event.chunk_end
            self._between = event.chunk_end
            if self._chunks > CHUNKS_MAX:
                raise h11.RemoteProtocolError(f"a request body may have at most {CHUNKS_MAX} chunks")
        return event

    def _check_trailers(self, rest: bytes) -> None:
        if self._trailers:
            _check_lines(rest)
        elif size := _size_line.match(rest):
            self._trailers = not size[1].strip(b"0")
            self._between = self._trailers
            if self._trailers:
                _check_lines(rest[size.end() :])


def _check_lines(data: bytes) -> None:
    """``data`` begins with header lines, which may be incomplete."""
    lines = data.split(b"\n", LINES_MAX + 1)
    if len(lines) > LINES_MAX + 1 and not any(line in (b"", b"\r") for line in lines[:-1]):
        raise h11.RemoteProtocolError(f"a request may have at most {LINES_MAX} header lines", error_status_hint=431)


HEAD_END: Final = b"\r\n\r\n"


def framing_fault(data: bytes) -> str:
    """The problem of the head that ``data`` begins with, which h11 has accepted; "" if there is none."""
    head, end, _ = data.partition(HEAD_END)
    if not end:
        return "header lines must end with CR LF"
    request, *lines = head.split(b"\r\n")
    if b"\n" in head.replace(b"\r\n", b"") or b"\r" in head.replace(b"\r\n", b""):
        return "header lines must end with CR LF"
    if any(line.startswith((b" ", b"\t")) for line in lines):
        return "a header must be on one line"
    fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    if lengths and codings:
        return "Content-Length and Transfer-Encoding must not be combined"
    if len(lengths) > 1 or not all(value.isdigit() for value in lengths):
        return "Content-Length must be a single number"
    if codings and (codings != [b"chunked"] or not request.endswith(b"HTTP/1.1")):
        return "Transfer-Encoding must be chunked, in HTTP/1.1"
    return ""
