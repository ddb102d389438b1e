"""Payloads that Spark takes in silence and a person would not: they are malformed, with a reason; by real Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import yaml
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, StructType

from starlingmq.pipeline.config import DeadLetterConfig, DecodeConfig, read_pipeline
from starlingmq.pipeline.decoding import dead_letters, decoded, with_whole
from starlingmq.pipeline.run import Pipeline, PipelineError
from starlingmq.spark.binary_payloads import BinaryFormat, decoded_array, decoder
from starlingmq.spark.column_names import same_names
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.payloads import MALFORMED
from starlingmq.spark.value_rules import check_units
from tests.spark.brokers import TOKEN, StreamBroker
from tests.spark.recipes import run_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

AT = 1767225600  # 2026-01-01
NEW_YEAR = datetime(2026, 1, 1)
SECONDS = "not in the years 1970 to 2199; a number counts seconds, unless decode.timestamp_unit says otherwise"


def judged(spark: SparkSession, decode: DecodeConfig, payloads: list[bytes]) -> tuple[list[Row], dict[bytes, str]]:
    """The rows that are decoded, in order, and the others' reasons, by payload."""
    source = spark.createDataFrame([(bytearray(each), "a/b") for each in payloads], "payload binary, topic string")
    rows = with_whole(source.coalesce(1), decode).cache()
    letters = dead_letters(rows, decode, DeadLetterConfig(path="unused")).collect()
    good = [row for row in rows.drop("_whole", "topic").collect() if row[MALFORMED] is None]
    rows.unpersist()
    return good, {bytes(row.payload): row.reason for row in letters}


def check(spark: SparkSession, decode: DecodeConfig, good: list[bytes], bad: dict[bytes, str]) -> list[Row]:
    """The good ones are decoded, and each bad one has a reason that begins so."""
    rows, reasons = judged(spark, decode, [*good, *bad])
    assert reasons.keys() == bad.keys()
    assert {payload: reasons[payload][: len(words)] for payload, words in bad.items()} == bad
    assert len(rows) == len(good)
    return rows


def test_json_values_have_rules_at_any_depth(spark: SparkSession) -> None:
    schema = "at timestamp, n struct<at: timestamp, x: double>, l array<timestamp>, m map<string, double>, d date, "
    schema += "ll array<struct<v: float>>, ntz timestamp_ntz"
    good = [b'{"at": %d, "n": {"at": "2026-01-01", "x": -0.0}, "l": [null, "2199-12-31T23:59:59Z"]}' % AT]
    good += [b'{"at": 0, "d": "1955-01-01"}', b'{"n": null, "l": null, "m": null, "ll": [null]}', b"{}"]
    bad = {
        b'{"at": %d000}' % AT: f"at is +57971-02-25 00:00:00, {SECONDS}",
        b'{"at": %d000000}' % AT: "at is -114069-03-12 21:04:43.044864, not in",
        b'{"at": "0001-01-01T00:00:00Z"}': "at is 0001-01-01 00:00:00, not in the years",
        b'{"at": "2200-01-01T00:00:00Z"}': "at is 2200-01-01 00:00:00, not in the years",
        b'{"ntz": "1969-12-31T23:59:59"}': "ntz is 1969-12-31 23:59:59, not in the years",
        b'{"n": {"at": %d000}}' % AT: "n.at is +57971-02-25 00:00:00, not in",
        b'{"l": ["2026-01-01", %d000]}' % AT: "l is +57971-02-25 00:00:00, not in",
        b'{"n": {"x": 1e999}}': "n.x is Infinity, which is not a finite number",
        b'{"m": {"a": 1, "b": -1e999}}': "m is -Infinity, which is not a finite number",
        b'{"ll": [{"v": 1}, {"v": 1e39}]}': "ll.v is Infinity, which is not a finite number",
        b'{"d": "20260101"}': "d is +57440-04-10, not in the years 1 to 9999",
        b'{"m": {"a": NaN}}': "the payload has NaN or infinity, which JSON does not have",
        b'{"other": -Infinity}': "the payload has NaN or infinity, which JSON does not have",
    }
    rows = check(spark, DecodeConfig(format="json", schema=schema), good, bad)
    assert (rows[0].at, rows[0].n.at, rows[0].l[1].year) == (NEW_YEAR, NEW_YEAR, 2199)
    plain = spark.createDataFrame([(bytearray(payload),) for payload in bad], "payload binary")
    values = decoded(plain, DecodeConfig(format="json", schema=schema)).drop(MALFORMED)
    assert (
        values.where(
            "coalesce(string(at), string(n), string(l), string(m), string(d), string(ntz)) IS NOT NULL"
        ).count()
        == 0
    ), "no watermark follows"


