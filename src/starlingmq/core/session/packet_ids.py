"""One int object for each packet id, for dicts by packet id.

Compiled code has an integer in a register and makes an object of it for each access to a dict, which then compares
numbers. With the same object each time there is nothing to make, and the dict compares addresses.
"""

from __future__ import annotations

from typing import Final

PUBACK_BYTE: Final = 0x40  # first bytes of acknowledgements
PUBREC_BYTE: Final = 0x50
PUBREL_BYTE: Final = 0x62

KEYS: Final[list[list[object]]] = [[] for _ in range(256)]
"""By the two bytes of a packet id. A block of 256 is made when the first of its ids is sent or received."""


def packet_id_key(packet_id: int) -> object:
    block = KEYS[packet_id >> 8]
    if not block:
        first = packet_id & 0xFF00
        block.extend(range(first, first + 256))
    return block[packet_id & 255]
