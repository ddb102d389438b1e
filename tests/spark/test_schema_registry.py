"""Payloads framed for a schema registry: its schemas by HTTP and from files, and what happens while it fails."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import yaml
from google.protobuf import descriptor_pb2
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.restarts import transient
from starlingmq.pipeline.run import Pipeline, error_line
from starlingmq.spark import schema_registry
from starlingmq.spark.binary_payloads import decoded_array, decoder, read_format
from starlingmq.spark.framed_payloads import message_path
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.payloads import MALFORMED
from starlingmq.spark.schema_registry import (
    ATTEMPTS,
    UNKNOWN_SECONDS,
    RegistryError,
    RegistryOptions,
    RegistryUnreachable,
    SchemaError,
    SchemaRegistry,
)
from starlingmq.spark.secret_reference import SecretReference
from tests.spark.brokers import TOKEN, StreamBroker
from tests.spark.schema_server import SchemaServer
from tests.spark.test_binary_payloads import AVRO, FIELDS, READING, avro, reading_descriptors

PROTO_READING = b"\n\x01a\x11\x00\x00\x00\x00\x00\x00\xf8?\x1a\x01t\x1a\x01u\x22\x04\x08\x01\x10\x02"


def framed(id: int, body: bytes) -> bytes:
    return b"\x00" + id.to_bytes(4) + body


def avro_answer(schema: Any, **more: Any) -> dict[str, Any]:
    return {"schema": json.dumps(schema), **more}


def proto_answer() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorSet.FromString(reading_descriptors()).file[1]
    return {"schema": base64.b64encode(file.SerializeToString()).decode(), "schemaType": "PROTOBUF"}


def read(
    format: str, payloads: list[bytes], options: RegistryOptions | None, where: str = "", message: str = ""
) -> Any:
    wanted = read_format(format, FIELDS, where, message, "confluent", options)
    found = decoded_array(decoder(wanted), to_arrow_type(FIELDS, timezone="UTC"), pa.array(payloads)).to_pylist()
    return [row["value"] or row[MALFORMED].removeprefix("the payload cannot be decoded: ") for row in found]


def test_avro_by_the_schemas_of_a_registry() -> None:
    apart: list[Any] = json.loads(json.dumps(AVRO["fields"]))
    at, apart[3]["type"] = apart[3]["type"], "At"
    answers = {
        "/schemas/ids/7": avro_answer(AVRO),
        "/schemas/ids/8": avro_answer(
            {**AVRO, "fields": apart}, references=[{"name": "At", "subject": "plant/at", "version": 3}]
        ),
        "/subjects/plant%2Fat/versions/3": avro_answer(at),
        "/schemas/ids/9": proto_answer(),
        "/schemas/ids/10": {"schema": "{}"},
    }
    body = avro(READING)
    payloads = [framed(7, body), framed(8, body), framed(9, body), framed(10, body), framed(11, body), body, b""]
    with SchemaServer(answers) as server:
        for _ in range(2):  # the second time nothing is asked for
            found = read("avro", [*payloads, framed(7, body + b"x")], RegistryOptions(url=server.url))
            assert found[:2] == [READING, READING]
            assert found[2] == "schema 9 is of PROTOBUF, not of AVRO" and found[3].startswith("schema 10: not an Avro")
            assert found[4:] == [
                "schema 11 is unknown", "it has no schema id", "it has no schema id", "bytes follow the value",
            ]  # fmt: skip
        assert set(server.asked.values()) == {1} and len(server.asked) == 6


def test_protobuf_by_the_schemas_of_a_registry() -> None:
    body = b"\x02\x02" + PROTO_READING  # one index: 1, as a zigzag number
    payloads = [framed(7, body), framed(7, b"\x00\x08\x01"), framed(7, b"\x02\x08\x01"), framed(7, b"\xff" * 9)]
    with SchemaServer({"/schemas/ids/7": proto_answer()}) as server:
        options = RegistryOptions(url=server.url)
        found = read("protobuf", payloads, options)
        assert found[0] == READING and found[1]["id"] is None  # the first message has other fields
        assert found[2:] == ["its message index names no message", "its message index is not valid"]
        assert read("protobuf", payloads, options, message="plant.Reading")[1] == "it is a message plant.At"
        assert server.asked == {"/schemas/ids/7": 1}


def test_schemas_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "at.proto").write_text('syntax = "proto3"; package plant; message At { int32 x = 1; int32 y = 2; }')
    (tmp_path / "8.proto").write_text(
        'syntax = "proto3"; package plant; import "at.proto"; import "google/protobuf/timestamp.proto";'
        "message Reading { string id = 1; double value = 2; repeated string tags = 3; At at = 4;"
        " google.protobuf.Timestamp since = 5; }"
    )
    found = read("avro", [framed(7, avro(READING)), framed(8, avro(READING))], None, str(tmp_path))
    assert found == [READING, "schema 8 is unknown"]
    assert read("protobuf", [framed(8, b"\x00" + PROTO_READING)], None, str(tmp_path)) == [READING]
    (tmp_path / "9.proto").write_text("message {")
    with pytest.raises(OptionError, match=r"9\.proto"):
        read("protobuf", [], None, str(tmp_path))
    with pytest.raises(OptionError, match=r"none has no files named ID\.avsc"):
        read("avro", [], None, str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("body", "path", "length"),
    [(b"\x00rest", (0,), 1), (b"\x02\x04", (2,), 2), (b"\x04\x00\x02x", (0, 1), 3), (b"\x02\x80\x02", (128,), 3)],
)
def test_the_path_of_a_message(body: bytes, path: tuple[int, ...], length: int) -> None:
    assert message_path(body) == (path, length)


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x01", b"\x7e", b"\x80" * 9])
def test_a_path_that_is_not_valid(body: bytes) -> None:
    with pytest.raises(ValueError, match="message index is not valid"):
        message_path(body)


def test_a_registry_that_is_down_is_no_fault_of_the_payload() -> None:
    waited: list[float] = []
    with SchemaServer({"/schemas/ids/7": avro_answer(AVRO)}) as server:
        registry = SchemaRegistry(RegistryOptions(url=server.url), pause=waited.append)
        for status in (500, 503, 429):
            server.status = status
            with pytest.raises(RegistryUnreachable, match=f"answers {status}"):
                registry.find(7)
        assert server.asked["/schemas/ids/7"] == 3 * ATTEMPTS and len(waited) == 3 * (ATTEMPTS - 1)
        for status in (302, 400, 401, 403):
            server.status = status
            with pytest.raises(RegistryError, match=f"answers {status}; check") as caught:
                registry.find(7)
            assert not isinstance(caught.value, RegistryUnreachable)
        server.status = 200
        assert registry.find(7).kind == "AVRO"
        server.body = b"<html>"
        server.answers["/schemas/ids/8"] = avro_answer(AVRO)
        with pytest.raises(RegistryError, match="is not a schema registry"):
            registry.find(8)
        server.body = b" " * (schema_registry.ANSWER_BYTES_MAX + 1)
        with pytest.raises(RegistryError, match="more than"):
            registry.find(8)
        assert server.asked["/schemas/ids/8"] == 2
        url = server.url
    gone = SchemaRegistry(RegistryOptions(url=url), pause=waited.append)
    with pytest.raises(RegistryUnreachable, match="the schema registry does not answer: ") as unreachable:
        gone.find(7)
    assert transient(str(unreachable.value)) == "the schema registry does not answer"


def test_a_registry_that_says_nothing_costs_its_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RegistryUnreachable, match="timed out"):
            SchemaRegistry(RegistryOptions(url=url, timeout=0.05), pause=lambda seconds: None).find(7)


def test_what_is_unknown_is_asked_for_again_later_and_all_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "SCHEMAS_MAX", 2)
    monkeypatch.setattr(schema_registry, "UNKNOWN_MAX", 2)
    now = [0.0]
    with SchemaServer({f"/schemas/ids/{id}": avro_answer(AVRO) for id in (1, 2, 3)}) as server:
        registry = SchemaRegistry(RegistryOptions(url=server.url), now=lambda: now[0])
        for id in (1, 2, 1, 3, 1, 2):  # 2 was used least when 3 came
            registry.find(id)
        assert [server.asked[f"/schemas/ids/{id}"] for id in (1, 2, 3)] == [1, 2, 1]
        for id in (7, 7, 8, 9, 9, 7):
            with pytest.raises(SchemaError, match=f"schema {id} is unknown"):
                registry.find(id)
        assert [server.asked[f"/schemas/ids/{id}"] for id in (7, 8, 9)] == [2, 1, 1]
        server.answers["/schemas/ids/9"] = avro_answer(AVRO)
        with pytest.raises(SchemaError):
            registry.find(9)
        now[0] = UNKNOWN_SECONDS + 1
        assert registry.find(9).kind == "AVRO"


def test_a_login_is_read_where_it_is_used_and_goes_to_the_registry_only(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    with SchemaServer({"/schemas/ids/7": avro_answer(AVRO)}, "reader:secret") as server:
        password = SecretReference("decode.registry.password", str(tmp_path / "password"))
        options = RegistryOptions(url=server.url, user="reader", password=password)
        assert "secret" not in repr(options)
        assert SchemaRegistry(options).find(7).kind == "AVRO"
        with pytest.raises(RegistryError, match="answers 401; check decode"):
            SchemaRegistry(RegistryOptions(url=server.url, user="reader", password="other")).find(7)
        lost = SecretReference("decode.registry.password", str(tmp_path / "none"))
        with pytest.raises(RegistryError, match=r"decode.registry.passwordFile: .*none cannot be read"):
            SchemaRegistry(RegistryOptions(url=server.url, user="reader", password=lost)).find(7)


def tree(tmp_path: Path, decode: dict[str, Any], address: str = "127.0.0.1:1") -> Path:
    file = tmp_path / "registry.yaml"
    pipeline = {
        "name": "readings",
        "source": {"servers": [address], "stream": "all", "token": TOKEN, "node_timeout": 5},
        "decode": {"schema": "id string, value double", **decode},
        "dead_letter": {"path": str(tmp_path / "dead")},
        "sink": {"path": str(tmp_path / "out")},
        "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": {"available_now": True},
    }
    file.write_text(yaml.safe_dump(pipeline))
    return file


URL = {"url": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ({"format": "cbor", "framing": "confluent"}, "decode.framing: confluent is for avro and protobuf"),
        ({"format": "json", "registry": URL}, "decode.registry: has no meaning for json"),
        ({"format": "avro", "schema_file": "a", "registry": URL}, "decode.registry: needs framing: confluent"),
        ({"format": "avro", "framing": "confluent"}, "decode.schema_file: required for avro, unless there is a regist"),
        ({"format": "avro", "framing": "confluent", "schema_file": "a", "registry": URL}, "decode.schema_file: requ"),
        ({"format": "protobuf", "schema_file": "a"}, "decode.message: required for protobuf without framing"),
        ({"format": "avro", "schema_file": "a", "message": "m"}, "decode.message: only for protobuf"),
        ({"format": "avro", "framing": "confluent", "registry": {"url": "registry"}}, "decode.registry.url: expected"),
        ({"format": "avro", "framing": "confluent", "registry": {"url": "http://u:p@r"}}, "would be shown; use user"),
        ({"format": "avro", "framing": "confluent", "registry": {**URL, "user": "u"}}, "each needs the other one"),
        (
            {"format": "avro", "framing": "confluent", "registry": {**URL, "password_file": "a", "password_env": "b"}},
            "password_file is set as well",
        ),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, decode: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_pipeline(tree(tmp_path, decode))


@pytest.mark.long(kept="tests/spark/test_schema_registry.py::test_a_registry_that_is_down_is_no_fault_of_the_payload")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_pipeline_waits_for_its_registry_and_loses_nothing(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    broker.publish([framed(7, avro(READING)), framed(8, avro(READING)), framed(7, avro(READING))])
    with SchemaServer({"/schemas/ids/7": avro_answer(AVRO)}) as server:
        server.status = 503
        decode = {"format": "avro", "framing": "confluent", "registry": {"url": server.url}}
        file = tree(tmp_path, decode, broker.address)
        pipeline = Pipeline(spark, read_pipeline(file), file)
        for query in pipeline.start():
            with pytest.raises(Exception, match="the schema registry does not answer"):
                query.awaitTermination()
            error = query.exception()
            assert error is not None and transient(str(error)) == "the schema registry does not answer"
            assert error_line(error) == (
                f"the schema registry {server.url} answers 503: the schema registry does not answer"
            )
        server.status = 200
        for query in pipeline.start():
            query.awaitTermination()
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        assert [(row.id, row.value) for row in rows] == [("a", 1.5)] * 2
        (letter,) = spark.read.parquet(str(tmp_path / "dead")).collect()
        assert letter.reason == "the payload cannot be decoded: schema 8 is unknown"
        assert bytes(letter.payload) == framed(8, avro(READING))
