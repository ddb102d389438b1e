"""Messages as records of Kafka and back, and the settings of a bridge to it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import pytest
from tests.patience import within

from starlingmq import Broker
from starlingmq.bridges.kafka_bridge import client_settings, headers_of
from starlingmq.bridges.kafka_records import KafkaSource, kafka_topic, message_parts, record_headers, record_value
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.config.bridges_section import BridgeConfig, BridgeTopic, check_bridges
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
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

PROPERTIES: Properties = {
    PAYLOAD_FORMAT_INDICATOR: 1,
    CONTENT_TYPE: "text/plain",
    RESPONSE_TOPIC: "a/b",
    CORRELATION_DATA: b"\xff\0",
    USER_PROPERTY: [("unit", "C"), ("unit", "F")],
}


def config(**fields: Any) -> BridgeConfig:
    tree = {"name": "k", "servers": ["kafka://host"], "topics": [{"filter": "a"}]} | fields
    found = msgspec.convert(tree, BridgeConfig)
    check_bridges((found,))
    return found


def test_a_record_and_back() -> None:
    packet = Publish(b"a/b", b"x", 1, True)
    headers: Any = record_headers(packet, encode_property_bytes(PROPERTIES))
    qos, retain, properties = message_parts(headers, b"a/b", 2)
    assert (qos, retain) == (1, True)
    users = [("mqtt.topic", "a/b"), ("unit", "C"), ("unit", "F"), ("kafka.key", "a/b")]
    assert decode_property_bytes(properties) == {**PROPERTIES, USER_PROPERTY: users}


def test_a_user_property_does_not_pass_for_a_header_of_the_bridge() -> None:
    users: Properties = {USER_PROPERTY: [("mqtt.retain", "1"), ("mqtt.qos", "0"), ("unit", "C")]}
    headers: Any = record_headers(Publish(b"a", b"x", 1), encode_property_bytes(users))
    assert headers == [("mqtt.topic", b"a"), ("mqtt.qos", b"1"), ("unit", b"C")]
    assert message_parts(headers, None, 2)[:2] == (1, False)


def test_headers_that_mqtt_has_no_room_for_are_left_out() -> None:
    headers: list[tuple[str, bytes | None]] = [
        ("binary", b"\xff"),
        ("long", b"x" * 65_536),
        ("nul", b"\0"),
        ("none", None),
        ("mqtt.response-topic", b"a/#"),
        ("mqtt.payload-format", b"7"),
        ("mqtt.qos", b"9"),
    ]
    qos, retain, properties = message_parts(headers, b"\xff", 2)
    assert (qos, retain) == (2, False)
    assert decode_property_bytes(properties) == {USER_PROPERTY: [("none", "")]}


def test_a_deleted_retained_message_is_a_tombstone() -> None:
    assert record_value(Publish(b"a", b"", 1, True)) is None
    assert record_value(Publish(b"a", b"", 1, False)) == b""


def test_names_of_kafka_topics() -> None:
    topics = [BridgeTopic(filter="a/b", remote_prefix="x/"), BridgeTopic(filter="c/+", rename="c-{1}")]
    found = TopicMap(topics, outwards=True)
    names = {topic: kafka_topic(found, topic) for topic in (b"a/b", b"c/d.e_f", b"c/d e", b"c/" + b"d" * 250, b"other")}
    assert names == {b"a/b": "x.a.b", b"c/d.e_f": "c-d.e_f", b"c/d e": "", b"c/" + b"d" * 250: "", b"other": ""}


class Unreadable:
    def headers(self) -> None:
        b"\xff".decode()


def test_names_of_headers_that_are_no_text_cost_the_headers_only() -> None:
    assert headers_of(Unreadable()) == []


def test_mqtt_topics_of_records() -> None:
    plain = KafkaSource(BridgeTopic(filter="orders", direction="in", local_prefix="shop/"))
    assert (plain.name, plain.mqtt_topic(b"7")) == ("orders", b"shop/orders")
    keyed = KafkaSource(BridgeTopic(filter="orders", direction="in", rename="shop/{key}"))
    keys = (b"7", b"a/b", b"a+", b"\xff", b"", None)
    assert [keyed.mqtt_topic(key) for key in keys] == [b"shop/7", b"shop/a/b", b"", b"", b"shop/", b"shop/"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"servers": ["kafka://a", "mqtt://b"]}, "all NATS or all Kafka; make a bridge for each"),
        ({"servers": ["kafka://a", "kafka+ssl://b"]}, "servers: must all be kafka or all be kafka\\+ssl"),
        ({"topics": [{"filter": "a", "direction": "both"}]}, "one entry for in and one for out"),
        ({"topics": [{"filter": "a/#"}]}, "rename: name the Kafka topic"),
        ({"topics": [{"filter": "a b"}]}, "filter: a b is no name of a Kafka topic"),
        ({"topics": [{"filter": "a/+", "rename": "x:{1}"}]}, "rename: x:x is no name"),
        ({"topics": [{"filter": "a/+", "rename": "x{2}"}]}, "rename: is a topic with"),
        ({"topics": [{"filter": "a/b", "direction": "in"}]}, "it is the name of a Kafka topic"),
        ({"topics": [{"filter": "a", "direction": "in", "rename": "{1}"}]}, "rename: is a topic without braces"),
        ({"topics": [{"filter": "a", "direction": "in"}] * 2}, "read by several entries"),
    ],
)
def test_settings_that_cannot_work(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config(**fields)


def test_the_settings_of_kafkas_client() -> None:
    assert client_settings(config(servers=["kafka://a", "kafka://[::1]:9093"]), "s") == {
        "bootstrap.servers": "a:9092,[::1]:9093",
        "client.id": "k-s",
        "security.protocol": "PLAINTEXT",
    }
    login = {"username": "u", "password": "p", "sasl": "SCRAM-SHA-256"}
    secure = client_settings(config(servers=["kafka+ssl://a"], credentials=login, tls={"ca": "ca", "cert": "c"}), "s")
    assert secure["security.protocol"] == "SASL_SSL" and secure["sasl.mechanism"] == "SCRAM-SHA-256"
    assert secure["enable.ssl.certificate.verification"] and secure["ssl.endpoint.identification.algorithm"] == "https"
    assert (secure["ssl.ca.location"], secure["ssl.certificate.location"], secure["ssl.key.location"]) == (
        "ca",
        "c",
        "c",
    )
    unsure = client_settings(config(servers=["kafka+ssl://a"], tls={"insecure": True}), "s")
    assert not unsure["enable.ssl.certificate.verification"]


async def test_a_missing_package_is_named_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "starlingmq.bridges.kafka_clients", raising=False)
    bridge = {"name": "k", "servers": ["kafka://127.0.0.1:1"], "topics": [{"filter": "a"}]}
    async with Broker(from_tree({"listeners": ["mqtt://127.0.0.1:0"], "bridges": [bridge]})) as broker:
        assert broker._bridges is not None
        async with within(10):
            while not (problem := broker._bridges.views()[0].problem):
                await asyncio.sleep(0)
    assert "pip install 'starlingmq[kafka]'" in problem
