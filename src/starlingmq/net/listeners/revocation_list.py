"""The certificates that a revocation list names (RFC 5280, 5): bytes in, issuers and serial numbers out.

OpenSSL checks signatures and dates of the list in each handshake. This module is for ending connections that were made
before the list named their certificate. Issuers are compared byte by byte, as their authority has encoded them.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

Identity = tuple[bytes, int]
"""The issuer of a certificate, in DER, and its serial number."""

_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)
_INTEGER: Final = 0x02
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0


class DerError(ValueError):
    """The bytes are not valid DER of the expected structure."""


def revoked_by(pem: bytes) -> frozenset[Identity]:
    """The certificates that the lists in a PEM file revoke. Raises DerError."""
    lists = _PEM.findall(pem)
    if not lists:
        raise DerError("it contains no -----BEGIN X509 CRL-----")
    found: set[Identity] = set()
    for text in lists:
        try:
            der = binascii.a2b_base64(b"".join(text.split()), strict_mode=True)
        except binascii.Error as error:
            raise DerError(f"a revocation list is not valid base64: {error}") from None
        found |= _revoked(der)
    return frozenset(found)


def identity(certificate: bytes) -> Identity:
    """That of a certificate in DER. Raises DerError."""
    at, _ = _inside(certificate, *_inside(certificate, 0, len(certificate)))
    tag, start, end = _element(certificate, at, len(certificate))
    if tag == _VERSION:
        tag, start, end = _element(certificate, end, len(certificate))
    if tag != _INTEGER:
        raise DerError("a certificate has no serial number")
    serial = int.from_bytes(certificate[start:end], "big", signed=True)
    _, _, issuer = _element(certificate, end, len(certificate))  # after the algorithm
    _, _, after = _element(certificate, issuer, len(certificate))
    return certificate[issuer:after], serial


def _revoked(der: bytes) -> set[Identity]:
    at, limit = _inside(der, *_inside(der, 0, len(der)))
    tag, _, end = _element(der, at, limit)
    if tag == _INTEGER:  # the version
        _, _, end = _element(der, end, limit)
    _, _, after = _element(der, end, limit)
    issuer = der[end:after]
    at = after
    while at < limit:
        tag, start, end = _element(der, at, limit)
        if tag == _SEQUENCE:
            return {(issuer, serial) for serial in _serials(der, start, end)}
        if tag not in (_UTC_TIME, _GENERALIZED_TIME):
            break
        at = end
    return set()  # the list is empty


def _serials(der: bytes, at: int, limit: int) -> list[int]:
    found = []
    while at < limit:
        _, start, after = _element(der, at, limit)
        tag, start, end = _element(der, start, after)
        if tag != _INTEGER:
            raise DerError("an entry of a revocation list has no serial number")
        found.append(int.from_bytes(der[start:end], "big", signed=True))
        at = after
    return found


def _inside(der: bytes, at: int, limit: int) -> tuple[int, int]:
    """Begin and end of the content of a sequence."""
    tag, start, end = _element(der, at, limit)
    if tag != _SEQUENCE:
        raise DerError("expected a DER sequence")
    return start, end


def _element(der: bytes, at: int, limit: int) -> tuple[int, int, int]:
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
