"""To which node the rows of a batch go: to the same one at each attempt, for no other knows what it has of them.

A node keeps how far it has come with a partition (``core.session.producers``), and tells its name. So a streaming query
keeps beside its checkpoint which nodes its batches go to, and by what names these were met. The law:

    a batch that may have begun      goes to the nodes it began with, and waits for one that is away
    one that certainly has not       goes to the nodes that ``servers`` names now
    a URL at which another node is   is not published to: the batch waits for the one that was there
    a node that the option           is not waited for: what it should get goes to the others, and what it had of
    ``goOnWithout`` names            the batch that was under way may come twice

Partition *n* of a batch goes to number *n* modulo how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

FILE: Final = "starlingmq-sink.json"


class NodeSet(msgspec.Struct, frozen=True, kw_only=True):
    """Where the batches from ``first`` on go."""

    first: int
    urls: tuple[str, ...]


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """``sets`` by their first batch; ``names``: of the node that was met at a URL."""

    sets: tuple[NodeSet, ...] = ()
    names: dict[str, str] = {}

    def with_servers(self, urls: Sequence[str], begun: int) -> Placement:
        """What holds when the query goes on with these servers. ``begun``: the last batch that may have begun, -1."""
        if not self.sets:
            return msgspec.structs.replace(self, sets=(NodeSet(first=0, urls=tuple(urls)),))
        if set(self.sets[-1].urls) == set(urls):
            return self
        kept = [each for each in self.sets if each.first <= begun]
        return msgspec.structs.replace(self, sets=(*kept[-1:], NodeSet(first=begun + 1, urls=tuple(urls))))

    def with_names(self, met: dict[str, str]) -> Placement:
        """After a batch is done, in which these nodes were met."""
        return self if met.items() <= self.names.items() else msgspec.structs.replace(self, names=self.names | met)

    def place(self, batch: int, partition: int, servers: Sequence[str], gone: Sequence[str]) -> NodePlace:
        """Where rows go."""
        urls = next(each.urls for each in reversed(self.sets) if each.first <= batch or each is self.sets[0])
        url = urls[partition % len(urls)]
        if url in gone or self.names.get(url) in gone:
            left = [each for each in (*urls, *servers) if each not in gone and self.names.get(each) not in gone]
            if not left:
                raise NowhereError("goOnWithout: lists all nodes, so no node is left for rows; remove one")
            url = left[partition % len(left)]
        name = self.names.get(url, "")
        # It may have another address now: one at which it was met, or one that is named.
        others = [*(each for each in self.names if self.names[each] == name), *servers] if name else []
        return NodePlace(urls=tuple(dict.fromkeys([url, *others])), name=name)


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """The node of this name ("": whoever is there) at one of these URLs."""

    urls: tuple[str, ...]
    name: str = ""


class NowhereError(Exception):
    """There is no node for rows; one line."""
