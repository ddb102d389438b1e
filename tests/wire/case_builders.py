"""A case of the wire format, and the builders of frames."""

from __future__ import annotations

from typing import NamedTuple

from starlingmq.wire.mqtt import (
    Packet,
)

MALFORMED = 0x81
PROTOCOL = 0x82
VERSION = 0x84
TOPIC = 0x90
ALIAS = 0x94

WILL = 0


class Case(NamedTuple):
    """``packet`` is None for a frame that must be refused with ``reason``. ``canonical``: encoding gives this frame."""

    name: str
    frame: bytes
    version: int
    packet: Packet | None
    reason: int = 0
    canonical: bool = True


def joined(*pieces: str | bytes) -> bytes:
    return b"".join(bytes.fromhex(piece) if isinstance(piece, str) else piece for piece in pieces)


def s(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def sized(body: bytes) -> bytes:
    """``body`` with its length as a variable byte integer before it."""
    length, out = len(body), b""
    while True:
        length, digit = divmod(length, 128)
        out += bytes((digit | (128 if length else 0),))
        if not length:
            return out + body


def frame(first: int, *pieces: str | bytes) -> bytes:
    return bytes((first,)) + sized(joined(*pieces))


def props(*pieces: str | bytes) -> bytes:
    return sized(joined(*pieces))


def good(name: str, version: int, raw: bytes, packet: Packet) -> Case:
    return Case(f"{name} v{version}", raw, version, packet)


def other(name: str, version: int, raw: bytes, packet: Packet) -> Case:
    """Legal, but not the form that the encoder writes."""
    return Case(f"{name} v{version}", raw, version, packet, canonical=False)


def bad(name: str, version: int, raw: bytes, reason: int = MALFORMED) -> Case:
    return Case(f"{name} v{version}", raw, version, None, reason)


# MQTT 5, 1.5.4: a lone continuation, overlong forms, a surrogate, beyond U+10FFFF, an unfinished sequence, U+0000.
BAD_TEXT = (b"\x80", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82", b"\xff", b"a\0b")
# Legal though odd: U+FEFF is no byte order mark [MQTT-1.5.4-3], the last code point, a control character.
ODD_TEXT = ("\ufeffx", "\U0010ffff", "\x01", "Ω≈ç√", "\u200f")
