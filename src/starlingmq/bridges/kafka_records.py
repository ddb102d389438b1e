"""Messages as records of Kafka, and back.

::

    key       the MQTT topic: one topic, one partition, in order
    value     the payload; none (a tombstone) if a retained message is deleted
    headers   mqtt.topic, mqtt.qos, mqtt.retain (1, or absent); mqtt.payload-format, mqtt.content-type,
              mqtt.response-topic, mqtt.correlation-data where the message has them; its User Properties, by their names

Back, the same headers give QoS and properties. All others become User Properties, and so does the key, as kafka.key;
a header or a key that is not UTF-8 is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.config.bridges_section import KEY, BridgeTopic, valid_kafka_topic
from starlingmq.core.topics.topics import valid_topic
from starlingmq.wire.packets import Publish
from starlingmq.wire.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    Properties,
    decode_property_bytes,
    encode_property_bytes,
)

Headers = list[tuple[str, str | bytes | None]]

TOPIC: Final = "mqtt.topic"
QOS: Final = "mqtt.qos"
RETAIN: Final = "mqtt.retain"
NAMES: Final = {
    PAYLOAD_FORMAT_INDICATOR: "mqtt.payload-format",
    CONTENT_TYPE: "mqtt.content-type",
    RESPONSE_TOPIC: "mqtt.response-topic",
    CORRELATION_DATA: "mqtt.correlation-data",
}
IDENTIFIERS: Final = {name: identifier for identifier, name in NAMES.items()}
RESERVED: Final = (TOPIC, QOS, RETAIN, *IDENTIFIERS)  # not taken from User Properties
TEXT_MAX: Final = 65_535  # bytes of a string in a packet
USERS_MAX: Final = 1000  # headers that become User Properties


def kafka_topic(topics: TopicMap, topic: bytes) -> str:
    """The Kafka topic of an MQTT topic; empty if no entry matches, or if Kafka allows no such name."""
    name = topics.other_name(topic).decode().replace("/", ".")
    return name if valid_kafka_topic(name) else ""


class KafkaSource:
    """An entry for messages in: a Kafka topic, and the MQTT topics of its records."""

    def __init__(self, topic: BridgeTopic) -> None:
        self.name = topic.remote_prefix + topic.filter
        self.qos = topic.qos
        self._topic = (topic.rename or topic.local_prefix + topic.filter).encode()

    def mqtt_topic(self, key: bytes | None) -> bytes:
        """Empty if a record with this key has none."""
        topic = self._topic.replace(KEY.encode(), key or b"")
        return topic if valid_topic(topic) and not topic.startswith(b"$SYS/") else b""


def record_headers(packet: Publish, properties: bytes) -> Headers:
    """``properties`` in place of those of the packet."""
    headers: Headers = [(TOPIC, packet.topic), (QOS, b"%d" % packet.qos)]
    if packet.retain:
        headers.append((RETAIN, b"1"))
    for identifier, value in decode_property_bytes(properties).items():
        name = NAMES.get(identifier)
        if name is not None:
            headers.append((name, value if isinstance(value, bytes) else str(value).encode()))
        elif isinstance(value, list):
            users = [pair for pair in value if isinstance(pair, tuple)]
            headers += [(key, text.encode()) for key, text in users if key not in RESERVED]
    return headers


def record_value(packet: Publish) -> bytes | None:
    return None if packet.retain and not packet.payload else packet.payload


def message_parts(headers: Iterable[tuple[str, bytes | None]], key: bytes | None, qos: int) -> tuple[int, bool, bytes]:
    """QoS, at most ``qos``, retain flag and encoded properties of a record's message."""
    retain = False
    said: int | None = None
    properties: Properties = {}
    users: list[tuple[str, str]] = []
    for name, value in headers:
        text = _text(value)
        if name == QOS:
            said = int(text) if said is None and text in ("0", "1", "2") else said
        elif name == RETAIN:
            retain = text == "1"
        elif name in IDENTIFIERS and IDENTIFIERS[name] not in properties:
            _property(properties, IDENTIFIERS[name], text, value or b"")
        elif text is not None and _fits(name) and len(users) < USERS_MAX:
            users.append((name, text))
    text = _text(key)
    if key is not None and text is not None:
        users.append(("kafka.key", text))
    if users:
        properties[USER_PROPERTY] = [*users]
    return qos if said is None else min(qos, said), retain, encode_property_bytes(properties)


def _property(properties: Properties, identifier: int, text: str | None, value: bytes) -> None:
    if identifier == CORRELATION_DATA:
        if len(value) <= TEXT_MAX:
            properties[identifier] = value
    elif text is not None and identifier == PAYLOAD_FORMAT_INDICATOR:
        if text in ("0", "1"):
            properties[identifier] = int(text)
    elif text is not None and (identifier != RESPONSE_TOPIC or valid_topic(text.encode())):
        properties[identifier] = text


def _text(value: bytes | None) -> str | None:
    """The text of a header, if it is an MQTT string; that of none is empty."""
    if value is None:
        return ""
    if len(value) > TEXT_MAX or b"\0" in value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _fits(name: str) -> bool:
    return "\0" not in name and len(name.encode()) <= TEXT_MAX
