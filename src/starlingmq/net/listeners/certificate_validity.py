"""The time until which a certificate is valid (RFC 5280, 4.1.2.5): PEM in, seconds since 1970 out."""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from starlingmq.config.settings import Config
from starlingmq.net.listeners.der import GENERALIZED_TIME, UTC_TIME, VERSION, DerError, element, inside

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)


def certificate_files(config: Config) -> list[Path]:
    """The files with certificates that the settings name."""
    named: list[str | None] = [listener.tls.cert for listener in config.listeners if listener.tls]
    if config.cluster.enabled:
        named += [config.cluster.tls.cert, config.cluster.tls.ca]
        if config.cluster.etcd.tls:
            named += [config.cluster.etcd.tls.cert, config.cluster.etcd.tls.ca]
    return [Path(name) for name in dict.fromkeys(named) if name]


def ends(pem: bytes) -> list[float]:
    """The end of each certificate in a PEM file, in the order of the file. Raises DerError."""
    texts = _PEM.findall(pem)
    if not texts:
        raise DerError("it contains no -----BEGIN CERTIFICATE-----")
    try:
        return [_end(binascii.a2b_base64(b"".join(text.split()), strict_mode=True)) for text in texts]
    except binascii.Error as error:
        raise DerError(f"a certificate is not valid base64: {error}") from None


def _end(der: bytes) -> float:
    at, limit = inside(der, *inside(der, 0, len(der)))
    tag, _, end = element(der, at, limit)
    if tag == VERSION:
        _, _, end = element(der, end, limit)  # the serial number
    for _ in ("signature", "issuer"):
        _, _, end = element(der, end, limit)
    at, limit = inside(der, end, limit)
    _, _, begin = element(der, at, limit)
    tag, start, end = element(der, begin, limit)
    return _time(tag, der[start:end])


def _time(tag: int, value: bytes) -> float:
    if tag == UTC_TIME:  # two digits for the years 1950 to 2049
        value = (b"19" if value[:2] >= b"50" else b"20") + value
    elif tag != GENERALIZED_TIME:
        raise DerError("the validity of a certificate is no time")
    try:
        return datetime.strptime(value.decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise DerError("the validity of a certificate is not a valid time") from None
