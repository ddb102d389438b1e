"""The mark on messages of bridges: the sites that a message has been at, so that none goes round in a ring.

It is a User Property, which brokers of MQTT 5 pass on, and a header in NATS. Its law, for a message that a bridge
carries from site X to Y::

    Y is in the mark    not carried: it has been there
    X is in the mark    not carried: it has left X before, and came back by a bridge that does not look at the mark
    otherwise           carried, and X is added to the mark

A site is a broker or a cluster, named by a few characters; a broker of another kind, by the bridge to it.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.publish.bridges import MARK, sites_of
from starlingmq.wire.properties import USER_PROPERTY, decode_property_bytes, encode_property_bytes

SITES_MAX: Final = 16  # a message that has been at so many sites is not carried on
SITES_CHARS_MAX: Final = 1024  # of all of them: its publisher may have written more than a property holds
_KEY: Final = MARK.encode()


def goes_round(sites: list[str], source: str, target: str) -> bool:
    """Whether a message that has been at these sites is not to be carried from ``source`` to ``target``."""
    return source in sites or target in sites or len(sites) >= SITES_MAX or sum(map(len, sites)) > SITES_CHARS_MAX


def mark_of(site: str) -> bytes:
    """The encoded mark of a message that has been at one site only."""
    return encode_property_bytes({USER_PROPERTY: [(MARK, site)]})


def marked(properties: bytes, site: str) -> bytes:
    """The encoded properties with ``site`` added to the mark."""
    if _KEY not in properties:
        return properties + mark_of(site)
    sites = [*sites_of(properties), site]
    decoded = decode_property_bytes(properties)
    pairs = decoded[USER_PROPERTY]
    users: list[tuple[str, str]] = []
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, tuple) and pair[0] != MARK:
            users.append(pair)
    decoded[USER_PROPERTY] = [*users, (MARK, " ".join(sites))]
    return encode_property_bytes(decoded)


def sites_in(headers: bytes) -> list[str]:
    """The sites that a NATS message with this block of headers has been at."""
    found: list[str] = []
    if _KEY in headers:
        for line in headers.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == _KEY:
                found += value.decode(errors="replace").split()
    return found


def headed(headers: bytes, site: str) -> bytes:
    """The block of headers (b"": none) with ``site`` added to the mark."""
    lines = headers[:-4].split(b"\r\n") if headers else [b"NATS/1.0"]
    sites = [*sites_in(headers), site]
    kept = [line for line in lines if _KEY not in line or line.partition(b":")[0].strip().lower() != _KEY]
    return b"%b\r\n%b: %b\r\n\r\n" % (b"\r\n".join(kept), _KEY, " ".join(sites).encode())