def test_numbers_count_the_unit_of_their_column(spark: SparkSession) -> None:
    schema = "at timestamp, n struct<at: timestamp>, l array<timestamp>, m map<string, timestamp>, other timestamp"
    units: dict[str, Any] = {"at": "ms", "n.at": "s", "l": "us", "m": "ns"}
    good = [b'{"at": %d500.5, "n": {"at": %d.25}, "l": [%d000000, null], "m": {"a": %d123456789}}' % (AT, AT, AT, AT)]
    good += [b'{"at": null, "n": null, "m": {"a": null}, "other": %d}' % AT, b'{"at": 0}']
    bad = {
        b'{"at": %d000000}' % AT: f"at is {AT}000000 ms, not in the years 1970 to 2199, or of another unit",
        b'{"at": %d}' % AT: f"at is {AT} ms, not in the years",
        b'{"l": [%d000]}' % AT: f"l is {AT}000 us, not in the years",
        b'{"n": {"at": %d000}}' % AT: f"n.at is {AT}000 s, not in the years",
        b'{"at": -1}': "at is -1 ms, not in the years",
        b'{"at": "2026-01-01T00:00:00Z"}': "the payload does not fit the schema at timestamp",
        b'{"m": {"a": 1e30}}': "the payload does not fit the schema",
    }
    rows = check(spark, DecodeConfig(format="json", schema=schema, timestamp_unit=units), good, bad)
    assert [rows[0].at, rows[0].n.at, rows[0].l, rows[0].m["a"]] == [
        NEW_YEAR.replace(microsecond=500_500), NEW_YEAR.replace(microsecond=250_000), [NEW_YEAR, None],
        NEW_YEAR.replace(microsecond=123_456),
    ]  # fmt: skip
    assert (rows[1].at, rows[1].n, rows[1].m, rows[1].other) == (None, None, {"a": None}, NEW_YEAR)
    csv = DecodeConfig(format="csv", schema="id string, at timestamp", timestamp_unit={"at": "ms"})
    (row,) = check(spark, csv, [b"a,%d000" % AT], {b"a,%d" % AT: f"at is {AT} ms, not in the years"})
    assert row.at == NEW_YEAR


