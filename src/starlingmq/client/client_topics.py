"""Topics of a client's messages: which are valid to publish to, and the server's topic aliases."""

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
