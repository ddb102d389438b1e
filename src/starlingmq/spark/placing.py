"""Chooses the node for the rows of a batch: the same one at each attempt, because only it knows which rows it has.

A node stores its progress in a partition (``core.publish.producers``), and reports its name. So a streaming query
stores next to its checkpoint the nodes that its batches go to, and the names that these have reported. Rules:

    a batch that may have begun      goes to the nodes it began with, and waits for one that is unreachable
    one that certainly has not       goes to the nodes that ``servers`` names now
    a URL with another node now      is not published to: the batch waits for the earlier node
    a node in the option             is not waited for: its rows go to the others, and those that it already
    ``excludedNodes``                  had of the batch in progress may be published twice

Partition *n* of a batch goes to the node with index *n* modulo their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

FILE: Final = "starlingmq-sink.json"


class NodeSet(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes for batches from ``first`` on."""

    first: int
    urls: tuple[str, ...]


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """``sets`` in the order of their first batch; ``names``: the node name reported at each URL."""

    sets: tuple[NodeSet, ...] = ()
    names: dict[str, str] = {}

    def with_servers(self, urls: Sequence[str], begun: int) -> Placement:
        """Return the placement when the query continues with these servers. ``begun``: the last batch that may have
        begun, or -1.
        """
        if not self.sets:
            return msgspec.structs.replace(self, sets=(NodeSet(first=0, urls=tuple(urls)),))
        if set(self.sets[-1].urls) == set(urls):
            return self
        kept = [each for each in self.sets if each.first <= begun]
        return msgspec.structs.replace(self, sets=(*kept[-1:], NodeSet(first=begun + 1, urls=tuple(urls))))

    def with_names(self, met: dict[str, str]) -> Placement:
        """Return the placement after a batch in which nodes reported these names."""
        return self if met.items() <= self.names.items() else msgspec.structs.replace(self, names=self.names | met)

    def assign(self, batch: int, partition: int, servers: Sequence[str], excluded: Sequence[str]) -> AssignedNode:
        """Return the node for the rows of a partition."""
        urls = next(each.urls for each in reversed(self.sets) if each.first <= batch or each is self.sets[0])
        url = urls[partition % len(urls)]
        if url in excluded or self.names.get(url) in excluded:
            left = [each for each in (*urls, *servers) if each not in excluded and self.names.get(each) not in excluded]
            if not left:
                raise NowhereError("excludedNodes: lists all nodes, so no node is left for rows; remove one")
            url = left[partition % len(left)]
        name = self.names.get(url, "")
        # It may have another address now: one at which it answered before, or one of ``servers``.
        others = [*(each for each in self.names if self.names[each] == name), *servers] if name else []
        return AssignedNode(urls=tuple(dict.fromkeys([url, *others])), name=name)


class AssignedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The node of this name ("": any) at one of these URLs."""

    urls: tuple[str, ...]
    name: str = ""


class NowhereError(Exception):
    """No node is left for rows; one line."""
