"""The position of a query in a stream: the source offset that Spark stores in the checkpoint.

    {"version": 2, "offsets": {"n1": 100}, "streams": {"n1": "5f1c..."}, "waiting": {"n2": 1767225600.0}, "lost": 23}

Invariant: the rows between two positions are, for each node that both contain with the same stream id, those from
offset to offset; any other node contributes none. A node therefore joins a position without rows, and contributes rows
from the next position on. A node that was not reachable when the query started is in ``waiting``, with the time from
which its rows are read.

Version 1, of earlier releases, is a map from node to offset, with the lost rows under ``(lost)``. It has no stream ids,
so the current streams are assumed; a node that is missing in the position is read from offset 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

VERSION: Final = 2
LOST: Final = "(lost)"  # its key in version 1


class PositionError(Exception):
    """An invalid position; one line."""


class StreamPosition(msgspec.Struct, frozen=True, kw_only=True):
    """``streams``: by node, the id of the stream that ``offsets`` refers to. ``waiting``: by node, or by the address of
    a server whose node is unknown, Unix seconds. ``lost``: rows that the query has skipped as lost; ``again``: how
    often it has restarted with another stream of the same name.
    """

    version: int = VERSION
    offsets: dict[str, int] = {}
    streams: dict[str, str] = {}
    waiting: dict[str, float] = {}
    lost: int = 0
    again: int = 0

    def as_json_dict(self) -> dict[str, Any]:
        """Return the JSON that Spark stores: equal positions have equal text."""
        found: dict[str, Any] = {"version": VERSION}
        for name in ("offsets", "streams", "waiting"):
            mapping = getattr(self, name)
            if mapping or name != "waiting":
                found[name] = {key: mapping[key] for key in sorted(mapping)}
        return found | {name: count for name in ("lost", "again") if (count := getattr(self, name))}

    def rows(self, end: StreamPosition, node: str) -> tuple[int, int]:
        """Return, per node, the first offset and the end of the rows between this position and ``end``."""
        last = end.offsets[node]
        if node not in self.offsets:
            return (0, last) if end.version == 1 else (last, last)
        mine, others = self.streams.get(node, ""), end.streams.get(node, "")
        return (self.offsets[node], last) if mine in ("", others) or not others else (last, last)


def position_of(stored: Mapping[str, Any]) -> StreamPosition:
    """Parse a position. Raises PositionError."""
    version = stored.get("version")
    if not isinstance(stored.get("offsets"), Mapping):
        try:
            offsets = msgspec.convert(dict(stored), dict[str, int])
        except msgspec.ValidationError as error:
            raise PositionError(f"the checkpoint has an invalid position of the stream: {error}") from None
        return StreamPosition(version=1, lost=offsets.pop(LOST, 0), offsets=offsets)
    if version != VERSION:
        raise PositionError(
            f"the checkpoint has a position of version {version}, but this release reads versions 1 and {VERSION}; "
            "use the release that wrote it, or a later one"
        )
    try:
        return msgspec.convert(dict(stored), StreamPosition)
    except msgspec.ValidationError as error:
        raise PositionError(f"the checkpoint has an invalid position of the stream: {error}") from None
