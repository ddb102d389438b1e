"""The time until which certificates (RFC 5280, 4.1.2.5) and revocation lists (5.1.2.5) are valid: PEM in, seconds since
1970 out."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from starlingmq.net.listeners.der import GENERALIZED_TIME, INTEGER, UTC_TIME, VERSION, DerError, element, inside

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)
T = TypeVar("T")
_COMMON_NAME: Final = b"\x06\x03\x55\x04\x03"  # OBJECT IDENTIFIER 2.5.4.3, with its tag and length


class Validity(NamedTuple):
    """``name``: subject of a certificate, issuer of a revocation list, in DER; ``issuer``: of a certificate."""

    name: bytes
    begins: float
    ends: float
    issuer: bytes = b""

    @property
    def common_name(self) -> str:
        """ "" if the name has none."""
        at = self.name.rfind(_COMMON_NAME)
        if at < 0:
            return ""
        try:
            _, start, end = element(self.name, at + len(_COMMON_NAME), len(self.name))
        except DerError:
            return ""
        return self.name[start:end].decode(errors="replace")


def certificates(pem: bytes) -> list[Validity]:
    """Those of a PEM file, in the order of the file. Raises DerError."""
    return _read(pem, _CERTIFICATE, certificate, "CERTIFICATE")


def revocation_lists(pem: bytes) -> list[Validity]:
    """Those of a PEM file that say when the next one is due, in the order of the file. Raises DerError."""
    return [one for one in _read(pem, _LIST, _revocation_list, "X509 CRL") if one is not None]


def without_list(authorities: bytes, lists: Iterable[bytes]) -> list[Validity]:
    """The authorities of a PEM file for whose clients none of the files with revocation lists has one: TLS refuses
    these clients. An authority that issues another one of the file need not have clients. Raises DerError."""
    listed = {name for pem in lists for name in _read(pem, _LIST, _issuer_of_list, "X509 CRL")}
    found = certificates(authorities)
    above = {one.issuer for one in found if one.issuer != one.name}
    return [one for one in latest(found) if one.name not in listed and one.name not in above]


def latest(found: Iterable[Validity]) -> list[Validity]:
    """The last to end of each name: a renewed certificate or list replaces the one that stands beside it."""
    by_name: dict[bytes, Validity] = {}
    for one in found:
        known = by_name.get(one.name)
        if known is None or known.ends < one.ends:
            by_name[one.name] = one
    return list(by_name.values())


def _read(pem: bytes, pattern: re.Pattern[bytes], parse: Callable[[bytes], T], title: str) -> list[T]:
    texts = pattern.findall(pem)
    if not texts:
        raise DerError(f"it contains no -----BEGIN {title}-----")
    try:
        return [parse(binascii.a2b_base64(b"".join(text.split()), strict_mode=True)) for text in texts]
    except binascii.Error as error:
        raise DerError(f"{title} is not valid base64: {error}") from None


def certificate(der: bytes) -> Validity:
    """Raises DerError."""
    at, limit = inside(der, *inside(der, 0, len(der)))
    tag, _, end = element(der, at, limit)
    if tag == VERSION:
        _, _, end = element(der, end, limit)  # the serial number
    _, _, issued = element(der, end, limit)  # the signature
    _, _, end = element(der, issued, limit)
    issuer = der[issued:end]
    at, last = inside(der, end, limit)
    tag, start, end = element(der, at, last)
    begins = _time(tag, der[start:end])
    tag, start, end = element(der, end, last)
    _, _, after = element(der, last, limit)
    return Validity(der[last:after], begins, _time(tag, der[start:end]), issuer)


def _issuer_of_list(der: bytes) -> bytes:
    begin, end, _ = _issuer_place(der)
    return der[begin:end]


def _issuer_place(der: bytes) -> tuple[int, int, int]:
    """Begin and end of the issuer of a revocation list, and the end of what it signs."""
    at, limit = inside(der, *inside(der, 0, len(der)))
    tag, _, end = element(der, at, limit)
    if tag == INTEGER:  # the version
        _, _, end = element(der, end, limit)
    _, _, after = element(der, end, limit)
    return end, after, limit


def _revocation_list(der: bytes) -> Validity | None:
    begin, after, limit = _issuer_place(der)
    name = der[begin:after]
    tag, start, end = element(der, after, limit)
    begins = _time(tag, der[start:end])
    if end >= limit:
        return None
    tag, start, end = element(der, end, limit)
    return Validity(name, begins, _time(tag, der[start:end])) if tag in (UTC_TIME, GENERALIZED_TIME) else None


def _time(tag: int, value: bytes) -> float:
    if tag == UTC_TIME:  # two digits for the years 1950 to 2049
        value = (b"19" if value[:2] >= b"50" else b"20") + value
    elif tag != GENERALIZED_TIME:
        raise DerError("the validity is no time")
    try:
        return datetime.strptime(value.decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise DerError("the validity is not a valid time") from None
