"""The queue of one session: messages that wait until the client connects, reads, or acknowledges.

It has three parts, in this order: ``items`` in memory, to be sent next; ``stored``, of which only references are in
memory; ``fresh``, newer and not stored yet. The middle part exists only while the queue is long or the client away, and
messages are stored; then ``spill`` moves everything there that is not needed soon.

Invariant: the queue never exceeds ``max_length`` messages or ``max_bytes`` bytes (0 = no limit), beside the *promised*
ones: those were accepted for this session at another node, which could not know its limits. At the limit expired
messages are removed first, then the oldest ones; the caller gets each removed one and counts it. So a promised message
is removed only when as many newer ones have come as the limit allows. Each time one more than necessary is removed,
until the queue is back at its limit: a session whose client never returns does not stay long.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.messages.stored_messages import LOAD_BATCH, PROMISED, QOS_MASK, RETAIN, Reference, References, mark

KEPT_IN_MEMORY: Final = 256  # messages that a connected client's queue keeps at hand


class MessageQueue:
    items: deque[Outgoing]
    stored: References | None
    fresh: deque[Outgoing] | None
    bytes: int
    qos0: int  # how many of all are QoS 0
    shared: int  # how many in memory were drawn from a shared group: they may have to be given back, so they stay
    max_length: int
    max_bytes: int
    promised: int  # added to ``max_length``: promised messages, as long as the queue has not become shorter
    promised_bytes: int  # likewise added to ``max_bytes``
    loading: bool  # ``wanted`` was asked for and has not come yet
    _expiry: float  # nothing expires before this time; 0.0: nothing ever does

    def __init__(self, max_length: int, max_bytes: int) -> None:
        self.items = deque()
        self.stored = None
        self.fresh = None
        self.bytes = 0
        self.qos0 = 0
        self.shared = 0
        self.max_length = max_length
        self.max_bytes = max_bytes
        self.promised = 0
        self.promised_bytes = 0
        self.loading = False
        self._expiry = 0.0

    def __len__(self) -> int:
        count = len(self.items)
        if self.stored is not None:
            count += len(self.stored)
            if self.fresh is not None:
                count += len(self.fresh)
        return count

    def push(self, outgoing: Outgoing, now: float, promised: bool = False) -> list[Outgoing] | None:
        """Append. Returns the entries that were removed to make room, or None (the common case). A message larger than
        ``max_bytes`` is removed itself. A ``promised`` one removes none."""
        if self.promised != 0 and self.promised > len(self):
            self.promised, self.promised_bytes = len(self), min(self.promised_bytes, self.bytes)
        outgoing.promised = promised
        if self.stored is None:
            self.items.append(outgoing)
        else:
            if self.fresh is None:
                self.fresh = deque()
            self.fresh.append(outgoing)
        self._count(outgoing, 1)
        self._expires(outgoing.message.expires_at)
        if promised:
            self.promised += 1
            self.promised_bytes += outgoing.message.size()
            return None
        if not self._over():
            return None
        dropped = self.expire(now)
        if self._over():
            self._make_room(dropped)
        return dropped

    def _make_room(self, dropped: list[Outgoing]) -> None:
        promised, promised_bytes = self.promised, self.promised_bytes
        while self._over():
            dropped.append(self.pop())
            self.promised, self.promised_bytes = promised, promised_bytes
        if promised != 0 and len(self) > 1:
            dropped.append(self.pop())

    def _count(self, outgoing: Outgoing, sign: int) -> None:
        self.bytes += sign * outgoing.message.size()
        if outgoing.qos == 0:
            self.qos0 += sign
        if outgoing.source is not None:
            self.shared += sign

    def _expires(self, expires_at: float) -> None:
        if expires_at != 0.0 and (self._expiry == 0.0 or expires_at < self._expiry):
            self._expiry = expires_at

    def _over(self) -> bool:
        if self.max_length != 0 and len(self) > self.max_length + self.promised:
            return True
        return self.max_bytes != 0 and self.bytes > self.max_bytes + self.promised_bytes

    def pop(self) -> Outgoing:
        """Remove the oldest entry; the queue must not be empty. If it is stored, its message is not loaded."""
        if self.items:
            outgoing = self.items.popleft()
            self._count(outgoing, -1)
            if self.promised != 0:
                self._lower(outgoing.message.size())
            return outgoing
        assert self.stored is not None
        reference = self.stored.pop()
        self._drop(reference)
        if self.promised != 0:
            self._lower(reference.size)
        if len(self.stored) == 0:
            self._join()
        return _without_payload(reference)

    def beyond(self) -> int:
        """How many messages it has beyond its limits. At most that many if it has reached that of bytes only."""
        if self.promised == 0:
            return 0
        if self.max_length != 0 and len(self) > self.max_length:
            return len(self) - self.max_length
        return self.promised if self.max_bytes != 0 and self.bytes > self.max_bytes else 0

    def _lower(self, size: int) -> None:
        """A message of that size has left."""
        self.promised -= 1
        self.promised_bytes = max(0, self.promised_bytes - size) if self.promised != 0 else 0

    def before(self, offset: int, limit: int) -> list[Outgoing]:
        """Remove and return at most ``limit`` entries stored below ``offset``, oldest first."""
        gone: list[Outgoing] = []
        while len(gone) < limit and (self.items or self.stored is not None):
            if self.items:
                first = self.items[0].message.offset
            else:
                assert self.stored is not None
                first = self.stored.peek().offset
            if not 0 <= first < offset:
                break
            gone.append(self.pop())
        return gone

    def _drop(self, reference: Reference) -> None:
        self.bytes -= reference.size
        if reference.flags & QOS_MASK == 0:
            self.qos0 -= 1

    def _join(self) -> None:
        """Nothing is stored any more: the fresh entries are next."""
        self.stored = None
        if self.fresh is not None:
            self.items.extend(self.fresh)
            self.fresh = None

    # Shared groups

    def drawn(self) -> list[Outgoing]:
        """The entries lent by a shared group, oldest first. They are in memory; others may be stored."""
        found = [outgoing for outgoing in self.items if outgoing.source is not None]
        if self.fresh is not None:
            found += [outgoing for outgoing in self.fresh if outgoing.source is not None]
        return found

    def take_out(self, gone: list[Outgoing]) -> None:
        """Other members take over some of ``drawn``."""
        if not gone:
            return
        out = dict.fromkeys(gone)
        self.items = deque([outgoing for outgoing in self.items if outgoing not in out])
        if self.fresh is not None:
            self.fresh = deque([outgoing for outgoing in self.fresh if outgoing not in out])
        for outgoing in gone:
            self._count(outgoing, -1)

    def take_qos0(self) -> list[Outgoing]:
        """Remove and return all QoS 0 entries."""
        if self.qos0 == 0:
            return []
        gone = [outgoing for outgoing in self.items if outgoing.qos == 0]
        if self.fresh is not None:
            gone += [outgoing for outgoing in self.fresh if outgoing.qos == 0]
        self.take_out(gone)
        if self.stored is None:
            return gone
        kept = References()
        while len(self.stored) != 0:
            reference = self.stored.pop()
            if reference.flags & QOS_MASK == 0:
                gone.append(_without_payload(reference))
                self._drop(reference)
            else:
                kept.append(reference.offset, reference.flags, reference.expires, reference.size, reference.ids)
        self.stored = kept
        if len(kept) == 0:
            self._join()
        return gone

    # Memory

    def spill(self, keep: int) -> None:
        """Release the messages that a store has, except for the next ``keep``."""
        if self.shared != 0:
            return
        if self.stored is None:
            if len(self.items) <= keep:
                return
            self.stored = References()
            self.fresh = deque()
            while len(self.items) > keep:
                self.fresh.appendleft(self.items.pop())
        fresh = self.fresh
        while fresh and fresh[0].message.offset >= 0:
            refer(self.stored, fresh.popleft())
        if len(self.stored) == 0:
            self._join()

    def wanted(self) -> list[int]:
        """The offsets of the next messages, oldest first."""
        if self.stored is None:
            return []
        return [self.stored.peek(index).offset for index in range(min(LOAD_BATCH, len(self.stored)))]

    def loaded(self, messages: list[Message | None]) -> list[Outgoing]:
        """The messages of ``wanted``, in that order, are in memory again. Returns the entries whose messages are lost
        (None)."""
        self.loading = False
        lost: list[Outgoing] = []
        for message in messages:
            if self.stored is None:
                break
            reference = self.stored.pop()
            self._drop(reference)
            if message is None:
                lost.append(_without_payload(reference))
            else:
                qos = reference.flags & QOS_MASK
                outgoing = Outgoing(message, qos, reference.flags & RETAIN != 0, reference.ids, None)
                outgoing.promised = reference.flags & PROMISED != 0
                self.items.append(outgoing)
                self._count(outgoing, 1)
            if len(self.stored) == 0:
                self._join()
        return lost

    def references(self) -> References:
        """References to the whole queue, for a store. Entries that are not stored yet are left out."""
        whole = References()
        for outgoing in self.items:
            refer(whole, outgoing)
        if self.stored is not None:
            whole.extend(self.stored)
        if self.fresh is not None:
            for outgoing in self.fresh:
                refer(whole, outgoing)
        return whole

    def mark(self, firsts: list[int], marked: set[int]) -> int:
        """As ``References.mark``, for all stored messages."""
        offsets = [outgoing.message.offset for outgoing in self.items if outgoing.message.offset >= 0]
        if self.fresh is not None:
            offsets += [outgoing.message.offset for outgoing in self.fresh if outgoing.message.offset >= 0]
        mark(offsets, firsts, marked)
        oldest = min(offsets) if offsets else -1
        if self.stored is not None:
            stored = self.stored.mark(firsts, marked)
            if stored >= 0 and (oldest < 0 or stored < oldest):
                oldest = stored
        return oldest

    def restore(self, references: References) -> None:
        """Fill the queue from a store. Those of its messages that were promised still are, and new ones have the room
        that they had before: however often a node restarts, the limits stay what they are. The oldest messages that
        exceed the limits, which may have been higher, are promised, too."""
        self.stored = references
        self.bytes += references.total
        self.qos0 += references.qos0
        exceeding = 0 if self.max_length == 0 else max(0, len(self) - self.max_length)
        exceeding_bytes = 0 if self.max_bytes == 0 else max(0, self.bytes - self.max_bytes)
        seen = 0
        for index in range(len(references)):
            reference = references.peek(index)
            self._expires(float(reference.expires))
            if reference.flags & PROMISED != 0:
                self.promised += 1
                self.promised_bytes += reference.size
            if seen < exceeding_bytes and index >= exceeding:
                exceeding = index + 1
            seen += reference.size
        self.promised = max(self.promised, exceeding)
        self.promised_bytes = max(self.promised_bytes, exceeding_bytes)

    # Expiry

    def expire(self, now: float) -> list[Outgoing]:
        """Remove and return expired entries. Looks at the entries only if one may have expired."""
        if self._expiry == 0.0 or now < self._expiry:
            return []
        self._expiry = 0.0
        gone: list[Outgoing] = []
        self.items = self._alive(self.items, now, gone)
        if self.stored is not None:
            self._expire_stored(self.stored, now, gone)
            if self.fresh is not None:
                self.fresh = self._alive(self.fresh, now, gone)
            if len(self.stored) == 0:
                self._join()
        return gone

    def _alive(self, items: deque[Outgoing], now: float, gone: list[Outgoing]) -> deque[Outgoing]:
        kept: deque[Outgoing] = deque()
        for outgoing in items:
            if outgoing.message.expired(now):
                gone.append(outgoing)
                self._count(outgoing, -1)
            else:
                kept.append(outgoing)
                self._expires(outgoing.message.expires_at)
        return kept

    def _expire_stored(self, stored: References, now: float, gone: list[Outgoing]) -> None:
        kept = References()
        while len(stored) != 0:
            reference = stored.pop()
            if reference.expires != 0 and reference.expires <= now:
                gone.append(_without_payload(reference))
                self._drop(reference)
            else:
                kept.append(reference.offset, reference.flags, reference.expires, reference.size, reference.ids)
                self._expires(float(reference.expires))
        self.stored = kept


def refer(references: References, outgoing: Outgoing) -> None:
    """Append it to the references, if it is stored."""
    message = outgoing.message
    if message.offset >= 0:
        flags = outgoing.qos | (RETAIN if outgoing.retain else 0) | (PROMISED if outgoing.promised else 0)
        expires = 0 if message.expires_at == 0.0 else int(message.expires_at) + 1
        references.append(message.offset, flags, expires, message.size(), outgoing.ids)


def _without_payload(reference: Reference) -> Outgoing:
    message = Message.at(reference.offset)
    message.expires_at = float(reference.expires)
    return Outgoing(message, reference.flags & QOS_MASK, reference.flags & RETAIN != 0, reference.ids, None)
