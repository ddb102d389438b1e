"""How far a query has read a stream: what Spark keeps in the checkpoint as the offset of the source.

    {"version": 2, "offsets": {"n1": 100}, "streams": {"n1": "5f1c..."}, "waiting": {"n2": 1767225600.0}, "lost": 23}

The law: the rows between two positions are, for each node that both have with the same stream, those from offset to
offset; for any other node there are none. So a node comes into a position without rows, and gives rows from the next
position on. A node that was away when the query began waits with the time from which on its rows are wanted.

Version 1, of earlier releases, is a map from node to offset, with the lost rows under ``(lost)``. Its streams are
unknown, so those that are there are taken for them; a node that its position lacks is read from offset 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

VERSION: Final = 2
LOST: Final = "(lost)"  # in version 1


class PositionError(Exception):
    """A position that can not be read; one line."""


class StreamPosition(msgspec.Struct, frozen=True, kw_only=True):
    """``streams``: by node, the id of the stream that ``offsets`` counts in. ``waiting``: by node, or by the address of
    a server whose node is unknown, Unix seconds. ``lost``: rows that the query has gone on without; ``again``: how
    often it has begun with another stream of the same name."""

    version: int = VERSION
    offsets: dict[str, int] = {}
    streams: dict[str, str] = {}
    waiting: dict[str, float] = {}
    lost: int = 0
    again: int = 0

    def told(self) -> dict[str, Any]:
        """As Spark keeps it: two equal positions are the same text."""
        found: dict[str, Any] = {"version": VERSION}
        for name in ("offsets", "streams", "waiting"):
            mapping = getattr(self, name)
            if mapping or name != "waiting":
                found[name] = {key: mapping[key] for key in sorted(mapping)}
        return found | {name: count for name in ("lost", "again") if (count := getattr(self, name))}

    def rows(self, end: StreamPosition, node: str) -> tuple[int, int]:
        """From which to before which offset the rows of a node lie between this position and ``end``."""
        last = end.offsets[node]
        if node not in self.offsets:
            return (0, last) if end.version == 1 else (last, last)
        mine, others = self.streams.get(node, ""), end.streams.get(node, "")
        return (self.offsets[node], last) if mine in ("", others) or not others else (last, last)


def position_of(told: Mapping[str, Any]) -> StreamPosition:
    """Raises PositionError."""
    version = told.get("version")
    if not isinstance(told.get("offsets"), Mapping):
        try:
            offsets = msgspec.convert(dict(told), dict[str, int])
        except msgspec.ValidationError as error:
            raise PositionError(f"the checkpoint has an invalid position of the stream: {error}") from None
        return StreamPosition(version=1, lost=offsets.pop(LOST, 0), offsets=offsets)
    if version != VERSION:
        raise PositionError(
            f"the checkpoint has a position of version {version}, but this release reads versions 1 and {VERSION}; "
            "use the release that wrote it, or a later one"
        )
    try:
        return msgspec.convert(dict(told), StreamPosition)
    except msgspec.ValidationError as error:
        raise PositionError(f"the checkpoint has an invalid position of the stream: {error}") from None
