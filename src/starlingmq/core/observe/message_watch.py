"""A watch on some messages, for as long as an operator polls it (``ctl trace``, the live tail of topics).

A watch selects by topic, by client, or by both: messages that match its filter, and that its client has published or is
a receiver of. At most ``EVENTS_MAX`` events wait to be polled, of at most ``rate`` new messages per second; the excess
is counted and left out. The events come from core.observe.audit.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.observe.event_lines import Event, EventLine
from starlingmq.core.topics.topics import matches

EVENTS_MAX: Final = 2000
FOLLOWED_MAX: Final = 10_000  # messages of its client; the oldest are removed
PAYLOAD_MAX: Final = 4096  # bytes of a payload that are shown


class MessageWatch:
    """``client_id`` "" and ``filter`` b"" do not select. ``tail``: messages as they are accepted, with payloads."""

    client_id: str
    filter: bytes
    tail: bool
    rate: int
    lost: int  # messages and events that were left out
    _events: list[Event]
    _followed: dict[bytes, None]
    _payloads: dict[bytes, bytes]  # of messages whose events have not been added yet
    _second: int
    _messages: int  # in this second

    def __init__(self, client_id: str, filter: bytes, tail: bool, rate: int) -> None:
        self.client_id = client_id
        self.filter = filter
        self.tail = tail
        self.rate = rate
        self.lost = 0
        self._events = []
        self._followed = {}
        self._payloads = {}
        self._second = 0
        self._messages = 0

    def wants(self, message: Message, now: float) -> bool:
        """Whether a message may be selected. Called once per message, where it enters."""
        if len(self.filter) != 0 and not matches(self.filter, message.topic):
            return False
        if len(self.client_id) != 0 and message.publisher != self.client_id:
            return not self.tail  # it may still be delivered to that client
        return self.may(now)

    def may(self, now: float) -> bool:
        """Whether the rate allows one more message in this second."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._messages = 0
        self._messages += 1
        if self._messages <= self.rate:
            return True
        self.lost += 1
        return False

    def entered(self, message: Message) -> None:
        """A message with an id is at this node: accepted here, or forwarded from another node."""
        id = message.id
        if len(self.client_id) != 0 and message.publisher == self.client_id:
            self._followed[id] = None
            if len(self._followed) > FOLLOWED_MAX:
                del self._followed[next(iter(self._followed))]
        if self.tail and len(self._payloads) < EVENTS_MAX:
            self._payloads[id] = message.payload[:PAYLOAD_MAX]

    def take(self, kind: str, lines: list[EventLine]) -> None:
        """Add the events of a turn, those of one kind. Runs are of messages from before this watch."""
        if self.tail and kind != "accepted":
            return
        for line in lines:
            if line.run != 1 or not self.chooses(line):
                continue
            if len(self._events) >= EVENTS_MAX:
                self.lost += 1
                continue
            seen = line.event()
            seen["kind"] = kind
            if self.tail:
                seen["payload"] = self._payloads.get(line.id, b"")
            self._events.append(seen)
        self._payloads.clear()

    def chooses(self, line: EventLine) -> bool:
        if len(line.topic) == 0 or (len(self.filter) != 0 and not matches(self.filter, line.topic)):
            return False
        return len(self.client_id) == 0 or line.client == self.client_id or line.id in self._followed

    def seen(self) -> tuple[list[Event], int]:
        """The events since the last call, and the number of those left out."""
        events, lost = self._events, self.lost
        self._events = []
        self.lost = 0
        return events, lost
