"""Deletions of retained messages, which a site with links remembers: an older message that comes over a link later does
not bring the topic back, and a site that lacks a deletion gets it.

A deletion is the empty retained message that was published, with its stamp. Each is a stored fact.
"""

from __future__ import annotations

import struct
from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, Write
from starlingmq.core.messages.message import Message
from starlingmq.core.retained.retained_store import RetainedCursor, RetainedTree
from starlingmq.core.retained.stamps import Stamp, stamp_of, stamp_text, stamped, text_of

DELETION_FACT: Final = b"stamp/d/"  # and the topic: the name of a fact, its value the time of the note and the stamp
DELETIONS_MAX: Final = 100_000  # about 40 MB; beyond them the oldest are forgotten
DELETION_BYTES: Final = 32 * 1024**2  # and beyond so much of topics and stamps
DELETION_SECONDS: Final = 30 * 86_400.0  # and after this time
TIME: Final = struct.Struct(">d")


class Deletions:
    ctx: Context
    tree: RetainedTree  # the deletions as messages; ``published_at`` is the time of the note
    _order: dict[bytes, float]  # topic -> time of the note, the oldest first

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.tree = RetainedTree()
        self._order = {}

    def __len__(self) -> int:
        return len(self.tree)

    def restore(self, facts: dict[bytes, bytes]) -> None:
        """Remove the deletions from the facts of the store, and use them."""
        found: list[tuple[float, bytes, str]] = []
        for fact in [fact for fact in facts if fact.startswith(DELETION_FACT)]:
            value = facts.pop(fact)
            found.append((TIME.unpack_from(value)[0], fact[len(DELETION_FACT) :], value[TIME.size :].decode()))
        for noted_at, topic, text in sorted(found):
            stamp = stamp_of(text)
            if stamp is not None:
                self._put(topic, stamp, noted_at)

    def stamp(self, topic: bytes) -> Stamp | None:
        """Of the deletion of this topic; None: it is not known."""
        noted = self.tree.get(topic)
        return None if noted is None else stamp_of(stamp_text(noted.properties))

    def note(self, topic: bytes, stamp: Stamp) -> None:
        now = self.ctx.now
        self._put(topic, stamp, now)
        if self.ctx.recording:
            value = TIME.pack(now) + text_of(stamp).encode()
            self.ctx.write(Write(FACT_PUT, topic=DELETION_FACT + topic, value=value))
        self._tidy()

    def forget(self, topic: bytes) -> None:
        """The topic has a retained message again."""
        if self.tree.remove(topic) is not None:
            del self._order[topic]
            if self.ctx.recording:
                self.ctx.write(Write(FACT_DELETE, topic=DELETION_FACT + topic))

    def cursor(self, filter: bytes) -> RetainedCursor:
        self._tidy()
        return self.tree.cursor(filter)

    def _put(self, topic: bytes, stamp: Stamp, noted_at: float) -> None:
        self.tree.put(Message(topic, b"", 2, True, stamped(b"", stamp), 0.0, "", noted_at))
        self._order.pop(topic, None)
        self._order[topic] = noted_at

    def _tidy(self) -> None:
        before = self.ctx.now - DELETION_SECONDS
        while self._order:
            topic = next(iter(self._order))
            few = len(self._order) <= DELETIONS_MAX and self.tree.total_bytes <= DELETION_BYTES
            if few and self._order[topic] > before:
                break
            self.forget(topic)
