"""Dumb twins of the small nouns of a session, and messages to put through them."""

from __future__ import annotations

from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing


def message(payload: bytes = b"", expires_at: float = 0.0, topic: bytes = b"t") -> Message:
    return Message(topic, payload, 2, False, b"", expires_at, "publisher", 0.0)


def outgoing(qos: int, payload: bytes = b"", expires_at: float = 0.0) -> Outgoing:
    return Outgoing(message(payload, expires_at), qos, False, b"", None)


class Sent:
    def __init__(self, packet_id: int, item: Outgoing, at: float) -> None:
        self.packet_id = packet_id
        self.item = item
        self.at = at
        self.released = False


class ListWindow:
    """SendWindow as a list of sent messages, in order."""

    def __init__(self, last_id: int) -> None:
        self.sent: list[Sent] = []
        self.last_id = last_id

    def find(self, packet_id: int) -> Sent | None:
        return next((sent for sent in self.sent if sent.packet_id == packet_id), None)

    def add(self, item: Outgoing, now: float) -> int:
        """The ids go round, without 0, past those in use."""
        while True:
            self.last_id = self.last_id % 65535 + 1
            if self.find(self.last_id) is None:
                break
        self.sent.append(Sent(self.last_id, item, now))
        return self.last_id

    def take(self, packet_id: int, qos: int, released: bool) -> Outgoing | None:
        found = self.find(packet_id)
        if found is None or found.item.qos != qos or found.released != released:
            return None
        self.sent.remove(found)
        return found.item


class DictInbound:
    """Inbound as two dicts. ``completed`` has the time of each completion; the broker's may be up to a second less."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Message, float]] = {}
        self.completed: dict[int, float] = {}


class ListQueue:
    """MessageQueue as a list that is measured again every time."""

    def __init__(self, max_length: int, max_bytes: int) -> None:
        self.items: list[Outgoing] = []
        self.max_length = max_length
        self.max_bytes = max_bytes

    def bytes(self) -> int:
        return sum(item.message.size() for item in self.items)

    def over(self) -> bool:
        too_long = 0 < self.max_length < len(self.items)
        return too_long or 0 < self.max_bytes < self.bytes()

    def push(self, item: Outgoing, now: float) -> list[Outgoing]:
        self.items.append(item)
        gone = self.expire(now) if self.over() else []
        while self.over():
            gone.append(self.items.pop(0))
        return gone

    def expire(self, now: float) -> list[Outgoing]:
        gone = [item for item in self.items if item.message.expired(now)]
        self.items = [item for item in self.items if item not in gone]
        return gone
