"""Requests of a client that wait for their replies (MQTT 5, 4.10).

All replies come to one topic of the client. The Correlation Data says which request a reply belongs to; a reply that is
late, or is none, is dropped.
"""

from __future__ import annotations

import asyncio
import secrets

from starlingmq.client.events import Message
from starlingmq.wire.properties import CORRELATION_DATA


class Inquiries:
    topic: str  # of all replies
    subscribed: bool
    beginning: asyncio.Lock  # held while the client subscribes

    def __init__(self) -> None:
        self.topic = f"replies/{secrets.token_hex(11)}"
        self.subscribed = False
        self.beginning = asyncio.Lock()
        self._waiting: dict[bytes, asyncio.Future[Message]] = {}
        self._count = 0

    def begin(self) -> tuple[bytes, asyncio.Future[Message]]:
        """The Correlation Data of a new request, and its reply."""
        self._count += 1
        correlation = self._count.to_bytes(8, "big")
        reply = self._waiting[correlation] = asyncio.get_running_loop().create_future()
        return correlation, reply

    def end(self, correlation: bytes) -> None:
        self._waiting.pop(correlation, None)

    def waits(self) -> bool:
        return bool(self._waiting)

    def came(self, message: Message) -> None:
        correlation = message.properties.get(CORRELATION_DATA)
        reply = self._waiting.pop(correlation, None) if isinstance(correlation, bytes) else None
        if reply is not None and not reply.done():
            reply.set_result(message)

    def fail(self, why: Exception) -> None:
        """No reply can come any more."""
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(why)
                reply.exception()  # marks it as retrieved: its request may have ended meanwhile
