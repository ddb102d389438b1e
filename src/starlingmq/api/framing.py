"""Request heads that h11 accepts, and that a proxy in front may read differently.

Two readers that disagree about where a request ends let a client smuggle a second request past the first reader (RFC
9112, 11.2). h11 ends lines at a bare LF, joins folded lines, reads equal Content-Length headers as one, and lets
Transfer-Encoding outweigh Content-Length. All of it is allowed, none of it is needed, and all of it is refused here.
"""

from __future__ import annotations

from typing import Final

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
