"""Elements of DER, the encoding of certificates and revocation lists (X.690, 10): bytes in, offsets out."""

from __future__ import annotations

from typing import Final

INTEGER: Final = 0x02
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
SEQUENCE: Final = 0x30
VERSION: Final = 0xA0  # of a certificate


class DerError(ValueError):
    """The bytes are not valid DER of the expected structure."""


def inside(der: bytes, at: int, limit: int) -> tuple[int, int]:
    """Begin and end of the content of a sequence."""
    tag, start, end = element(der, at, limit)
    if tag != SEQUENCE:
        raise DerError("expected a DER sequence")
    return start, end


def element(der: bytes, at: int, limit: int) -> tuple[int, int, int]:
    """Tag, beginning and end of the content of the element at ``at``."""
    if at + 2 > limit:
        raise DerError("it is truncated")
    tag, length, start = der[at], der[at + 1], at + 2
    if length >= 0x80:
        size = length & 0x7F
        if not 1 <= size <= 4 or start + size > limit:
            raise DerError("an element has an invalid length")
        length = int.from_bytes(der[start : start + size], "big")
        start += size
    if start + length > limit:
        raise DerError("it is truncated")
    return tag, start, start + length
