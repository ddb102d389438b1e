"""The queue of one session: messages that wait for the client to come, to read, or to acknowledge.

The law: never longer than ``max_length`` messages nor ``max_bytes`` bytes (0 = no bound). At the bound expired
messages go first, then the oldest; each one that goes is handed back to the caller to be counted.
"""

from __future__ import annotations

from collections import deque

from starlingmq.core.outgoing import Outgoing


class MessageQueue:
    items: deque[Outgoing]
    bytes: int
    qos0: int  # how many of the items are QoS 0
    max_length: int
    max_bytes: int
    _expiry: float  # no item expires before this time; 0.0: none ever does

    def __init__(self, max_length: int, max_bytes: int) -> None:
        self.items = deque()
        self.bytes = 0
        self.qos0 = 0
        self.max_length = max_length
        self.max_bytes = max_bytes
        self._expiry = 0.0

    def __len__(self) -> int:
        return len(self.items)

    def push(self, outgoing: Outgoing, now: float) -> list[Outgoing] | None:
        """Append; what had to go to make room, or None (the common case). A message over ``max_bytes`` itself goes."""
        self.items.append(outgoing)
        self.bytes += outgoing.message.size()
        if outgoing.qos == 0:
            self.qos0 += 1
        expires_at = outgoing.message.expires_at
        if expires_at != 0.0 and (self._expiry == 0.0 or expires_at < self._expiry):
            self._expiry = expires_at
        if not self._over():
            return None
        dropped = self.expire(now)
        while self._over():
            dropped.append(self.pop())
        return dropped

    def _over(self) -> bool:
        if self.max_length != 0 and len(self.items) > self.max_length:
            return True
        return self.max_bytes != 0 and self.bytes > self.max_bytes

    def pop(self) -> Outgoing:
        """The oldest; the queue must not be empty."""
        outgoing = self.items.popleft()
        self.bytes -= outgoing.message.size()
        if outgoing.qos == 0:
            self.qos0 -= 1
        return outgoing

    def expire(self, now: float) -> list[Outgoing]:
        """Take out what has expired. Looks at the items only when one may have."""
        if self._expiry == 0.0 or now < self._expiry:
            return []
        gone: list[Outgoing] = []
        kept: deque[Outgoing] = deque()
        self._expiry = 0.0
        for outgoing in self.items:
            expires_at = outgoing.message.expires_at
            if outgoing.message.expired(now):
                gone.append(outgoing)
                self.bytes -= outgoing.message.size()
                if outgoing.qos == 0:
                    self.qos0 -= 1
                continue
            kept.append(outgoing)
            if expires_at != 0.0 and (self._expiry == 0.0 or expires_at < self._expiry):
                self._expiry = expires_at
        self.items = kept
        return gone
