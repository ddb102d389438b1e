"""MessagePack payloads without a key twice: a decoder keeps the last value of such a key in silence.

A map with a key twice has more pairs than its dict has entries. So the pairs of all maps of a payload are added up, by
their headers alone, and compared with the entries of all dicts. The time is in proportion to the payload, at any depth.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

SHORT_MAPS: Final = range(0x80, 0x90)
SHORT_TEXTS: Final = range(0xA0, 0xC0)
LONG_MAPS: Final = {0xDE: 2, 0xDF: 4}  # bytes of the length
MAPS: Final = (*SHORT_MAPS, *LONG_MAPS)
FOLLOWING: Final = {  # bytes after the first one; of a list: of its header
    **dict.fromkeys((0xCC, 0xD0), 1),
    **dict.fromkeys((0xCD, 0xD1, 0xD4, 0xDC), 2),
    0xD5: 3,
    **dict.fromkeys((0xCA, 0xCE, 0xD2, 0xDD), 4),
    0xD6: 5,
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 8),
    0xD7: 9,
    0xD8: 17,
}
COUNTED: Final = {  # bytes of the length of text or bytes, and of the type before these
    **dict.fromkeys((0xC4, 0xD9), (1, 0)),
    **dict.fromkeys((0xC5, 0xDA), (2, 0)),
    **dict.fromkeys((0xC6, 0xDB), (4, 0)),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
}
SIZES: Final = [  # bytes in all; 0: a map, or one of COUNTED
    0 if first in MAPS or first in COUNTED else 1 + (first & 0x1F if first in SHORT_TEXTS else FOLLOWING.get(first, 0))
    for first in range(256)
]

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


class _Key:
    """A key that equals no other."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_pairs_decoder = msgspec.msgpack.Decoder(dict[_Key, msgspec.Raw], dec_hook=lambda _, value: _Key(value))


def decode_once(payload: bytes) -> Any:
    """Return the value. Raises ValueError: not one value of MessagePack, or a map in it has a key twice."""
    value = _decode(payload)
    # The output of msgspec has no key twice. Other encoders use more or fewer bytes for numbers and lengths
    if _encode(value) != payload and pairs(payload) != entries(value):
        raise ValueError(_which(payload))
    return value


def pairs(payload: bytes) -> int:
    """Return how many pairs all maps have. ``payload``: one valid value."""
    at = found = 0
    end = len(payload)
    while at < end:
        first = payload[at]
        at += 1
        if size := SIZES[first]:
            at += size - 1
        elif first in SHORT_MAPS:
            found += first & 0x0F
        elif first in LONG_MAPS:
            found += int.from_bytes(payload[at : at + LONG_MAPS[first]])
            at += LONG_MAPS[first]
        else:
            length, before = COUNTED[first]
            at += length + before + int.from_bytes(payload[at : at + length])
    return found


def entries(value: Any) -> int:
    """Return how many entries all dicts have."""
    found = 0
    values = [value]
    for each in values:
        if isinstance(each, dict):
            found += len(each)
            values.extend(each.values())
        elif isinstance(each, list):
            values.extend(each)
    return found


def _which(payload: bytes) -> str:
    """Return which key is there twice. It is named if it is one of the payload itself."""
    if payload[0] in MAPS:
        seen: set[Any] = set()
        for key in _pairs_decoder.decode(payload):
            if key.value in seen:
                return f"it has this key twice: {key.value}"
            seen.add(key.value)
    return "a map in it has a key twice"
