"""The topics that a bridge carries, and their names at the other side.

An entry of the settings says for each direction: messages whose topic matches ``from prefix + filter`` get the topic
``to prefix + the rest``, or the topic that ``rename`` spells with what the wildcards matched. The first entry that
matches decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from starlingmq.config.bridges_section import RESERVED, BridgeTopic
from starlingmq.core.topics.topics import LONG, matches, valid_topic
from starlingmq.wire.primitives import encode_two

CACHE_MAX: Final = 10_000  # topics whose other names are remembered
PLACE: Final = re.compile(rb"\{(\d+)\}")


class TopicEntry:
    """``filter`` is the whole filter at the side from which messages come."""

    filter: bytes
    qos: int
    cut: int  # bytes of the prefix
    prefix: bytes  # that takes its place
    rename: bytes

    def __init__(self, topic: BridgeTopic, outwards: bool) -> None:
        here, there = topic.local_prefix.encode(), topic.remote_prefix.encode()
        if not outwards:
            here, there = there, here
        self.filter = here + topic.filter.encode()
        self.qos = topic.qos
        self.cut = len(here)
        self.prefix = there
        self.rename = topic.rename.encode()

    def other_name(self, topic: bytes) -> bytes:
        """The name at the other side of a topic that matches."""
        if not self.rename:
            return self.prefix + topic[self.cut :]
        found: list[bytes] = []
        levels = topic.split(b"/")
        for depth, level in enumerate(self.filter.split(b"/")):
            if level == b"+":
                found.append(levels[depth])
            elif level == b"#":
                found.append(b"/".join(levels[depth:]))
        return PLACE.sub(lambda place: found[int(place[1]) - 1], self.rename)


class TopicMap:
    """The names at the other side of the topics of one side."""

    entries: list[TopicEntry]
    known: dict[bytes, bytes]  # by topic: the other name as in a PUBLISH, after its length; b"": it is not carried

    def __init__(self, topics: Iterable[BridgeTopic], outwards: bool) -> None:
        other = "in" if outwards else "out"
        self.entries = [TopicEntry(topic, outwards) for topic in topics if topic.direction != other]
        self.known = {}

    def other_name(self, topic: bytes) -> bytes:
        """b"" if no entry matches, or if the other name is no topic."""
        known = self.known.get(topic)
        if known is not None:
            return known[2:]
        found = self._find(topic)
        if len(topic) <= LONG:
            if len(self.known) >= CACHE_MAX:
                self.known.clear()
            self.known[topic] = encode_two(len(found)) + found if found else b""
        return found

    def _find(self, topic: bytes) -> bytes:
        if not valid_topic(topic):
            return b""
        for entry in self.entries:
            if matches(entry.filter, topic):
                name = entry.other_name(topic)
                return name if valid_topic(name) and not name.startswith(RESERVED) else b""
        return b""

    def whole(self) -> dict[bytes, int]:
        """The filters of the entries that filters of the other side do not narrow: those with ``rename``."""
        return self._filters([entry for entry in self.entries if entry.rename])

    def filters(self) -> dict[bytes, int]:
        """The filters to subscribe to, each with its QoS."""
        return self._filters(self.entries)

    def _filters(self, entries: list[TopicEntry]) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for entry in entries:
            found[entry.filter] = max(entry.qos, found.get(entry.filter, 0))
        return found
