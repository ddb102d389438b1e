"""NATS headers as MQTT 5 properties, and back.

A header becomes a User Property, the reply subject the Response Topic; all other MQTT 5 properties are not passed to
NATS. Names and values keep their order, and a name may occur several times. MQTT subscribers receive a value without
surrounding blanks, which every NATS client strips. A status in the first line (``NATS/1.0 503 No Responders``) becomes
the User Properties ``Status`` and ``Description``, as NATS clients present it.

Invariant: between NATS clients a header block arrives byte for byte. Most blocks are in canonical form, ``Name: value``
on each line, and are restored from the User Properties. Any other block is carried whole in the first User Properties:
their name is ``NATS/1.0``, their values together are the rest of the block. It ends with the only empty line.

Content that the other side cannot express:

- a header that is not UTF-8 or has a NUL, or a line without a name or colon: ValueError, the message is refused;
- a User Property whose name is empty or has blanks, colons or control characters, or whose value has CR or LF: NATS
  subscribers receive the message without it.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.characters import LINE_FEED, NUL, RETURN

from .primitives import MAX_BLOCK, encode_two
from .properties import (
    BINARY,
    BIT,
    FOUR_BYTES,
    RESPONSE_TOPIC,
    RULES,
    TEXT,
    TEXT_PAIR,
    TWO_BYTES,
    USER_PROPERTY,
)

VERSION: Final = b"NATS/1.0"
_SPOILS_A_NAME: Final = bytes(range(33)) + b":\x7f"
_BLANKS: Final = b" \t"
_BLOCK_END: Final = b"\r\n\r\n"


class Carried:
    """The properties of a message that NATS subscribers receive."""

    response_topic: bytes  # b"" without
    headers: bytes  # the whole block, b"" without

    def __init__(self, response_topic: bytes, headers: bytes) -> None:
        self.response_topic = response_topic
        self.headers = headers


def properties_of(block: bytes, response_topic: bytes) -> bytes:
    """Encode a header block (b"": none) as MQTT 5 properties. Raises ValueError for an invalid block."""
    properties = b"\x08%b%b" % (encode_two(len(response_topic)), response_topic) if response_topic else b""
    if len(block) == 0:
        return properties
    if not block.startswith(VERSION) or not block.endswith(_BLOCK_END) or NUL in block:
        raise ValueError("no header block")
    if not block.isascii():
        block.decode()
    lines = block[: len(block) - 4].split(b"\r\n")
    rest = lines[0][len(VERSION) :]
    status = rest.strip(_BLANKS)
    usual = not rest
    pairs: list[bytes] = [properties]
    if status:
        code, _, words = status.partition(b" ")
        pairs.append(_pair(b"Status", code))
        if words:
            pairs.append(_pair(b"Description", words.strip(_BLANKS)))
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        bare_name = name.strip(_BLANKS)
        bare_value = value.strip(_BLANKS)
        if not colon or not bare_name:
            raise ValueError("a header without a name")
        if (
            len(value) != len(bare_value) + 1
            or value[0] != 0x20
            or RETURN in value
            or LINE_FEED in value
            or len(name.translate(None, _SPOILS_A_NAME)) != len(name)
        ):
            usual = False
        pairs.append(_pair(bare_name, bare_value))
    if not usual or len(lines) == 1:
        pairs[0] = properties + _whole(block)
    return b"".join(pairs)


def _whole(block: bytes) -> bytes:
    """Encode a block as User Properties that contain it as it is; each is valid UTF-8."""
    pieces: list[bytes] = []
    at = len(VERSION)
    while at < len(block):
        end = min(at + MAX_BLOCK, len(block))
        if 0 < len(block) - end < len(_BLOCK_END):
            end -= len(_BLOCK_END)  # the last piece has the end of the block
        while end < len(block) and block[end] & 0xC0 == 0x80:  # within a character
            end -= 1
        pieces.append(_pair(VERSION, block[at:end]))
        at = end
    return b"".join(pieces)


def _pair(name: bytes, value: bytes) -> bytes:
    if len(name) > MAX_BLOCK or len(value) > MAX_BLOCK:
        raise ValueError("a header of more than 65,535 bytes")
    return b"\x26%b%b%b%b" % (encode_two(len(name)), name, encode_two(len(value)), value)


def carried(properties: bytes) -> Carried:
    """Return the part of encoded, valid properties that NATS subscribers receive."""
    response_topic = b""
    whole = b""
    begun: list[bytes] = []  # the parts of a block whose end has not been found
    leading = True  # all User Properties so far are its parts
    lines: list[bytes] = []
    at = 0
    end = len(properties)
    while at < end:
        name = properties[at]
        at += 1
        if name == USER_PROPERTY:
            middle = at + 2 + _two(properties, at)
            after = middle + 2 + _two(properties, middle)
            value = properties[middle + 2 : after]
            name_bytes = properties[at + 2 : middle]
            leading = leading and name_bytes == VERSION
            if leading:
                begun.append(value)
                if value.endswith(_BLOCK_END):
                    whole = b"%b%b" % (VERSION, b"".join(begun))
                    leading = False
            if len(whole) == 0:
                line = _header(name_bytes, value)
                if line:
                    lines.append(line)
            at = after
        elif name == RESPONSE_TOPIC:
            after = at + 2 + _two(properties, at)
            response_topic = properties[at + 2 : after]
            at = after
        else:
            at = _skip(properties, at, name)
    if len(whole) != 0 or not lines:
        return Carried(response_topic, whole)
    return Carried(response_topic, b"%b\r\n%b\r\n" % (VERSION, b"".join(lines)))


def response_topic(properties: bytes) -> bytes:
    """Return the Response Topic in encoded, valid properties; b"" without one."""
    at = 0
    while at < len(properties):
        name = properties[at]
        if name == RESPONSE_TOPIC:
            return properties[at + 3 : at + 3 + _two(properties, at + 1)]
        at = _skip(properties, at + 1, name)
    return b""


def _two(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]


def _header(name: bytes, value: bytes) -> bytes:
    if not name or len(name.translate(None, _SPOILS_A_NAME)) != len(name) or RETURN in value or LINE_FEED in value:
        return b""
    return b"%b: %b\r\n" % (name, value)


def _skip(properties: bytes, at: int, name: int) -> int:
    """Return the position of the next property."""
    kind = RULES[name].kind
    if kind == BIT:
        return at + 1
    if kind == TWO_BYTES:
        return at + 2
    if kind == FOUR_BYTES:
        return at + 4
    if kind == TEXT or kind == BINARY:  # noqa: SIM109  `in` would build and search a tuple
        return at + 2 + _two(properties, at)
    if kind == TEXT_PAIR:
        at += 2 + _two(properties, at)
        return at + 2 + _two(properties, at)
    while properties[at] >= 128:
        at += 1
    return at + 1
