"""Properties of a message as pairs of texts: the column ``properties`` of streams, of Spark and of rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.wire.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    Properties,
    decode_property_bytes,
    encode_property_bytes,
)

NAMES: Final[dict[int, str]] = {
    PAYLOAD_FORMAT_INDICATOR: "mqtt.payload_format",
    CONTENT_TYPE: "mqtt.content_type",
    RESPONSE_TOPIC: "mqtt.response_topic",
    CORRELATION_DATA: "mqtt.correlation_data",
}
"""Names of the properties other than User Properties. Correlation data is in hexadecimal digits."""
IDENTIFIERS: Final = {name: identifier for identifier, name in NAMES.items()}
EXPIRY_MAX: Final = 0xFFFFFFFF


def named_pairs(raw: bytes) -> list[tuple[str, str]]:
    """The pairs of these encoded properties."""
    pairs: list[tuple[str, str]] = []
    for identifier, value in decode_property_bytes(raw).items():
        if identifier == USER_PROPERTY:
            assert isinstance(value, list)
            pairs += [pair for pair in value if isinstance(pair, tuple)]
        elif identifier in NAMES:
            pairs.append((NAMES[identifier], value.hex() if isinstance(value, bytes) else str(value)))
    return pairs


def encoded_pairs(pairs: Iterable[tuple[str | None, str | None] | None], expiry: int | None) -> bytes:
    """Encode such pairs, and ``expiry`` in seconds. Raises ValueError."""
    found: Properties = {}
    users: list[tuple[str, str]] = []
    for pair in pairs:
        if pair is None:
            raise ValueError("a property is null")
        name, value = pair
        if name is None or value is None:
            missing = "name" if name is None else "value"
            raise ValueError(f"property {value if name is None else name!r} has no {missing}: it is null")
        identifier = IDENTIFIERS.get(name)
        if identifier is None:
            users.append((name, value))
        elif identifier == CORRELATION_DATA:
            try:
                found[identifier] = bytes.fromhex(value)
            except ValueError:
                raise ValueError(f"property {name} is {value!r}, but must be hexadecimal") from None
        elif identifier == PAYLOAD_FORMAT_INDICATOR:
            found[identifier] = 1 if value == "1" else 0
        else:
            found[identifier] = value
    if users:
        found[USER_PROPERTY] = users
    if expiry is not None:
        found[MESSAGE_EXPIRY_INTERVAL] = min(max(expiry, 0), EXPIRY_MAX)
    return encode_property_bytes(found)
