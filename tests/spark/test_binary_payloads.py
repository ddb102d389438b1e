"""Binary payloads as columns: Avro, Protobuf, CBOR, MessagePack and Sparkplug B."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbor2
import fastavro
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType, TimestampType

from starlingmq.pipeline.config import DeadLetterConfig, DecodeConfig
from starlingmq.pipeline.decoding import dead_letters, with_whole
from starlingmq.spark.binary_payloads import BinaryFormat, decode_binary, decoded_array, decoder, read_format
from starlingmq.spark.msgpack_keys import decode_once
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.payloads import MALFORMED
from starlingmq.spark.sparkplug import decode_sparkplug, decoded_payloads
from tests.spark.sparkplug_payloads import sparkplug

AT = StructType().add("x", "integer").add("y", "integer")
SIMPLE = StructType().add("id", "string").add("value", "double")
FIELDS = StructType([*SIMPLE.fields]).add("tags", ArrayType(StringType())).add("at", AT)
READING = {"id": "a", "value": 1.5, "tags": ["t", "u"], "at": {"x": 1, "y": 2}}
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "value", "type": ["null", "double"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": {"type": "record", "name": "At", "fields": [{"name": n, "type": "int"} for n in "xy"]}},
    ],
}


def decoded(format: BinaryFormat, payloads: list[bytes]) -> list[dict[str, Any]]:
    type = to_arrow_type(format.fields, timezone="UTC")
    found: list[dict[str, Any]] = decoded_array(decoder(format), type, pa.array(payloads)).to_pylist()
    return found


def avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), value)
    return out.getvalue()


def reading_descriptors() -> bytes:
    field = descriptor_pb2.FieldDescriptorProto
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="reading.proto", package="plant", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    at, reading = file.message_type.add(name="At"), file.message_type.add(name="Reading")
    for number, name in enumerate("xy", 1):
        at.field.add(name=name, number=number, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    reading.field.add(name="id", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    reading.field.add(name="value", number=2, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    reading.field.add(name="tags", number=3, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    message = {"type": field.TYPE_MESSAGE, "label": field.LABEL_OPTIONAL}
    reading.field.add(name="at", number=4, type_name=".plant.At", **message)
    reading.field.add(name="since", number=5, type_name=".google.protobuf.Timestamp", **message)
    return files.SerializeToString()


def test_every_format_gives_the_same_columns() -> None:
    proto = BinaryFormat(
        name="protobuf", columns=FIELDS.json(), descriptors=reading_descriptors(), message="plant.Reading"
    )
    payloads = {
        "cbor": (BinaryFormat(name="cbor", columns=FIELDS.json()), cbor2.dumps(READING)),
        "msgpack": (BinaryFormat(name="msgpack", columns=FIELDS.json()), msgspec.msgpack.encode(READING)),
        "avro": (BinaryFormat(name="avro", columns=FIELDS.json(), writer=json.dumps(AVRO)), avro(READING)),
        "protobuf": (proto, b"\n\x01a\x11\x00\x00\x00\x00\x00\x00\xf8?\x1a\x01t\x1a\x01u\x22\x04\x08\x01\x10\x02"),
    }
    for name, (format, payload) in payloads.items():
        assert decoded(format, [payload]) == [{"value": READING, MALFORMED: None}], name


@pytest.mark.parametrize("name", ["cbor", "msgpack"])
def test_payloads_that_do_not_fit_have_a_reason_and_spare_the_others(name: str) -> None:
    encoders: dict[str, Callable[[Any], bytes]] = {"cbor": cbor2.dumps, "msgpack": msgspec.msgpack.encode}
    encode = encoders[name]
    good = encode({"id": "a", "value": 1})
    bad = [b"", good[:-1], good + b"\x00", encode([1]), encode({"id": 7}), encode({"value": "x"})]
    found = decoded(BinaryFormat(name=name, columns=SIMPLE.json()), [good, *bad, good])
    assert [row["value"] for row in found] == [{"id": "a", "value": 1.0}, *[None] * 6, {"id": "a", "value": 1.0}]
    assert [row[MALFORMED] is None for row in found] == [True, *[False] * 6, True]
    assert all(row[MALFORMED].startswith("the payload cannot be decoded: ") for row in found[1:-1])


def test_a_key_twice_in_cbor_is_refused_at_any_depth() -> None:
    twice = cbor2.dumps({"id": "a", "iD": "b"}).replace(b"iD", b"id")
    below = cbor2.dumps({"id": "a", "more": {"x": 1, "y": 2}}).replace(b"ay", b"ax")
    found = decoded(BinaryFormat(name="cbor", columns=SIMPLE.json()), [twice, below, cbor2.dumps({"id": "a"})])
    assert [row["value"] for row in found] == [None, None, {"id": "a", "value": None}]
    assert ["Duplicate map key" in row[MALFORMED] for row in found[:2]] == [True, True]


def test_a_key_twice_in_messagepack_is_refused_at_any_depth() -> None:
    encode = msgspec.msgpack.encode
    wide = b"\xde\x00\x10" + b"".join(b"\xa1%c\x01" % (97 + number) for number in range(16))
    bad = {
        b"\x82\xa2id\xa1a\xa2id\xa1b": "it has this key twice: id",
        b"\x82\xa2id\xa1a\xd9\x02id\xa1a": "it has this key twice: id",  # the same value, and a longer form of the name
        encode({"id": "a", "more": {"x": 1, "y": 2}}).replace(b"\xa1y", b"\xa1x"): "a map in it has a key twice",
        encode({"more": [[{"x": 1, "y": 2}]]}).replace(b"\xa1y", b"\xa1x"): "a map in it has a key twice",
        encode({"more": {"x": {"x": 1}, "y": 2}}).replace(b"\xa1y", b"\xa1x"): "a map in it has a key twice",
        wide.replace(b"\xa1b", b"\xa1a"): "it has this key twice: a",
        b"\xdf\x00\x00\x00\x02\x01\x01\xcd\x00\x01\x01": "it has this key twice: 1",
        b"\x82\x92\x01\x02\x01\x92\x01\x02\x01": "it has this key twice: (1, 2)",
    }
    good = [encode({"id": "a"}), b"\x82\xa2id\xa1a\xa2iD\xa1b", wide, b"\x81\xa1x\x81\xa1x\xca\x3f\x80\x00\x00"]
    found = decoded(BinaryFormat(name="msgpack", columns=SIMPLE.json()), [*bad, *good])
    reasons = [row[MALFORMED] for row in found]
    assert reasons == [*(f"the payload cannot be decoded: {words}" for words in bad.values()), *[None] * len(good)]
    assert [row["value"] is None for row in found] == [True] * len(bad) + [False] * len(good)


@pytest.mark.parametrize(
    "token",
    [
        b"\x07", b"\xff", b"\xc0", b"\xc2", b"\xc3", b"\xa3abc", b"\xbf" + b"a" * 31,
        b"\xc4\x01a", b"\xc5\x00\x01a", b"\xc6\x00\x00\x00\x01a", b"\xd9\x01a", b"\xda\x00\x01a",
        b"\xdb\x00\x00\x00\x01a",
        b"\xc7\x01\x05a", b"\xc8\x00\x01\x05a", b"\xc9\x00\x00\x00\x01\x05a",
        *(bytes([first, 5]) + bytes(size) for first, size in zip(range(0xD4, 0xD9), (1, 2, 4, 8, 16), strict=True)),
        *(bytes([first]) + bytes(size) for first, size in zip(b"\xca\xcb", (4, 8), strict=True)),
        *(bytes([first]) + bytes(size) for first, size in zip(range(0xCC, 0xD4), (1, 2, 4, 8) * 2, strict=True)),
        b"\x90", b"\x91\x01", b"\xdc\x00\x01\x01", b"\xdd\x00\x00\x00\x01\x01",
        b"\x80", b"\x81\x01\x01", b"\xde\x00\x01\x01\x01", b"\xdf\x00\x00\x00\x01\x01\x01",
    ],
)  # fmt: skip
def test_every_form_of_messagepack_is_stepped_over(token: bytes) -> None:
    """A map with a key twice is found behind and before it, and a map without one is not taken for such a map."""
    float32 = b"\xca\x3f\x80\x00\x00"  # no payload is as msgspec would write it
    for inner, right in ((b"\x82\xa1a\x01\xa1b\x02", True), (b"\x82\xa1a\x01\xa1a\x02", False)):
        for order in (token + inner, inner + token):
            payload = b"\x81\xa1v\x93" + order + float32
            if right:
                assert decode_once(payload) == msgspec.msgpack.decode(payload)
            else:
                with pytest.raises(ValueError, match="a map in it has a key twice"):
                    decode_once(payload)


def test_framed_avro_is_decoded_by_the_schema_of_its_id(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(AVRO))
    format = read_format("avro", FIELDS, str(tmp_path), "", "confluent")
    good, stranger = (b"\x00" + id.to_bytes(4) + avro(READING) for id in (7, 8))
    found = decoded(format, [good, stranger, avro(READING)])
    assert found[0] == {"value": READING, MALFORMED: None}
    assert [row[MALFORMED] for row in found[1:]] == [
        "the payload cannot be decoded: schema 8 is unknown",
        "the payload cannot be decoded: it has no schema id",
    ]


def test_protobuf_knows_fields_that_are_not_set_and_times(tmp_path: Path) -> None:
    (tmp_path / "reading.desc").write_bytes(reading_descriptors())
    fields = StructType().add("id", "string").add("at", AT).add("since", "timestamp").add("other", "integer")
    format = read_format("protobuf", fields, str(tmp_path / "reading.desc"), "plant.Reading", "none")
    nothing, timed = decoded(format, [b"", b"*\x04\x08\x80\xc3\x01"])
    assert nothing["value"] == {"id": "", "at": None, "since": None, "other": None}
    assert timed["value"]["since"] == datetime.fromtimestamp(0x6180, UTC)
    with pytest.raises(OptionError, match=r"no message plant\.Nothing"):
        decoder(read_format("protobuf", fields, str(tmp_path / "reading.desc"), "plant.Nothing", "none"))


def test_protobuf_has_lists_of_enums_and_times_and_maps() -> None:
    field = descriptor_pb2.FieldDescriptorProto
    files = descriptor_pb2.FileDescriptorSet.FromString(reading_descriptors())
    file = files.file.add(name="log.proto", package="plant", syntax="proto3")
    file.dependency.extend(["reading.proto", "google/protobuf/timestamp.proto"])
    level = file.enum_type.add(name="Level")
    for number, name in enumerate(("LOW", "HIGH")):
        level.value.add(name=name, number=number)
    log = file.message_type.add(name="Log")
    entries: dict[str, dict[str, Any]] = {
        "CountsEntry": {"type": field.TYPE_INT64},
        "PlacesEntry": {"type_name": ".plant.At"},
    }
    entries["LevelsEntry"] = {"type_name": ".plant.Level", "type": field.TYPE_ENUM}
    for name, of_value in entries.items():
        entry = log.nested_type.add(name=name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
        entry.field.add(name="value", number=2, label=field.LABEL_OPTIONAL, **{"type": field.TYPE_MESSAGE} | of_value)
    repeated: dict[str, Any] = {"label": field.LABEL_REPEATED, "type": field.TYPE_MESSAGE}
    log.field.add(name="all", number=1, **repeated | {"type": field.TYPE_ENUM}, type_name=".plant.Level")
    log.field.add(name="times", number=2, type_name=".google.protobuf.Timestamp", **repeated)
    for number, name in enumerate(entries, 3):
        log.field.add(
            name=name.removesuffix("Entry").lower(), number=number, type_name=f".plant.Log.{name}", **repeated
        )
    pool = descriptor_pool.DescriptorPool()
    for each in files.file:
        pool.Add(each)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Log"))
    message = kind(all=[0, 1, 7])
    message.times.add(seconds=60)
    message.counts["a"] = 5
    message.places["here"].x = 1
    message.levels["l"] = 1
    columns = StructType().add("all", ArrayType(StringType())).add("times", ArrayType(TimestampType()))
    for name, of_map in {"counts": LongType(), "places": AT, "levels": StringType()}.items():
        columns.add(name, MapType(StringType(), of_map))
    proto = BinaryFormat(
        name="protobuf", columns=columns.json(), descriptors=files.SerializeToString(), message="plant.Log"
    )
    (found,) = decoded(proto, [message.SerializeToString()])
    assert found[MALFORMED] is None
    assert found["value"] == {
        "all": ["LOW", "HIGH", "7"],
        "times": [datetime.fromtimestamp(60, UTC)],
        "counts": [("a", 5)],
        "places": [("here", {"x": 1, "y": 0})],
        "levels": [("l", "HIGH")],
    }
    numbers = StructType().add("all", ArrayType(IntegerType()))
    proto = BinaryFormat(
        name="protobuf", columns=numbers.json(), descriptors=files.SerializeToString(), message="plant.Log"
    )
    assert decoded(proto, [message.SerializeToString()])[0]["value"] == {"all": [0, 1, 7]}


BIRTH = sparkplug(
    0,
    {"name": "temperature", "alias": 1, "datatype": 9, "float_value": 21.5, "timestamp": 1_700_000_000_001},
    {"name": "count", "alias": 2, "datatype": 3, "int_value": (1 << 32) - 5},
    {"name": "total", "datatype": 8, "long_value": (1 << 64) - 1},
    {"name": "on", "datatype": 11, "boolean_value": True},
    {"name": "state", "datatype": 12, "string_value": "up"},
    {"name": "gone", "datatype": 9, "is_null": True},
)


def test_sparkplug_metrics_have_their_values() -> None:
    payloads = [BIRTH, sparkplug(1), b"\xff\xff"]
    birth, data, broken = decoded_payloads(pa.array(payloads), pa.array(["spBv1.0/g/NDATA/e"] * 3)).to_pylist()
    metrics = {metric["metric"]: metric for metric in birth["value"]["metrics"]}
    assert (metrics["temperature"]["number"], metrics["temperature"]["alias"]) == (21.5, 1)
    assert (metrics["count"]["integer"], metrics["count"]["datatype"]) == (-5, "Int32")
    assert (metrics["total"]["number"], metrics["total"]["integer"]) == (float(2**64), None)
    assert (metrics["on"]["flag"], metrics["state"]["text"]) == (True, "up")
    assert metrics["gone"]["is_null"] and metrics["gone"]["number"] is None
    assert metrics["temperature"]["metric_timestamp"] == datetime(2023, 11, 14, 22, 13, 20, 1000, tzinfo=UTC)
    assert (data["value"]["seq"], data["value"]["metrics"]) == (1, [])
    assert broken["value"] is None and broken[MALFORMED].startswith("the payload cannot be decoded")


def test_the_state_of_a_sparkplug_host_is_json() -> None:
    payloads = [b'{"online": true, "timestamp": 1700000000000}', b'{"online": false, "timestamp": 1}', b"ONLINE", BIRTH]
    found = decoded_payloads(pa.array(payloads), pa.array(["spBv1.0/STATE/scada"] * 4)).to_pylist()
    shown = [(row["value"]["metrics"][0]["metric"], row["value"]["metrics"][0]["flag"]) for row in found[:2]]
    assert shown == [("online", True), ("online", False)]
    assert found[0]["value"]["sent"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert [row[MALFORMED] is None for row in found] == [True, True, False, False]


@pytest.mark.parametrize(
    "topic", ["spAv1.0/g/NDATA/e", "other", "spBv1.0", "spBv1.0/STATE", "spBv1.0/g/NDATA/e/d", "spBv1.0/g/DDATA/e"]
)
def test_messages_of_topics_that_are_not_sparkplug_b_have_a_reason(topic: str) -> None:
    (found,) = decoded_payloads(pa.array([BIRTH]), pa.array([topic])).to_pylist()
    assert found["value"] is None
    assert found[MALFORMED].startswith("the topic is not one of Sparkplug B")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_binary_payloads_in_spark(spark: SparkSession) -> None:
    topics = ("spBv1.0/plant/NBIRTH/line", "spBv1.0/plant/DDATA/line/press", "other/plant", "spBv1.0/STATE/scada")
    state = b'{"online": true, "timestamp": 1}'
    rows = [(topics[0], BIRTH), (topics[1], sparkplug(1, {"alias": 1, "float_value": 22.0})), (topics[2], b"x")]
    frame = spark.createDataFrame([*rows, (topics[3], state)], "topic string, payload binary")
    metrics = decode_sparkplug(frame).collect()
    (strange,) = (row for row in metrics if row.topic == topics[2])
    assert (strange.message_type, strange["group"], strange.host) == (None, None, None)
    assert strange[MALFORMED].startswith("the topic is not one of Sparkplug B")
    (host,) = (row for row in metrics if row.host)
    assert (host.message_type, host.host, host["group"], host.edge_node) == ("STATE", "scada", None, None)
    assert (host.flag, host[MALFORMED]) == (True, None)
    found = sorted((row for row in metrics if row.alias == 1), key=lambda row: int(row.seq))
    shown = [(row["group"], row.message_type, row.edge_node, row.device, row.metric, row.number) for row in found]
    assert shown == [
        ("plant", "NBIRTH", "line", None, "temperature", 21.5),
        ("plant", "DDATA", "line", "press", None, 22.0),
    ]
    frame = spark.createDataFrame([("a", cbor2.dumps(READING)), ("b", b"\xff")], "topic string, payload binary")
    table = decode_binary(frame, BinaryFormat(name="cbor", columns=FIELDS.json())).orderBy("topic")
    assert table.columns == ["id", "value", "tags", "at", "topic", MALFORMED]
    good, bad = table.collect()
    assert (good.id, good.value, good.tags, good["at"].x, good[MALFORMED]) == ("a", 1.5, ["t", "u"], 1, None)
    assert bad.id is None and bad[MALFORMED]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_dead_letters_of_a_binary_format_have_their_bytes_and_the_reason(spark: SparkSession) -> None:
    decode = DecodeConfig(format="msgpack", schema="id string")
    frame = spark.createDataFrame([("a", b"\x81\xa2id\xa1x"), ("b", b"\xc1")], "topic string, payload binary")
    (letter,) = dead_letters(with_whole(frame, decode), decode, DeadLetterConfig(path="none")).collect()
    assert (letter.topic, bytes(letter.payload)) == ("b", b"\xc1")
    assert letter.reason.startswith("the payload cannot be decoded: ")
