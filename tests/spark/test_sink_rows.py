"""Rows as messages, and rows that are none: without Spark, and without a broker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from starlingmq.spark.option_error import OptionError
from starlingmq.spark.sink import RowError, check_columns, messages_of
from starlingmq.spark.sink_options import read_sink_options

PROPERTIES = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
SCHEMA = pa.schema(
    [("topic", pa.string()), ("payload", pa.binary()), ("retain", pa.bool_()), ("properties", PROPERTIES)]
)


def messages(row: dict[str, Any], **options: str) -> list[tuple[bytes, bytes, bool]]:
    batch = pa.RecordBatch.from_pylist([{"topic": "a", "payload": b"x", "retain": False} | row], SCHEMA)
    given = read_sink_options({"servers": "mqtt://127.0.0.1:1883"} | options)
    return [(topic, payload, retain) for topic, payload, _, retain, _ in messages_of(batch, given)]


def test_a_null_payload_deletes_a_retained_message_only_by_option() -> None:
    with pytest.raises(RowError, match=r"the payload to a is null .* set deleteRetained: true"):
        messages({"payload": None, "retain": True})
    assert messages({"payload": None, "retain": True}, deleteRetained="true") == [(b"a", b"", True)]
    assert messages({"payload": None}) == [(b"a", b"", False)], "an empty message deletes nothing"
    assert messages({"payload": b"", "retain": True}) == [(b"a", b"", True)], "an empty one is published as MQTT has it"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"topic": None}, "the topic of a row is null or empty"),
        ({"topic": "a/#"}, "'a/#' is not a valid topic"),
        ({"properties": [{"name": "k", "value": None}]}, "property 'k' has no value: it is null"),
        ({"properties": [{"name": None, "value": "v"}]}, "property 'v' has no name: it is null"),
    ],
)
def test_a_row_that_is_no_message_is_said_in_a_line(row: dict[str, Any], words: str) -> None:
    with pytest.raises(RowError, match=words):
        messages(row)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("topic string, payload binary, value int", "column value: unknown to the sink, which supports topic, payload"),
        ("payload string", "the column topic is missing"),
        ("topic string", "the column payload .* is missing"),
        ("topic string, payload string, qos string", "column qos is string, but must be byte or"),
        ("topic string, payload string, properties array<string>", "column properties must be an array of struct"),
    ],
)
def test_columns_that_cannot_be_published_are_said_by_name(columns: str, words: str) -> None:
    types: dict[str, DataType] = {"string": StringType(), "binary": BinaryType(), "int": IntegerType()}
    types["array<string>"] = ArrayType(StringType())
    fields = [StructField(name, types[kind]) for name, kind in (each.split() for each in columns.split(", "))]
    with pytest.raises(OptionError, match=words):
        check_columns(StructType(fields), read_sink_options({"servers": "mqtt://127.0.0.1:1883"}))


def test_options_of_the_sink_are_said_by_name() -> None:
    with pytest.raises(OptionError, match="windows: unknown option of the sink"):
        read_sink_options({"servers": "mqtt://127.0.0.1:1883", "windows": "1"})


def test_a_null_topic_is_the_one_of_the_option() -> None:
    assert messages({"topic": None}, topic="b") == [(b"b", b"x", False)]


def test_an_excluded_node_has_a_name_or_an_address_in_any_spelling() -> None:
    given = {"servers": "mqtt://h:1883", "excludedNodes": "n2, h:1883,MQTT://H:1884, rack:a:7"}
    found = read_sink_options(given).excluded_nodes
    assert {"n2", "mqtt://h:1883", "rack:a:7"} < set(found)
    assert [name for name in found if name.startswith("mqtt://") and name.endswith("1884")]