def test_what_is_one_json_object_follows_the_options(spark: SparkSession) -> None:
    text = '{"v": 1}'
    good = [b'\xef\xbb\xbf{"v": 1}', b'{"v": 1}\n', b"{'v': 1}"]
    good += [rb'{"v": 1, "w": "\ud83d\uDE00 \\ud800"}']
    bad = {
        b"\xef\xbb\xbf": "the payload is empty",
        text.encode("utf-16"): "the payload is UTF-16, not UTF-8",
        text.encode("utf-16-be"): "the payload is UTF-16, not UTF-8",
        b"\xff": "the payload is not UTF-8",
        b'{"v": 1} abc': "the payload goes on after its JSON value",
        b'{"v": 1}{"v": 2}': "the payload goes on after its JSON value",
        b'{"v": 1} // c': "the payload goes on after its JSON value",
        b"null": "the payload is JSON, but not an object",
        b'[{"v": 1}]': "the payload is JSON, but not an object",
        b"{v: 1}": "the payload is not JSON",
        b'{"v": 1': "the payload is not JSON",
        b"\x00": "the payload is not JSON",
        rb'{"v": 1, "w": "\ud83d"}': "the payload has half of a surrogate pair",
        rb'{"v": 1, "w": "\ud83d\ude00\uDE00"}': "the payload has half of a surrogate pair",
    }
    assert {row.v for row in check(spark, DecodeConfig(format="json", schema="v int"), good, bad)} == {1}
    options = {"allowComments": "true", "ALLOWUNQUOTEDFIELDNAMES": "TRUE", "allowSingleQuotes": "false"}
    good = [b"{v: 1}", b'{"v": 1} // c', b'{"v": 1 /* c */}']
    bad = {
        b'{"v": 1}{"v": 2} // c': "the payload goes on after its JSON value",
        b"{'v': 1}": "the payload is not JSON",
        b"{v: 01}": "the payload is not JSON",
        b'// {"v": 1}': "the payload ",
    }
    assert {row.v for row in check(spark, DecodeConfig(format="json", schema="v int", options=options), good, bad)} == {
        1
    }
    many = {"allowNonNumericNumbers": "true", "timestampFormat": "dd.MM.yyyy HH:mm", "dateFormat": "yyyyMMdd"}
    decode = DecodeConfig(format="json", schema="v double, at timestamp, d date", options=many)
    (row,) = check(spark, decode, [b'{"v": -Infinity, "at": "01.02.2026 03:04", "d": "20260101"}'], {
        b'{"at": "2026-01-01"}': "the payload does not fit the schema"
    })  # fmt: skip
    assert (row.v, row.at, row.d) == (-float("inf"), datetime(2026, 2, 1, 3, 4), NEW_YEAR.date())


def test_csv_values_have_the_same_rules(spark: SparkSession) -> None:
    decode = DecodeConfig(format="csv", schema="id string, v double, at timestamp")
    bad = {
        b"a,NaN,": "v is NaN, which is not a finite number",
        b"a,1e999,": "v is Infinity, which is not a finite number",
        b"a,1,2300-01-01": "at is 2300-01-01 00:00:00, not in the years",
    }
    rows = check(spark, decode, [b"\xef\xbb\xbfa,1.5,2026-01-01T00:00:00Z", b"a,,\r\n"], bad)
    assert (rows[0].id, rows[0].v, rows[0].at) == ("a", 1.5, NEW_YEAR)
    wanted = DecodeConfig(format="csv", schema="v double", options={"nanValue": "-"})
    assert str(check(spark, wanted, [b"-"], {})[0].v) == "nan"


