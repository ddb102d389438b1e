"""Topics in byte order, in blocks, so that no operation moves more than one block.

This order lets a walk stop and resume at any time: a position in it is a topic, not a place in a structure, and stays
valid whatever changes meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

BLOCK_MAX: Final = 512  # topics; a block that grows beyond is split in two


class SortedTopics:
    """A set of topics in byte order. Finding, adding and removing one take two binary searches."""

    _blocks: list[list[bytes]]  # none is empty, unless it is the only one
    _firsts: list[bytes]  # the lowest topic that may be in each block; b"" for the first

    def __init__(self) -> None:
        self._blocks = [[]]
        self._firsts = [b""]

    def add(self, topic: bytes) -> None:
        """``topic`` must not be in the set."""
        index = bisect_right(self._firsts, topic) - 1
        block = self._blocks[index]
        block.insert(bisect_left(block, topic), topic)
        if len(block) > BLOCK_MAX:
            half = len(block) // 2
            self._blocks.insert(index + 1, block[half:])
            self._firsts.insert(index + 1, block[half])
            del block[half:]

    def remove(self, topic: bytes) -> None:
        """``topic`` must be in the set."""
        index = bisect_right(self._firsts, topic) - 1
        block = self._blocks[index]
        del block[bisect_left(block, topic)]
        if not block and len(self._blocks) > 1:
            del self._blocks[index]
            del self._firsts[index]
            self._firsts[0] = b""

    def since(self, topic: bytes) -> tuple[list[bytes], int]:
        """The block of the lowest topic that is not before ``topic``, and its index there; an empty block if there is
        none.

        The block may be walked to its end, but not changed; call again afterwards.
        """
        index = bisect_right(self._firsts, topic) - 1
        block = self._blocks[index]
        at = bisect_left(block, topic)
        if at < len(block):
            return block, at
        index += 1
        return (self._blocks[index], 0) if index < len(self._blocks) else ([], 0)
