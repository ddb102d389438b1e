"""The fact of a stay (``qos2_store``) as bytes.

Law: what one node has stored, every later version reads. Facts are MessagePack arrays; before version 0.2 compiled
nodes stored maps, because the class was compiled, and mypyc discards the option that makes it an array.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAPS: Final = range(0x80, 0x90)  # the first byte of a MessagePack map of up to 15 entries


class StayValue(msgspec.Struct, array_like=True, frozen=True):
    """``completed``: packet ids of two bytes each. ``owned``: the user is known."""

    ended_at: float
    completed: bytes
    owned: bool = False
    owner: str = ""


class _StayMap(msgspec.Struct, frozen=True):
    ended_at: float
    completed: bytes
    owned: bool = False
    owner: str = ""


_array = msgspec.msgpack.Decoder(StayValue)
_map = msgspec.msgpack.Decoder(_StayMap)


def encode_stay(value: StayValue) -> bytes:
    return msgspec.msgpack.encode(value)


def decode_stay(data: bytes) -> StayValue:
    """Raises msgspec.MsgspecError."""
    if data[:1] and data[0] in MAPS:
        found = _map.decode(data)
        return StayValue(found.ended_at, found.completed, found.owned, found.owner)
    return _array.decode(data)