def test_keys_like_source_columns_but_for_case_replace_them(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    broker.publish([b'{"Timestamp": "2026-01-01T00:00:00Z", "Topic": "x", "value": 1}', b"no json"])
    for name, decode in {
        "json": {"format": "json", "schema": "Timestamp timestamp, Topic string, value int"},
        "csv": {"format": "csv", "schema": "Timestamp string, Topic string, value string"},
        "cbor": {"format": "cbor", "schema": "Timestamp timestamp, Topic string"},
    }.items():
        file, root = tmp_path / "case.yaml", tmp_path / name
        tree = {
            "name": "letters", "source": {"servers": [broker.address], "stream": "all", "token": TOKEN},
            "decode": decode, "dead_letter": {"path": f"{root}.dead"}, "sink": {"path": str(root)},
            "checkpoint": f"{root}.checkpoint", "trigger": {"available_now": True},
        }  # fmt: skip
        file.write_text(yaml.safe_dump(tree))
        pipeline = Pipeline(spark, read_pipeline(file), file)
        columns = pipeline.result.columns
        assert "Topic" in columns and "timestamp" not in columns and "topic" not in columns, columns
        if name == "json":
            run_all(pipeline)
            (row,) = spark.read.parquet(str(root)).collect()
            assert (row.Timestamp, row.Topic, row.value) == (NEW_YEAR, "x", 1)
            (letter,) = spark.read.parquet(f"{root}.dead").collect()
            assert (letter.topic, bytes(letter.payload)) == ("a/b", b"no json")
    for sql, words in (
        ("SELECT Topic, offset AS topic FROM rows", "columns Topic and topic of the result have one name for Spark"),
        ("SELECT named_struct('a', 1, 'b', array(named_struct('x', 1, 'X', 2))) AS s FROM rows", "s.b.x and s.b.X of"),
    ):
        file.write_text(yaml.safe_dump(tree | {"steps": [{"sql": sql}]}))
        with pytest.raises(PipelineError, match=rf"case\.yaml: sink: .*{words}"):
            Pipeline(spark, read_pipeline(file), file)
    for schema, words in (("v int, V int", "v and V are one name for Spark"), ("_Malformed int", "name is reserved")):
        file.write_text(yaml.safe_dump(tree | {"decode": {"format": "json", "schema": schema}}))
        with pytest.raises(PipelineError, match=rf"case\.yaml: decode\.schema: .*{words}"):
            Pipeline(spark, read_pipeline(file), file)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        file.write_text(yaml.safe_dump(tree | {"decode": {"format": "json", "schema": "Topic int, v int, V int"}}))
        assert {"Topic", "topic", "v", "V"} <= set(Pipeline(spark, read_pipeline(file), file).result.columns)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_names_are_compared_within_each_struct() -> None:
    inner = StructType().add("x", "integer").add("X", "integer")
    fields = StructType().add("x", "integer").add("list", ArrayType(inner))
    assert same_names(fields, str.lower) == ["list.x", "list.X"] and same_names(fields, str) == []


@pytest.mark.parametrize("name", ["cbor", "msgpack"])
def test_numbers_of_binary_formats_have_a_unit_too(name: str) -> None:
    encode: Any = {"cbor": cbor2.dumps, "msgpack": msgspec.msgpack.encode}[name]
    place = StructType().add("at", "timestamp")
    fields = StructType().add("at", "timestamp").add("p", place).add("l", ArrayType(place)).add("d", "date")
    units = {"at": "ms", "p.at": "us"}
    format = BinaryFormat(name=name, columns=fields.json(), units=units)
    values: list[dict[str, Any]] = [
        {"at": AT * 1000 + 0.5, "p": {"at": AT * 10**6}, "l": [None, {"at": datetime(2026, 1, 1, tzinfo=UTC)}]},
        {"at": AT},
        {"at": AT * 10**6},
        {"l": [{"at": AT}]},
        {"l": [{"at": datetime(2300, 1, 1, tzinfo=UTC)}]},
        {"d": 20260101},
        {"at": "2026-01-01"},
        {"at": None, "p": None},
    ]
    payloads = pa.array([encode(value) for value in values])
    found = decoded_array(decoder(format), to_arrow_type(fields, timezone="UTC"), payloads).to_pylist()
    first = found[0]["value"]
    assert (first["at"].timestamp(), first["p"]["at"].timestamp()) == (AT + 0.0005, AT)
    if name == "cbor":  # msgpack's time is a value of its own kind
        assert first["l"][1]["at"].timestamp() == AT
    reasons = [row[MALFORMED] and row[MALFORMED].removeprefix("the payload cannot be decoded: ") for row in found]
    assert reasons[1] == f"at is {AT}, not in the years 1970 to 2199, or of another unit"
    assert reasons[2].startswith(f"at is {AT}000000, not in the years")
    assert reasons[3] == f"l.at is the number {AT}; decode.timestamp_unit gives its unit: s, ms, us, ns"
    assert (
        "not in the years 1970 to 2199" in reasons[4] and reasons[5] == "d is the number 20260101, which is not a date"
    )
    assert reasons[6] is not None and reasons[7] is None


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ({"a": "ms"}, "timestamp_unit.a: the schema has no timestamp a; it has at, p.at"),
        ({"p": "ms"}, "timestamp_unit.p: the schema has no timestamp p"),
        ({"at": "h"}, "timestamp_unit.at: 'h' is not one of s, ms, us, ns"),
    ],
)
def test_units_are_of_timestamp_columns(units: dict[str, str], words: str) -> None:
    fields = StructType().add("at", "timestamp").add("p", StructType().add("at", "timestamp")).add("a", "integer")
    with pytest.raises(OptionError, match=words):
        check_units(fields, units)
