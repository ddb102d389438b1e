"""Topics and filters of a client: which are valid, which topics a filter matches, and the server's topic aliases."""

from __future__ import annotations

from starlingmq.wire.packets import Publish
from starlingmq.wire.reasons import MalformedPacket, ProtocolError, Reason


class TopicAliases:
    """Topic aliases of one connection, set by the server. ``maximum``: as announced in CONNECT."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._topics: dict[int, str] = {}

    def clear(self) -> None:
        self._topics.clear()

    def topic_of(self, packet: Publish) -> str:
        alias = packet.topic_alias
        if alias > self.maximum:  # [MQTT-3.1.2-26]
            raise ProtocolError(f"topic alias {alias} is above the announced maximum", Reason.TOPIC_ALIAS_INVALID)
        if packet.topic:
            try:
                topic = packet.topic.decode()
            except UnicodeDecodeError:
                raise MalformedPacket("a topic is not UTF-8") from None
            if "\0" in topic:
                raise MalformedPacket("a topic contains U+0000")  # [MQTT-1.5.4-2]
            if alias:
                self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise ProtocolError(f"topic alias {alias} has not been defined", Reason.TOPIC_ALIAS_INVALID)
        return known


def encode_topic(topic: str) -> bytes:
    """Encode a topic name. Raises ValueError for an invalid one [MQTT-3.3.2-2]."""
    if not topic:
        raise ValueError("the topic must not be empty")
    if "+" in topic or "#" in topic or "\0" in topic:
        raise ValueError(f"a topic to publish to must not contain wildcards: {topic!r}")
    encoded = topic.encode()
    if len(encoded) > 65_535:
        raise ValueError("the topic must not be longer than 65535 bytes")
    return encoded


def check_filter(topic_filter: str) -> None:
    """Raises ValueError with a sentence for a filter that a server would refuse, perhaps by ending the connection
    [MQTT-4.7.1-1, MQTT-4.7.1-2, MQTT-4.8.2-1, MQTT-4.8.2-2]."""
    if len(topic_filter.encode()) > 65_535:
        raise ValueError("a topic filter must not be longer than 65535 bytes")
    if "\0" in topic_filter:
        raise ValueError(f"a topic filter must not contain U+0000: {topic_filter!r}")
    if topic_filter.startswith("$share/"):
        _, group, *rest = topic_filter.split("/", 2)
        if not group or "+" in group or "#" in group:
            raise ValueError(f"the name of a group must not be empty or contain a wildcard: {topic_filter!r}")
        if not rest or not rest[0]:
            raise ValueError(f"the group has no topic filter; write $share/{group}/FILTER, not {topic_filter!r}")
    if not topic_filter:
        raise ValueError("a topic filter must not be empty")
    levels = levels_of(topic_filter)
    for level in levels:
        if len(level) > 1 and ("+" in level or "#" in level):
            raise ValueError(f"a wildcard must be a whole level of the filter, as in a/+/b or a/#: {topic_filter!r}")
    if "#" in levels[:-1]:
        raise ValueError(f"# must be the last level of the filter: {topic_filter!r}")


def levels_of(topic_filter: str) -> list[str]:
    """The levels of a filter, without its group."""
    levels = topic_filter.split("/")
    return levels[2:] if levels[0] == "$share" and len(levels) > 2 else levels


def matches(levels: list[str], topic: str) -> bool:
    """Whether a filter with these levels matches the topic [MQTT-4.7.2-1]."""
    if topic.startswith("$") and levels[0] in ("+", "#"):
        return False
    names = topic.split("/")
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index == len(names) or level not in ("+", names[index]):
            return False
    return len(levels) == len(names)
