"""Short names of sessions that move: what a cut marker names when the nodes that read it know the session.

A session on its way is known by its new owner, the ownership epoch and the client id. The name has 16 bits of a
checksum in place of the client id. Few client ids of one owner have the same epoch, all of them in different shares.
The new owner knows all of these that are not complete, and uses short names only where no two are equal
(``InboundNames``). A source hands over none that the owner has completed, so no two are equal there either.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

EPOCH_BITS: Final = 64


def short(client_id: str) -> int:
    return crc32(client_id.encode()) & 0xFFFF


def pack_names(named: list[tuple[int, int]]) -> bytes:
    """(epoch, short client id) each: a varint of the difference from the epoch before, and two bytes."""
    packed = bytearray()
    last = 0
    for epoch, name in sorted(named):
        step = epoch - last
        while step >= 128:
            packed.append(step & 127 | 128)
            step >>= 7
        packed.append(step)
        packed += name.to_bytes(2, "big")
        last = epoch
    return bytes(packed)


def unpack_names(packed: bytes) -> list[tuple[int, int]]:
    """The names before the first that is malformed."""
    named: list[tuple[int, int]] = []
    epoch = at = 0
    while at < len(packed):
        shift = 0
        while at < len(packed) and packed[at] >= 128 and shift < EPOCH_BITS:
            epoch += (packed[at] & 127) << shift
            shift += 7
            at += 1
        if at + 3 > len(packed) or packed[at] >= 128:
            break
        epoch += packed[at] << shift
        named.append((epoch, int.from_bytes(packed[at + 1 : at + 3], "big")))
        at += 3
    return named


class InboundNames:
    """Of sessions that move to this node."""

    _named: dict[tuple[int, int], list[str]]  # epoch, short client id -> client ids

    def __init__(self) -> None:
        self._named = {}

    def add(self, client_id: str, epoch: int) -> None:
        named = self._named.setdefault((epoch, short(client_id)), [])
        if client_id not in named:
            named.append(client_id)

    def remove(self, client_id: str, epoch: int) -> None:
        name = epoch, short(client_id)
        named = self._named.get(name, [])
        if client_id in named:
            named.remove(client_id)
        if not named:
            self._named.pop(name, None)

    def is_one(self, client_id: str, epoch: int) -> bool:
        """Whether no other session has its name."""
        return len(self._named.get((epoch, short(client_id)), [])) == 1

    def find(self, epoch: int, name: int) -> str | None:
        named = self._named.get((epoch, name))
        return None if named is None else named[0]


class OutboundNames:
    """Of sessions that move from this node."""

    _named: dict[tuple[int, int, int], str]  # target, epoch, short client id -> client id

    def __init__(self) -> None:
        self._named = {}

    def add(self, client_id: str, target: int, epoch: int) -> None:
        self._named[target, epoch, short(client_id)] = client_id

    def remove(self, client_id: str, target: int, epoch: int) -> None:
        name = target, epoch, short(client_id)
        if self._named.get(name) == client_id:
            del self._named[name]

    def find(self, target: int, epoch: int, name: int) -> str | None:
        return self._named.get((target, epoch, name))
