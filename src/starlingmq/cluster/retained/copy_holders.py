"""The nodes that hold copies of large retained messages: chosen when a message is published, and when a node leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from starlingmq.cluster.retained.large_retained import LargeRetained
from starlingmq.cluster.retained.retained_records import Keep, RetainedFrame, RetainedValue


class CopyHolders:
    """``count``: copies of a message, beside the node where it was published."""

    def __init__(
        self,
        copies: LargeRetained,
        connected: Callable[[int], bool],
        send: Callable[[int, RetainedFrame], None],
        count: int,
    ) -> None:
        self._copies = copies
        self._connected = connected
        self._send = send
        self._count = count
        self._others: list[int] = []

    def set_others(self, others: list[int]) -> None:
        """All nodes except this one."""
        self._others = others

    def choose(self, topic: bytes, beside: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Other nodes that get a copy: the same ones for a topic, as long as they are connected."""
        others = [node for node in self._others if node not in beside and self._connected(node)]
        if not others:
            return ()
        start = sum(topic) % len(others)
        return tuple((others[start:] + others[:start])[: self._count])

    def replace(self, gone: int) -> Iterator[tuple[bytes, RetainedValue, int]]:
        """A node that is no longer a member had copies: another node gets them. Returns the new records, each with the
        revision of the record that it replaces."""
        for topic, value, revision in self._copies.held_only_with(gone):
            whole = self._copies.whole(topic, value)
            if whole is None:
                continue
            beside = tuple([holder for holder in value.holders if holder != gone])
            more = self.choose(topic, beside)[:1]
            for node in more:
                self._send(node, Keep(topic, whole))
            yield topic, held_by(value, (*beside, *more)), revision


def held_by(value: RetainedValue, holders: tuple[int, ...]) -> RetainedValue:
    """The same message, at other nodes."""
    return RetainedValue(
        value.origin,
        value.sequence,
        value.qos,
        value.properties,
        value.publisher,
        value.published_at,
        value.expires_at,
        value.payload,
        value.size,
        holders,
    )
