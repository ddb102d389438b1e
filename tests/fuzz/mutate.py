"""Frames that are nearly right: those of the table of wire cases, damaged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from tests.wire.cases import CASES

LARGEST: Final = 2048  # longer cases of the table would take most of the time
VERSIONS: Final = (3, 4, 5)
TELLING: Final = (0x00, 0x01, 0x7F, 0x80, 0x81, 0xFF)  # bytes at which lengths and flags change their meaning

FRAMES: Final = {
    version: [case.frame for case in CASES if case.version == version and len(case.frame) <= LARGEST]
    for version in VERSIONS
}


def some_frame(rng: Random, version: int) -> bytes:
    """One of the table: of this version nine times in ten."""
    return rng.choice(FRAMES[version if rng.random() < 0.9 else rng.choice(VERSIONS)])


def mutated(rng: Random, version: int) -> bytes:
    """A frame with up to four kinds of damage."""
    frame = bytearray(some_frame(rng, version))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        rng.choice(DAMAGES)(rng, frame, version)
    if rng.random() < 0.5:
        put_right(rng, frame, version)
    return bytes(frame)


def place(rng: Random, frame: bytearray) -> int:
    """A position; the first bytes, where the lengths are, are damaged more often."""
    size = len(frame)
    return rng.randrange(min(size, 12) if rng.random() < 0.5 else size) if size else 0


def flip(rng: Random, frame: bytearray, version: int) -> None:
    if frame:
        frame[place(rng, frame)] ^= 1 << rng.randrange(8)


def overwrite(rng: Random, frame: bytearray, version: int) -> None:
    if frame:
        frame[place(rng, frame)] = rng.choice(TELLING) if rng.random() < 0.7 else rng.randrange(256)


def cut(rng: Random, frame: bytearray, version: int) -> None:
    del frame[place(rng, frame) :]


def take_out(rng: Random, frame: bytearray, version: int) -> None:
    at = place(rng, frame)
    del frame[at : at + rng.randrange(1, 9)]


def put_in(rng: Random, frame: bytearray, version: int) -> None:
    at = place(rng, frame)
    frame[at:at] = rng.randbytes(rng.randrange(1, 9))


def repeat(rng: Random, frame: bytearray, version: int) -> None:
    at = place(rng, frame)
    frame[at:at] = frame[at : at + rng.randrange(1, 40)]


def splice(rng: Random, frame: bytearray, version: int) -> None:
    """Go on with the end of another frame."""
    other = some_frame(rng, version)
    frame[place(rng, frame) :] = other[rng.randrange(len(other)) :]


def lie(rng: Random, frame: bytearray, version: int) -> None:
    """Change the remaining length, to one that may have any number of bytes."""
    end = 1
    while end < len(frame) and end < 5 and frame[end] & 0x80:
        end += 1
    frame[1 : end + 1] = rng.choice(LIES) if rng.random() < 0.3 else varint(max(0, len(frame) + rng.randrange(-9, 9)))


def put_right(rng: Random, frame: bytearray, version: int) -> None:
    """Make the remaining length true again, so that other damage is found behind it."""
    end = 1
    while end < len(frame) and end < 5 and frame[end] & 0x80:
        end += 1
    body = frame[end + 1 :]
    frame[1:] = varint(len(body)) + body


def varint(value: int) -> bytes:
    out = b""
    while True:
        value, digit = divmod(value, 128)
        out += bytes((digit | (0x80 if value else 0),))
        if not value:
            return out


LIES: Final = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x01", b"\x80\x80\x80\x00", b"\x80\x00", b"\x00", b"\xff\xff\x03")
Damage = Callable[[Random, bytearray, int], None]
DAMAGES: Final[tuple[Damage, ...]] = (
    flip, flip, overwrite, overwrite, cut, take_out, put_in, repeat, splice, lie, put_right,
)  # fmt: skip
