"""The mark on messages of bridges: the sites that a message has been at, so that none goes round in a ring.

It is a User Property, which brokers of MQTT 5 pass on. Its law, for a message that a bridge carries from site X to Y::

    Y is in the mark                the message is not carried
    otherwise                       it is carried, and X is added to the mark

A site is a broker or a cluster, named by a few characters; a broker of another kind, by the bridge to it.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.properties import USER_PROPERTY, Properties, decode_property_bytes, encode_property_bytes

MARK: Final = "starlingmq-sites"
SITES_MAX: Final = 16  # a message that has been at so many sites is not carried on
_KEY: Final = MARK.encode()


def sites_of(properties: bytes) -> list[str]:
    """The sites that a message with these encoded properties has been at."""
    if _KEY not in properties:
        return []
    return _marks(decode_property_bytes(properties))


def marked(properties: bytes, site: str) -> bytes:
    """The encoded properties with ``site`` added to the mark."""
    if _KEY not in properties:
        return properties + encode_property_bytes({USER_PROPERTY: [(MARK, site)]})
    decoded = decode_property_bytes(properties)
    sites = [*_marks(decoded), site]
    pairs = decoded[USER_PROPERTY]
    users: list[tuple[str, str]] = []
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, tuple) and pair[0] != MARK:
            users.append(pair)
    decoded[USER_PROPERTY] = [*users, (MARK, " ".join(sites))]
    return encode_property_bytes(decoded)


def _marks(properties: Properties) -> list[str]:
    pairs = properties.get(USER_PROPERTY)
    found: list[str] = []
    if isinstance(pairs, list):
        for pair in pairs:
            if isinstance(pair, tuple) and pair[0] == MARK:
                found += pair[1].split()
    return found
