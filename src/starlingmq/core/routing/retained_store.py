"""Retained messages: the last one of every topic, and the walk that replays those that match a filter.

A walk over a million messages must not hold up anybody, so it is taken in steps, and between two of them messages come
and go. Its place is therefore not in a structure but a topic in byte order: everything before it is dealt with. Topics
that cannot match are not stepped over one by one: what is known of the one that failed tells how far to leap. The leaps
rest on one fact: the topics below a level prefix ``p`` are those from ``p/`` up to, not including, ``p0``, 0 being the
character after the slash.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.message import Message
from starlingmq.core.routing.sorted_topics import SortedTopics
from starlingmq.core.sharded_dict import ShardedDict

LOOKS_PER_MATCH: Final = 4  # a step may look at this many topics for each match it is allowed
DOLLAR: Final = 0x24
AFTER_DOLLAR: Final = b"%"  # the character after '$'
AFTER_SLASH: Final = b"0"
LEAST: Final = b"\0"  # topic + LEAST is the least that is behind topic; no topic contains it [MQTT-4.7.3-2]
END: Final = b"\xff"  # behind all topics: UTF-8 has no such byte


class RetainedTree:
    """The retained message of every topic that has one. It stores what it is given; limits are for the caller."""

    total_bytes: int  # topics, payloads and properties of all messages

    _messages: ShardedDict[Message]
    _topics: SortedTopics

    def __init__(self) -> None:
        self.total_bytes = 0
        self._messages = ShardedDict()
        self._topics = SortedTopics()

    def __len__(self) -> int:
        return len(self._messages)

    def get(self, topic: bytes) -> Message | None:
        return self._messages.get(topic)

    def put(self, message: Message) -> Message | None:
        """Makes ``message`` the retained one of its topic; the one that it replaces, or None [MQTT-3.3.1-5]."""
        previous = self._messages.get(message.topic)
        if previous is None:
            self._topics.add(message.topic)
        else:
            self.total_bytes -= previous.size()
            # The same bytes, but the one object that the index and the dict hold anyhow: not a second copy per topic.
            message.topic = previous.topic
        self._messages.set(message.topic, message)
        self.total_bytes += message.size()
        return previous

    def remove(self, topic: bytes) -> Message | None:
        """Forgets the retained message of ``topic`` and returns it, or None if there was none [MQTT-3.3.1-6]."""
        message = self._messages.pop(topic)
        if message is not None:
            self._topics.remove(topic)
            self.total_bytes -= message.size()
        return message

    def items(self) -> list[tuple[bytes, Message]]:
        """All topics and messages, in no order."""
        return self._messages.items()

    def cursor(self, filter: bytes, after: bytes = b"") -> RetainedCursor:
        """A walk over the messages that match ``filter`` (valid, and not a shared subscription's), from the first
        topic behind ``after`` on."""
        return RetainedCursor(self._messages, self._topics, filter, after + LEAST if after else b"")


class RetainedCursor:
    """A walk in steps. Messages that are there all the time come once, as they are when it passes; others at most once.

    It comes by topic, in byte order.
    """

    done: bool  # nothing is left: further steps return nothing
    looks: int  # topics looked at so far: what it cost

    _messages: ShardedDict[Message]
    _topics: SortedTopics
    _filter: bytes
    _wanted: list[bytes]  # the levels of the filter
    _place: bytes  # no topic before this one is of interest any more

    def __init__(self, messages: ShardedDict[Message], topics: SortedTopics, filter: bytes, place: bytes) -> None:
        self.done = False
        self.looks = 0
        self._messages = messages
        self._topics = topics
        self._filter = filter
        self._wanted = filter.split(b"/")
        self._place = place

    def next(self, limit: int) -> list[Message]:
        """At most ``limit`` (1 or more) further messages, after looking at no more than 4 topics for each allowed.

        An empty list while ``done`` is False is a step among topics that do not match: ask again, at leisure.
        """
        if b"+" not in self._filter and b"#" not in self._filter:
            return self._only()
        found: list[Message] = []
        looks = 0
        looks_max = limit * LOOKS_PER_MATCH
        while not self.done and looks < looks_max and len(found) < limit:
            block, at = self._topics.since(self._place)
            self.done = not block
            leap: bytes | None = None
            while leap is None and at < len(block) and looks < looks_max and len(found) < limit:
                topic = block[at]
                leap = self._leap(topic)
                self._place = topic + LEAST if leap is None else leap
                if leap is None:
                    message = self._messages.get(topic)
                    assert message is not None
                    found.append(message)
                looks += 1
                at += 1
        self.looks += looks
        return found

    def _only(self) -> list[Message]:
        """The whole walk where the filter is a topic: most filters are, and few of their topics have a message."""
        message = None if self.done else self._messages.get(self._filter)
        self.done = True
        return [] if message is None else [message]

    def _leap(self, topic: bytes) -> bytes | None:
        """None if ``topic`` matches; otherwise the least topic behind it that may."""
        wanted = self._wanted
        given = topic.split(b"/")
        if topic[0] == DOLLAR and (wanted[0] == b"+" or wanted[0] == b"#"):
            return AFTER_DOLLAR  # [MQTT-4.7.2-1]
        start = 0  # where the level at hand begins
        plus_end = -1  # where the last level before it that '+' stood for ends
        for depth, level in enumerate(wanted):
            if level == b"#":
                return None
            if depth == len(given):
                return topic + LEAST  # it is too short, and what it lacks may come anywhere behind it
            if level == b"+":
                plus_end = start + len(given[depth])
            elif level != given[depth]:
                return _leap_to_level(topic, start, level, plus_end)
            start += len(given[depth]) + 1
        if len(given) == len(wanted):
            return None
        return topic[: start - 1] + AFTER_SLASH  # it is too long, and so is everything below the same levels


def _leap_to_level(topic: bytes, start: int, level: bytes, plus_end: int) -> bytes:
    """Where ``topic`` has something else than ``level`` at ``start``: what may match has ``level`` there, or, when that
    is behind us, another value for the last '+' before. Without one there is nothing more to find."""
    place = topic[:start] + level
    if topic < place:
        return place
    place += b"/"
    if topic < place:
        return place
    return END if plus_end < 0 else topic[:plus_end] + AFTER_SLASH
