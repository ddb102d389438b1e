"""Retained messages that expire: each node removes them from its own memory, and the leader deletes them from etcd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from starlingmq.core.retained.retained_store import RetainedTree


class RetainedExpiry:
    def __init__(self, tree: RetainedTree) -> None:
        self._tree = tree
        self._expiring: dict[bytes, int] = {}  # topic -> revision of a message that expires
        self._led = False

    def note(self, topic: bytes, revision: int) -> None:
        self._expiring[topic] = revision

    def forget(self, topic: bytes) -> None:
        self._expiring.pop(topic, None)

    def keep_only(self, revisions: Mapping[bytes, int]) -> None:
        """Everything in etcd was read: forgets topics that are not there (a revision above 0 is)."""
        self._expiring = {topic: at for topic, at in self._expiring.items() if revisions.get(topic, 0) > 0}

    def due(self, expired: Iterable[bytes], leads: bool) -> Iterator[tuple[bytes, int]]:
        """Topics to delete from etcd, with the revision of the expired message. ``expired``: topics whose message has
        expired at this node since the last call. A new leader also finds those that had expired before."""
        led, self._led = self._led, leads
        if not leads:
            return
        if not led:
            expired = [topic for topic in self._expiring if self._tree.get(topic) is None]
        for topic in expired:
            revision = self._expiring.get(topic, 0)
            if revision:
                yield topic, revision
