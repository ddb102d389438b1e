"""The decode part of a pipeline file, by samples of real payloads; Spark reads the published values with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from starlingmq.cli.main import main
from starlingmq.pipeline.config import DecodeConfig
from starlingmq.pipeline.decoding import decoded
from starlingmq.pipeline.inference import Inference, PayloadSample, as_yaml, infer
from starlingmq.spark.payloads import MALFORMED
from tests.spark.brokers import TOKEN, StreamBroker
from tests.spark.sparkplug_payloads import sparkplug
from tests.spark.test_binary_payloads import AVRO, BIRTH, avro

READINGS: list[dict[str, Any]] = [
    {"id": "a", "at": "2026-03-01T12:00:00Z", "value": 21, "place": {"x": 1, "tags": ["t"]}, "big": 2**70, "ok": True},
    {"id": "b", "at": "2026-03-01T12:00:01.5Z", "value": 21.5, "place": {"x": None, "tags": []}, "big": 1, "a b": 1},
    {"id": 7, "at": "2026-03-01T12:00:02+01:00", "value": None, "none": None, "big": 2, "sent_at": 1767225600},
]


def inferred(payloads: list[bytes], topic: str = "a/b") -> Inference:
    return infer([PayloadSample(topic, payload) for payload in payloads])


def test_json_columns_have_types_and_notes_for_what_is_undecided() -> None:
    found = inferred([json.dumps(reading).encode() for reading in READINGS])
    assert found.decode == {
        "format": "json",
        "schema": "id string, at timestamp, value double, place struct<x: bigint, tags: array<string>>, "
        "big decimal(38,0), ok boolean, `a b` bigint, none string, sent_at bigint",
    }
    notes = set(found.notes)
    assert "id: text in 2, integer in 1; string is a guess" in notes
    assert "value: absent or null in 1 of 3" in notes and "place.x: absent or null in 1 of 2" in notes
    assert "none: always null, so its type is unknown; string is a guess" in notes
    assert "sent_at: looks like a time in s; as one: the type timestamp, and timestamp_unit: {sent_at: s}" in notes


def test_times_are_recognized_by_value_in_every_unit() -> None:
    when = 1767225600
    reading = {"x": when + 0.5, "b": [when * 1000], "c": {"d": when * 10**6}, "e": when * 10**9, "id": when * 10}
    notes = inferred([json.dumps(reading).encode()] * 2).notes
    assert [note.partition(";")[0] for note in notes] == [
        f"{path}: looks like a time in {unit}" for path, unit in (("x", "s"), ("b[]", "ms"), ("c.d", "us"), ("e", "ns"))
    ]
    assert notes[1].endswith("timestamp_unit: {b: ms}") and notes[2].endswith("timestamp_unit: {c.d: us}")


def test_names_that_differ_by_case_only_are_one_column() -> None:
    readings: list[dict[str, Any]] = [{"Topic": "a", "v": 1, "n": {"x": 1, "X": 2}}] * 2 + [{"V": 2.5, "Topic": "b"}]
    found = inferred([json.dumps(reading).encode() for reading in readings])
    assert found.decode["schema"] == "Topic string, v bigint, n struct<x: bigint>"
    notes = "\n".join(found.notes)
    assert "V: in 1 of 3, and left out, because Spark does not distinguish it by case from v" in notes
    assert "n.X: in 2 of 2, and left out" in notes and "Topic: replaces the column of the source" in notes


@pytest.mark.parametrize(
    ("payloads", "decode", "note"),
    [
        ([b"a;1;2.5", b"b;2;3"],
         {"format": "csv", "schema": "c1 string, c2 bigint, c3 double", "options": {"sep": ";"}},
         "the columns have no names"),
        ([b"21.5", b"20"], {"format": "csv", "schema": "value double"}, ""),
        ([b'a,"x,y"', b"b,z"], {"format": "csv", "schema": "c1 string, c2 string"}, ""),
        ([b"\xff\xfe", b"\xfe"], {"format": "raw"}, "no format reads at least half"),
        ([b""], {"format": "raw"}, "all payloads are empty"),
        ([], {"format": "raw"}, "the stream has no rows"),
        ([b"[1, 2]", b"[3]"], {"format": "raw"}, "the payloads are JSON, but not objects, such as '[1, 2]'"),
        ([b"hello world"], {"format": "raw"}, "no format"),
        ([b'{"timestamp": 1}'], {"format": "json", "schema": "timestamp bigint"},
         "timestamp: replaces the column of the source of the same name"),
        ([b'\xef\xbb\xbf{"id": 1}', b'{"id": 2}', b'{"id": NaN}', b'{"id": 1e999}'],
         {"format": "json", "schema": "id bigint"}, "2 of 4 payloads are not json"),
        ([b'{"id": 1}', b'{"id": 2, "x": [{"a": 1, "a": 2}]}'],
         {"format": "json", "schema": "id bigint"}, "1 of 2 payloads are not json"),
        ([b'{"id": 1}', b'{"id": 2}', b"x"], {"format": "json", "schema": "id bigint"},
         "1 of 3 payloads are not json, on topics such as a/b"),
        ([b"\x00\x00\x00\x00\x07abc", b"\x00\x00\x00\x00\x08abc"],
         {"format": "avro", "framing": "confluent", "schema_file": "schemas", "schema": "id string"},
         "schema id 7, 8 of a registry"),
    ],
)  # fmt: skip
def test_formats_are_recognized(payloads: list[bytes], decode: dict[str, Any], note: str) -> None:
    found = inferred(payloads)
    assert found.decode == decode
    assert any(note in each for each in found.notes) or not note, found.notes


@pytest.mark.parametrize("name", ["msgpack", "cbor"])
def test_binary_maps_are_recognized(name: str) -> None:
    encoders: dict[str, Callable[[Any], bytes]] = {"msgpack": msgspec.msgpack.encode, "cbor": cbor2.dumps}
    encode = encoders[name]
    values: list[dict[str, Any]] = [{"id": "a", "raw": b"\x00", "n": [1, 2]}, {"id": "2026-03-01T12:00", "n": []}]
    found = inferred([encode(value) for value in values])
    assert found.decode == {"format": name, "schema": "id string, raw binary, n array<bigint>"}
    assert found.fits == found.samples == 2


def test_sparkplug_is_recognized_by_topic_and_payload() -> None:
    births = [BIRTH, sparkplug(1, {"alias": 1, "float_value": 2.0})]
    found = inferred(births, "spBv1.0/plant/NBIRTH/line")
    assert found.decode == {"format": "sparkplug", "state": "aliases"} and any(
        "alias only" in note for note in found.notes
    )
    assert inferred(births, "a/b").decode == {"format": "raw"}


def test_keys_that_are_data_become_a_map() -> None:
    found = inferred([json.dumps({"by_id": {f"device-{n}": n, f"device-{n + 50}": 1}}).encode() for n in range(30)])
    assert found.decode["schema"] == "by_id map<string, bigint>"
    assert any("60 different keys" in note for note in found.notes)


def test_the_output_is_a_part_of_a_pipeline_file() -> None:
    payloads = [json.dumps({f"column {index}: #'\"": index for index in range(60)}).encode()]
    found = inferred(payloads)
    text = as_yaml(found)
    assert yaml.safe_load(text) == {"decode": found.decode}
    assert all(line.startswith("#") for line in text.partition("decode:")[0].splitlines())
    assert max(map(len, text.splitlines())) < 140


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_spark_reads_with_it_what_was_published(spark: SparkSession) -> None:
    samples = {
        "json": [json.dumps(reading).encode() for reading in READINGS],
        "csv": [b"a;1;2.5;2026-03-01T12:00:00Z", b"b;2;;2026-03-01T12:00:01Z"],
        "cbor": [cbor2.dumps({"id": "a", "place": {"x": 1}}), cbor2.dumps({"id": "b", "place": {"x": None}})],
    }
    for format, payloads in samples.items():
        found = inferred(payloads)
        assert found.decode["format"] == format
        frame = spark.createDataFrame([(payload,) for payload in payloads], "payload binary")
        rows = decoded(frame, DecodeConfig(**found.decode))
        assert rows.where(F.col(MALFORMED).isNotNull()).count() == 0
        first = rows.first()
        assert first is not None
        if format == "json":
            assert (first.at.isoformat(), first.value, int(first.big), first.place.tags) == (
                "2026-03-01T12:00:00", 21.0, 2**70, ["t"],
            )  # fmt: skip
        if format == "csv":
            assert (first.c2, first.c3, first.c4.year) == (1, 2.5, 2026)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_command(broker: StreamBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker.publish([b'{"id": "a", "value": %d}' % value for value in range(20)], "json/a")
    broker.publish([b"1,2"] * 20, "csv/a")
    (tmp_path / "token").write_text(TOKEN)
    words = ["pipeline", "infer", "all", "--server", broker.address, "--token-file", str(tmp_path / "token")]
    assert main([*words, "--topics", "json/#"]) in (0, None)
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == "# 20 of 40 rows of stream all; 20 fit"
    assert yaml.safe_load(shown) == {"decode": {"format": "json", "schema": "id string, value bigint"}}
    assert main([*words, "--json", "--rows", "8"]) in (0, None)
    told = json.loads(capsys.readouterr().out)
    assert (told["samples"], told["rows"], told["fits"]) == (8, 40, 4)  # spread over the stream
    words[2] = "other"
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert "there is no stream other" in errors and len(errors.splitlines()) == 1


def test_avro_without_framing_is_not_taken_for_another_format() -> None:
    payloads = [avro({"id": f"device {index}", "value": 1.0, "tags": [], "at": {"x": 1, "y": 2}}) for index in range(9)]
    assert AVRO and inferred(payloads).decode == {"format": "raw"}
