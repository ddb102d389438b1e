"""Retained messages: the last one of each topic, and the walk over those that match a filter.

A walk over a million messages must not hold up other work, so it is done in steps, and messages may change between two
steps. Its position is therefore not a place in a structure but a topic in byte order: everything before it is done.
Topics that cannot match are not visited one by one: the topic that failed shows how far to skip. The skips rest on one
fact: the topics below a level prefix ``p`` are those from ``p/`` up to, not including, ``p0``, 0 being the character
after the slash.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.structures.sharded_dict import ShardedDict
from starlingmq.core.structures.sorted_topics import SortedTopics
from starlingmq.wire.characters import HASH, PLUS

LOOKS_PER_MATCH: Final = 4  # topics that a step may look at per match that it is allowed
LOOK_BYTES: Final = 32  # of a topic: each further ones are as expensive as another look
DOLLAR: Final = 0x24
AFTER_DOLLAR: Final = b"%"  # the character after '$'
AFTER_SLASH: Final = b"0"
LEAST: Final = b"\0"  # topic + LEAST is the lowest string after topic; no topic contains it [MQTT-4.7.3-2]
END: Final = b"\xff"  # after all topics: UTF-8 has no such byte


class RetainedTree:
    """The retained message of each topic that has one. It stores everything; the caller enforces limits."""

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
        """Make ``message`` the retained one of its topic. Returns the replaced one, or None [MQTT-3.3.1-5]."""
        previous = self._messages.get(message.topic)
        if previous is None:
            self._topics.add(message.topic)
        else:
            self.total_bytes -= previous.size()
            # The same bytes, but the object that index and dict already have: no second copy per topic.
            message.topic = previous.topic
        self._messages.set(message.topic, message)
        self.total_bytes += message.size()
        return previous

    def remove(self, topic: bytes) -> Message | None:
        """Remove and return the retained message of ``topic``; None if there was none [MQTT-3.3.1-6]."""
        message = self._messages.pop(topic)
        if message is not None:
            self._topics.remove(topic)
            self.total_bytes -= message.size()
        return message

    def items(self) -> list[tuple[bytes, Message]]:
        """All topics and messages, in no particular order."""
        return self._messages.items()

    def cursor(self, filter: bytes, after: bytes = b"") -> RetainedCursor:
        """A walk over the messages that match ``filter`` (valid, and not a shared subscription's), from the first topic
        after ``after`` on."""
        return RetainedCursor(self._messages, self._topics, filter, after + LEAST if after else b"")


class RetainedCursor:
    """A walk in steps. Messages that exist throughout come once, as they are at that moment; others at most once.

    They come by topic, in byte order.
    """

    done: bool  # nothing is left: further steps return nothing
    looks: int  # topics looked at so far, long ones counted several times: the cost

    _messages: ShardedDict[Message]
    _topics: SortedTopics
    _filter: bytes
    _wanted: list[bytes]  # the levels of the filter
    _next_topic: bytes  # topics before this one are done

    def __init__(self, messages: ShardedDict[Message], topics: SortedTopics, filter: bytes, next_topic: bytes) -> None:
        self.done = False
        self.looks = 0
        self._messages = messages
        self._topics = topics
        self._filter = filter
        self._wanted = filter.split(b"/")
        self._next_topic = next_topic

    def next(self, limit: int) -> list[Message]:
        """At most ``limit`` (1 or more) further messages, after looking at no more than 4 topics for each allowed one.

        An empty list while ``done`` is False is a step among topics that do not match: call again later.
        """
        if PLUS not in self._filter and HASH not in self._filter:
            return self._only()
        found: list[Message] = []
        looks = 0
        looks_max = limit * LOOKS_PER_MATCH
        while not self.done and looks < looks_max and len(found) < limit:
            block, at = self._topics.since(self._next_topic)
            self.done = not block
            leap: bytes | None = None
            while leap is None and at < len(block) and looks < looks_max and len(found) < limit:
                topic = block[at]
                leap = self._leap(topic)
                self._next_topic = topic + LEAST if leap is None else leap
                if leap is None:
                    message = self._messages.get(topic)
                    assert message is not None
                    found.append(message)
                looks += 1 + len(topic) // LOOK_BYTES
                at += 1
        self.looks += looks
        return found

    def _only(self) -> list[Message]:
        """The whole walk if the filter is a topic: most filters are, and few of their topics have a message."""
        message = None if self.done else self._messages.get(self._filter)
        self.done = True
        return [] if message is None else [message]

    def _leap(self, topic: bytes) -> bytes | None:
        """None if ``topic`` matches; otherwise the lowest topic after it that may."""
        wanted = self._wanted
        given = topic.split(b"/")
        if topic[0] == DOLLAR and (wanted[0] == b"+" or wanted[0] == b"#"):
            return AFTER_DOLLAR  # [MQTT-4.7.2-1]
        start = 0  # begin of the present level
        plus_end = -1  # end of the last level before it that '+' matched
        for depth, level in enumerate(wanted):
            if level == b"#":
                return None
            if depth == len(given):
                return topic + LEAST  # the topic is too short, and its continuation may come anywhere after it
            if level == b"+":
                plus_end = start + len(given[depth])
            elif level != given[depth]:
                return _leap_to_level(topic, start, level, plus_end)
            start += len(given[depth]) + 1
        if len(given) == len(wanted):
            return None
        return topic[: start - 1] + AFTER_SLASH  # the topic is too long, and so are all below the same levels


def _leap_to_level(topic: bytes, start: int, level: bytes, plus_end: int) -> bytes:
    """``topic`` differs from ``level`` at ``start``. A match has ``level`` there, or, if that is before this topic,
    another value for the last '+' before. Without one there is nothing more to find."""
    target = topic[:start] + level
    if topic < target:
        return target
    target += b"/"
    if topic < target:
        return target
    return END if plus_end < 0 else topic[:plus_end] + AFTER_SLASH
