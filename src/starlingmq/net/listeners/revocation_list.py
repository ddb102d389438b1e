"""The certificates that a revocation list names (RFC 5280, 5): bytes in, issuers and serial numbers out.

OpenSSL checks signatures and dates of the list in each handshake. This module is for ending connections that were made
before the list named their certificate. Issuers are compared byte by byte, as their authority has encoded them.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

from starlingmq.net.listeners.der import (
    GENERALIZED_TIME,
    INTEGER,
    SEQUENCE,
    UTC_TIME,
    VERSION,
    DerError,
    element,
    inside,
)

Identity = tuple[bytes, int]
"""The issuer of a certificate, in DER, and its serial number."""

_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)


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
    at, _ = inside(certificate, *inside(certificate, 0, len(certificate)))
    tag, start, end = element(certificate, at, len(certificate))
    if tag == VERSION:
        tag, start, end = element(certificate, end, len(certificate))
    if tag != INTEGER:
        raise DerError("a certificate has no serial number")
    serial = int.from_bytes(certificate[start:end], "big", signed=True)
    _, _, issuer = element(certificate, end, len(certificate))  # after the algorithm
    _, _, after = element(certificate, issuer, len(certificate))
    return certificate[issuer:after], serial


def _revoked(der: bytes) -> set[Identity]:
    at, limit = inside(der, *inside(der, 0, len(der)))
    tag, _, end = element(der, at, limit)
    if tag == INTEGER:  # the version
        _, _, end = element(der, end, limit)
    _, _, after = element(der, end, limit)
    issuer = der[end:after]
    at = after
    while at < limit:
        tag, start, end = element(der, at, limit)
        if tag == SEQUENCE:
            return {(issuer, serial) for serial in _serials(der, start, end)}
        if tag not in (UTC_TIME, GENERALIZED_TIME):
            break
        at = end
    return set()  # the list is empty


def _serials(der: bytes, at: int, limit: int) -> list[int]:
    found = []
    while at < limit:
        _, start, after = element(der, at, limit)
        tag, start, end = element(der, start, after)
        if tag != INTEGER:
            raise DerError("an entry of a revocation list has no serial number")
        found.append(int.from_bytes(der[start:end], "big", signed=True))
        at = after
    return found
