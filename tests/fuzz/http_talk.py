"""HTTP requests that are nearly right: of the routes that there are, with damaged paths, headers and bodies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

READ: Final = (
    b"overview", b"cluster/overview", b"links", b"log", b"clients", b"activity", b"sessions", b"subscriptions",
    b"session", b"nodes", b"routes", b"groups", b"drain", b"retained", b"retained/message", b"metrics", b"bans",
    b"storage", b"streams", b"config", b"listeners", b"openapi.json", b"tail", b"trace", b"peers",
    b"topics/last", b"topics/history",
)  # fmt: skip
CHANGE: Final = (
    b"publish", b"bans", b"streams", b"streams/trim", b"drain", b"reload", b"cluster/leave", b"client", b"session",
    b"retained/message", b"links/pause", b"links/resume", b"links/drain",
)  # fmt: skip
OPEN: Final = (b"/", b"/docs", b"/health/live", b"/health/ready")
METHODS: Final = (b"POST", b"PUT", b"DELETE", b"PATCH", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"get", b"BREW")
QUERY: Final = (
    b"", b"", b"?limit=10", b"?limit=-1", b"?limit=99999999999999999999", b"?cursor=%ff", b"?node=n9", b"?topic=a/%00",
    b"?filter=%23", b"?filter=", b"?client_id=" + b"x" * 3000, b"?&&&=", b"?limit=1&limit=2", b"?name=%f0%28%8c%28",
    b"?topic=canary&before=-1", b"?topic=canary&since=2026-13-01T", b"?topic=canary&limit=10&before=1&stream=%2f",
)  # fmt: skip
FORGED: Final = b'{"topic": "sane/exchange", "payload": "forged"}'
BODIES: Final = (
    FORGED, FORGED, b"{}", b"[]", b"null", b'"', b"{" * 5000, b"[" * 100_000, b'{"topic": "\\ud800", "payload": 1e999}',
    b'{"kind": "address", "name": "127.0.0.1", "seconds": 60}', b"\xff\xfe", b"a=b&c=d",
)  # fmt: skip
EXTRA: Final = (
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: 0x10",
    b"Content-Length: 1, 1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding : chunked", b"Expect: 100-continue", b"Expect: 500-fail",
    b"Upgrade: websocket", b"Upgrade: h2c", b"Connection: close", b"Connection: Upgrade, HTTP2-Settings",
    b"Range: bytes=0-,0-,0-", b"X-Forwarded-For: 127.0.0.1", b"Forwarded: for=127.0.0.1;proto=https",
    b"X-HTTP-Method-Override: DELETE", b"Accept: " + b"*/*;q=0.1," * 500, b"Accept-Encoding: br;q=nan",
    b"If-None-Match: *", b"Cookie: " + b"a=b; " * 400, b"Host: elsewhere.example", b"Host:", b"Origin: null",
    b"Content-Type: text/plain", b"Content-Type: multipart/form-data; boundary=", b"X-Large: " + b"x" * 40_000,
    b": empty", b"NoColon", b" folded: line", b"X-Zero: a\0b", b"Authorization: Bearer wrong-token-0123456789",
    b"Authorization: Basic =====", b"Authorization: Basic " + b"QTpC" * 2000, b"Authorization:",
    b"Authorization: Bearer",
)  # fmt: skip


def path(rng: Random, plain: bytes) -> bytes:
    """The same one, or another spelling of it."""
    spell: Callable[[], bytes] = rng.choice(
        (
            lambda: plain,
            lambda: plain,
            lambda: b"/" + plain,
            lambda: plain.replace(b"/", b"//"),
            lambda: plain.replace(b"/", b"/./", 1),
            lambda: plain.replace(b"/", b"%2f").replace(b"%2f", b"/", 1),
            lambda: b"/x/.." + plain,
            lambda: b"/health/live/../.." + plain,
            lambda: plain + b"/",
            lambda: plain + b";x",
            lambda: plain + b".",
            lambda: plain + b"%00",
            lambda: plain.upper(),
            lambda: b"http://localhost" + plain,
            lambda: plain.replace(b"a", b"%61"),
            lambda: plain.replace(b"/", b"\\"),
            lambda: b"*",
            lambda: plain + b"/" + b"a/" * 2000,
        )
    )
    return spell()


def request(rng: Random, token: bytes = b"") -> bytes:
    """With a token it only looks: what it says is not damaged then."""
    if token:
        route = b"/api/v1/" + rng.choice(READ) if rng.random() < 0.9 else b"/metrics"
        head = [b"GET " + path(rng, route) + rng.choice(QUERY) + b" HTTP/1.1", b"Host: localhost"]
        return b"\r\n".join([*head, b"Authorization: Bearer " + token, *_extra(rng, 1), b"", b""])
    kind = rng.random()
    if kind < 0.4:
        method, route = b"GET", b"/api/v1/" + rng.choice(READ)
    elif kind < 0.8:
        method, route = rng.choice((b"POST", b"DELETE", rng.choice(METHODS))), b"/api/v1/" + rng.choice(CHANGE)
    else:
        method, route = rng.choice((b"GET", rng.choice(METHODS))), rng.choice((*OPEN, b"/metrics", b"/%s%n"))
    version = rng.choice((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1.1", b"", b"HTTP"))
    lines = [method + b" " + path(rng, route) + rng.choice(QUERY) + b" " + version]
    lines += [b"Host: localhost"] * rng.choice((1, 1, 1, 1, 0, 2))
    body = rng.choice(BODIES) if rng.random() < 0.6 else b""
    if body:
        lines.append(b"Content-Type: application/json")
        if rng.random() < 0.7:
            lines.append(b"Content-Length: %d" % max(0, len(body) + rng.choice((0, 0, 0, 0, -1, 1, 1000))))
        else:
            lines.append(b"Transfer-Encoding: chunked")
            body = chunked(rng, body)
    lines += _extra(rng, 3)
    rng.shuffle(tail := lines[1:])
    said = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\n")).join([lines[0], *tail, b"", b""]) + body
    return damaged(rng, said) if rng.random() < 0.3 else said


def _extra(rng: Random, most: int) -> list[bytes]:
    return [rng.choice(EXTRA) for _ in range(rng.randrange(most + 1))]


def chunked(rng: Random, body: bytes) -> bytes:
    """In chunks whose sizes are mostly right."""
    out = b""
    for at in range(0, len(body), 1000):
        piece = body[at : at + 1000]
        size = len(piece) if rng.random() < 0.9 else rng.choice((0, 1, len(piece) + 1, 1 << 40, 1 << 70))
        extension = rng.choice((b"", b"", b"", b";a=b", b";" + b"x" * 5000))
        out += b"%x" % size + extension + b"\r\n" + piece + rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\n", b""))
    return out + rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"-1\r\n\r\n", b"zz\r\n"))


def damaged(rng: Random, said: bytes) -> bytes:
    """A few bytes changed, taken out or put in, in the first 300 mostly."""
    out = bytearray(said)
    for _ in range(rng.randrange(1, 6)):
        if not out:
            break
        at = rng.randrange(min(len(out), 300) if rng.random() < 0.8 else len(out))
        kind = rng.randrange(4)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            out[at:at] = rng.choice((b"\r\n", b"\r\n\r\n", b"\0", b" ", b"%", b":", b"\x80"))
    return bytes(out)
