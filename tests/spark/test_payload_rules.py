"""Payloads that Spark takes in silence and a person would not: they are malformed, with a reason; by real Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
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
from starlingmq.pipeline.decoding import dead_letters, with_whole
from starlingmq.pipeline.run import Pipeline, PipelineError
from starlingmq.spark.binary_payloads import BinaryFormat, decoded_array, decoder, of_this_case
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
    """All rows in order, and the reasons of those that cannot be decoded, by payload."""
    source = spark.createDataFrame([(bytearray(each), "a/b") for each in payloads], "payload binary, topic string")
    rows = with_whole(source.coalesce(1), decode)
    letters = dead_letters(rows, decode, DeadLetterConfig(path="unused")).collect()
    return rows.drop("_whole", "topic").collect(), {bytes(row.payload): row.reason for row in letters}


def check(
    spark: SparkSession, decode: DecodeConfig, good: list[bytes], bad: dict[bytes, str], nulls: bool = False
) -> list[Row]:
    """The good ones are decoded, and each bad one has a reason that begins so. ``nulls``: the values of those are."""
    rows, reasons = judged(spark, decode, [*good, *bad])
    assert {payload: reason for payload, reason in reasons.items() if payload not in bad} == {}
    assert reasons.keys() == bad.keys()
    assert {payload: reasons[payload][: len(words)] for payload, words in bad.items()} == bad
    refused = [row.asDict() for row in rows if row[MALFORMED] is not None]
    if nulls:
        assert not [row for row in refused for name, value in row.items() if name != MALFORMED and value is not None]
    assert (len(rows) - len(refused), len(refused)) == (len(good), len(bad))
    return [row for row in rows if row[MALFORMED] is None]


def test_json_values_have_rules_at_any_depth(spark: SparkSession) -> None:
    schema = "at timestamp, n struct<at: timestamp, x: double>, l array<timestamp>, m map<string, double>, d date, "
    schema += "ll array<struct<v: float>>, ntz timestamp_ntz, p decimal(6,2), q decimal(38,2), t tinyint"
    good = [b'{"at": %d, "n": {"at": "2026-01-01", "x": -0.0}, "l": [null, "2199-12-31T23:59:59Z"]}' % AT]
    good += [b'{"at": 0, "d": "1955-01-01"}', b'{"n": null, "l": null, "m": null, "ll": [null]}', b"{}"]
    good += [b'{"at": "2026-1-2 12:00:00 CET", "p": -1.2500, "q": 123456789012345678901234567890.12, "t": -128}']
    good += [b'{"d": "2026-01-01T00:00:00Z", "p": 1.5e1, "ntz": " 2026-01-01 12"}', b'{"p": "1.5", "t": 127}']
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
        b'{"d": "2026-01-01 xyz"}': "d is 2026-01-01 xyz, which is not a whole date and nothing else",
        b'{"d": "2026-01-01T12:00:00Z"}': "d is 2026-01-01T12:00:00Z, which is not",
        b'{"d": "2026"}': "d is 2026, which is not",
        b'{"at": "12:00"}': "at is 12:00, which has no whole date",
        b'{"l": ["2026-01-01", "T1:2"]}': "l is T1:2, which has no whole date",
        b'{"n": {"at": "2026-11"}}': "n.at is 2026-11, which has no whole date",
        b'{"ntz": "2026"}': "ntz is 2026, which has no whole date",
        b'{"p": 1.234}': "p is 1.234, which decimal(6,2) does not hold exactly",
        b'{"p": "1,5"}': "p is 1,5, which decimal(6,2) does not hold",
        b'{"p": 1e-3}': "p is ",
        b'{"q": 123456789012345678901234567890.123}': "q is 123456789012345678901234567890.123, which decimal(38,2)",
        b'{"t": 200}': "t is 200, not in -128 to 127",
        b'{"t": -300}': "t is -300, not in -128 to 127",
        b'{"m": {"a": NaN}}': "the payload has NaN or infinity, which JSON does not have",
        b'{"other": -Infinity}': "the payload has NaN or infinity, which JSON does not have",
    }
    rows = check(spark, DecodeConfig(format="json", schema=schema), good, bad, nulls=True)  # no watermark follows them
    assert (rows[0].at, rows[0].n.at, rows[0].l[1].year) == (NEW_YEAR, NEW_YEAR, 2199)
    assert (rows[4].p, rows[4].q, rows[4].t) == (
        Decimal("-1.25"), Decimal("123456789012345678901234567890.12"), -128,
    )  # fmt: skip
    assert (rows[5].d, rows[5].p, rows[6].p, rows[6].t) == (NEW_YEAR.date(), Decimal(15), Decimal("1.5"), 127)


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
        b'{"at": "2026-01-01T00:00:00Z"}': "at does not fit a number of ms: 2026-01-01T00:00:00Z",
        b'{"m": {"a": 1e30}}': "m does not fit a number of ns: {",
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


def test_what_is_one_json_object(spark: SparkSession) -> None:
    text = '{"v": 1}'
    good = [b'\xef\xbb\xbf{"v": 1}', b'{"v": 1}\n', b'{"v": 1, "x": {"v": 2, "l": [{"v": 3}, {"v": 4}]}}']
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
        b'{"v": 1},0],[2': "the payload goes on after its JSON value",
        b'{"v": 1, "v": 2}': "the payload has this key twice: v",
        b'{"v": 1, "x": [{"y": 1, "\\u0079": 1}]}': "an object has a key twice",
        b"{'v': 1}": "the payload has single quotes around names or text, which JSON does not have",
        b"{v: 1}": "the payload has names without quotes, which JSON does not have; decode.options.allowUnquotedField",
        b'{"v": 01}': "the payload has numbers that begin with 0",
        b'{"v": 1': "the payload is not JSON",
        b"\x00": "the payload is not JSON",
        rb'{"v": 1, "w": "\ud83d"}': "the payload has half of a surrogate pair",
        rb'{"v": 1, "w": "\ud83d\ude00\uDE00"}': "the payload has half of a surrogate pair",
    }
    assert {row.v for row in check(spark, DecodeConfig(format="json", schema="v int"), good, bad)} == {1}


@pytest.mark.long(kept="tests/spark/test_payload_rules.py::test_what_is_one_json_object")
def test_what_is_one_json_object_follows_the_options(spark: SparkSession) -> None:
    options = {"allowComments": "true", "ALLOWUNQUOTEDFIELDNAMES": "TRUE", "allowSingleQuotes": "false"}
    good = [b"{v: 1}", b'{"v": 1} // c', b'{"v": 1 /* c */}']
    bad = {
        b'{"v": 1}{"v": 2} // c': "the payload goes on after its JSON value",
        b"{'v': 1}": "the payload has single quotes",
        b"{v: 01}": "the payload has numbers that begin with 0",
        b"{v: 1, v: 2}": "an object has a key twice",
        b'// {"v": 1}': "the payload ",
    }
    assert {row.v for row in check(spark, DecodeConfig(format="json", schema="v int", options=options), good, bad)} == {
        1
    }
    many = {"allowNonNumericNumbers": "true", "timestampFormat": "dd.MM.yyyy HH:mm", "dateFormat": "yyyyMMdd"}
    decode = DecodeConfig(format="json", schema="v double, at timestamp, d date", options=many)
    (row,) = check(spark, decode, [b'{"v": -Infinity, "at": "01.02.2026 03:04", "d": "20260101"}'], {
        b'{"at": "2026-01-01"}': "at does not fit timestamp: 2026-01-01"
    })  # fmt: skip
    assert (row.v, row.at, row.d) == (-float("inf"), datetime(2026, 2, 1, 3, 4), NEW_YEAR.date())


def test_a_reason_names_the_column_and_is_short(spark: SparkSession) -> None:
    schema = "i int, x double, o boolean, n struct<a: int, l: array<int>>, l array<struct<a: int>>, `a b` date"
    bad = {
        b'{"i": 3000000000}': "i does not fit int: 3000000000",
        b'{"x": "abc"}': "x does not fit double: abc",
        b'{"o": 1}': "o does not fit boolean: 1",
        b'{"n": {"a": "x"}}': "n.a does not fit int: x",
        b'{"n": [1]}': "n does not fit struct: [1]",
        b'{"l": [{"a": 1}, {"a": "x"}]}': "l.a does not fit int: x",
        b'{"a b": "2026-02-30"}': "a b does not fit date: 2026-02-30",
        b'{"i": "%s"}' % (b"x" * 1000): "i does not fit int: " + "x" * 60 + "...",
    }
    check(spark, DecodeConfig(format="json", schema=schema), [b'{"i": 1, "n": {"a": null, "l": [1]}, "l": []}'], bad)
    bad = {b"1,x": "x does not fit double: x", b"1": "the payload has another number of columns than 2"}
    bad[b"1,2,3"] = "the payload has another number of columns than 2"
    check(spark, DecodeConfig(format="csv", schema="i int, x double"), [b"1,2"], bad)


def test_keys_that_differ_by_case_only_are_no_rows_of_nulls(spark: SparkSession) -> None:
    decode = DecodeConfig(format="json", schema="Value double, n struct<at: timestamp>, l array<struct<x: int>>")
    good = [
        b'{"Value": 1, "value": 2}',
        b'{"n": {"VALUE": 3}}',
        b'{"Value": null, "n": {"at": null}, "l": [{}]}',
        b"{}",
    ]
    words = "is written with other capitals in the payload (spark.sql.caseSensitive)"
    bad = {
        b'{"value": 1, "n": {"at": "2026-01-01"}}': f"Value {words}",
        b'{"n": {"At": "2026-01-01"}}': f"n.at {words}",
        b'{"Value": 1, "N": {"at": "2026-01-01"}}': f"n.at {words}",
        b'{"Value": 1, "n": {"AT": 1, "x": "Value"}, "x": {"at": 1}}': f"n.at {words}",
        b'{"l": [{"x": 1}, {"X": 1}]}': f"l.x {words}",
    }
    check(spark, decode, good, bad)


@pytest.mark.long(kept="tests/spark/test_payload_rules.py::test_keys_that_differ_by_case_only_are_no_rows_of_nulls")
def test_keys_that_differ_by_case_are_others_if_spark_says_so(spark: SparkSession) -> None:
    decode = DecodeConfig(format="json", schema="Value double, n struct<at: timestamp>, l array<struct<x: int>>")
    payloads = [b'{"Value": 1, "value": 2}', b'{"value": 1, "n": {"at": "2026-01-01"}}', b'{"l": [{"x": 1}, {"X": 1}]}']
    payloads += [b'{"n": {"At": "2026-01-01"}}', b'{"Value": 1, "N": {"at": "2026-01-01"}}']
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        check(spark, decode, payloads, {})
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_csv_values_have_the_same_rules(spark: SparkSession) -> None:
    decode = DecodeConfig(format="csv", schema="id string, v double, at timestamp, d date, p decimal(6,2)")
    bad = {
        b"a,NaN,,,": "v is NaN, which is not a finite number",
        b"a,1e999,,,": "v is Infinity, which is not a finite number",
        b"a,1,2300-01-01,,": "at is 2300-01-01 00:00:00, not in the years",
        b"a,1,12:00,,": "at is 12:00, which has no whole date",
        b"a,1,,2026-01-01 xyz,": "d is 2026-01-01 xyz, which is not a whole date",
        b"a,1,,,1.234": "p is 1.234, which decimal(6,2) does not hold exactly",
        b'a,1,,,"1,5"': "p is 1,5, which decimal(6,2) does not hold exactly",
        b'"a,b",1,,,1.234': "p is 1.234, which decimal(6,2) does not hold exactly",
        b"a,1,,,\nb,2,,,": "the payload has more than one line",
    }
    good = [b"\xef\xbb\xbfa,1.5,2026-01-01T00:00:00Z,2026-01-01,1.50", b"a,,,,\r\n", b'"a\nb",,,,']
    good.append(b"a,,2026-01-01T00:00:00.123456789Z,,")  # as Go and Java write times; columns have microseconds
    rows = check(spark, decode, good, bad)
    assert (rows[0].id, rows[0].v, rows[0].at, rows[0].p) == ("a", 1.5, NEW_YEAR, Decimal("1.5"))
    assert rows[3].at.microsecond == 123_456


@pytest.mark.long(kept="tests/spark/test_payload_rules.py::test_csv_values_have_the_same_rules")
def test_csv_values_follow_the_options(spark: SparkSession) -> None:
    schema = "id string, v double, at timestamp, d date, p decimal(6,2)"
    options = {"locale": "de-DE", "dateFormat": "yyyyMMdd", "timestampFormat": "HH:mm dd.MM.yyyy"}
    wanted = DecodeConfig(format="csv", schema=schema, options=options)
    (row,) = check(spark, wanted, [b'a,1,00:00 01.01.2026,20260101,"1,50"'], {})
    assert (row.at, row.d, row.p) == (NEW_YEAR, NEW_YEAR.date(), Decimal("1.5"))
    wanted = DecodeConfig(format="csv", schema=schema, options={"sep": ";"})
    check(spark, wanted, [b"a;1;;;1.5"], {b"a,b;1;;;1.234": "p is 1.234, which decimal(6,2) does not hold exactly"})
    wanted = DecodeConfig(format="csv", schema="v double", options={"nanValue": "-"})
    assert str(check(spark, wanted, [b"-"], {})[0].v) == "nan"


@pytest.mark.long(kept="tests/spark/test_payload_rules.py::test_names_are_compared_within_each_struct")
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


def test_keys_of_binary_formats_have_the_case_of_their_columns() -> None:
    place = StructType().add("at", "integer")
    fields = StructType().add("v", "integer").add("p", place).add("l", ArrayType(place))
    read = of_this_case(decoder(BinaryFormat(name="msgpack", columns=fields.json())), fields)
    values: list[dict[str, Any]] = [{"v": 1, "V": 2}, {"x": 1}, {"V": 1}, {"v": 1, "p": {"AT": 1}}, {"l": [{"At": 1}]}]
    payloads = pa.array([msgspec.msgpack.encode(value) for value in values])
    reasons = [row[MALFORMED] for row in decoded_array(read, to_arrow_type(fields), payloads).to_pylist()]
    assert reasons[:2] == [None, None]
    assert [str(reason).split()[5] for reason in reasons[2:]] == ["v", "p.at", "l.at"]


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
