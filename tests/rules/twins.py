"""Messages and queries for both engines: the broker's and Spark's, and what each makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlingmq.config.rules_section import RuleConfig
from starlingmq.config.tree_builder import build
from starlingmq.rules.program import RuleProgram
from starlingmq.rules.sql_values import RowFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "i bigint, n int, b bigint, y tinyint, v double, w double, s string, t string, f boolean, xs array<double>, "
    "names array<string>, place struct<hall: string, row: int, box: struct<x: double>>, items array<struct<k: string, "
    "c: int>>"
)
"""``i`` numbers the payloads that can be decoded."""
TEXTS = (
    *(
        "",
        "a",
        "A b",
        " 12 ",
        "12",
        "-7",
        "+3",
        "1.5",
        "1e3",
        "NaN",
        "inf",
        "-Infinity",
        "true",
        "no",
        "Y",
        "x/y/z",
        "/",
    ),
    *("straße", "ΑΣ", "日本", "😀x", "tab\there", 'q"uo\\te', "line\nend", "\x00\x1f\x7f", "%", "a%b_c", "99999999999"),
    *("9223372036854775808", "0x10", "1d", "  ", "null", '{"a": 1}', '{"a": {"b": [1, 2.50, null, "z"]}}', "[1, 2]"),
    *(
        '{"a": "text", "c": 1e20, "d": 100, "e": true}',
        '{"a": 0.1}',
        '{"a": 12345678901234567890}',
        "{broken",
        "plant/4/t",
        '{"a": 1, "a": 2, "d": {"c": 1, "c": 2}}',
        ' {"a": 3} {"a": 4}',
        '{"a": 5} x',
        '{"a": 6, x',
        '{"a": "b\tc"}',
        "01",
        "1.0",
    ),
)
DOUBLES = (
    *(0.0, -0.0, 1.0, -1.5, 0.1, 2.5, 3.5, 1e-3, 9.99e-4, 1e7, 9999999.0, 12345678.9, 1e300, -1e300, 5e-324, 1e22),
    *(123456789012345.6, 0.5, 1.005, 2.675, 99.995, -2.5, 9.2e18, 9.3e18, 2147483647.0, 2147483648.0, 127.9, 1e16),
)
LONGS = (0, 1, -1, 7, -7, 127, 128, -128, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 10**15)


def payload(source: random.Random, number: int) -> bytes:
    """A payload of SCHEMA; now and then one that is broken or does not fit."""

    def some(values: Sequence[Any]) -> Any:
        return source.choice(values) if source.random() > 0.1 else None

    def double() -> float:
        kind = source.randrange(4)
        if kind == 0:
            return round(source.uniform(-1000, 1000), source.randrange(6))
        if kind == 1:
            return source.uniform(-1, 1) * 10.0 ** source.randrange(-20, 16)  # larger ones: see java_double
        return source.choice(DOUBLES)

    found: dict[str, Any] = {
        "i": number,
        "n": some([each for each in LONGS if -(2**31) <= each < 2**31]),
        "b": some(LONGS),
        "y": some([0, 1, -1, 5, 127, -128]),
        "v": some([double(), source.randrange(-50, 200)]),
        "w": some([double()]),
        "s": some(TEXTS),
        "t": some(TEXTS),
        "f": some([True, False]),
        "xs": some([[], [1.5], [None, 2.0, -3.25], [double(), double()]]),
        "names": some([[], ["a"], ["x", None, "y"], [source.choice(TEXTS)]]),
        "place": some([{}, {"hall": "A", "row": 4}, {"row": None, "box": {"x": 1.5}}, {"hall": source.choice(TEXTS)}]),
        "items": some([[], [{"k": "a", "c": 1}, {"k": None}], [None, {"c": 5}]]),
        "other": [1, {"deep": True}],
    }
    for name in list(found):
        if name != "i" and source.random() < 0.1:
            del found[name]
    strange = source.random()
    if strange < 0.02:
        return source.choice((b"", b"{", b"[]", b"17", b"null", b'"text"', b"\xff\xfe", b'{"i": 1} x', b'{"n": 1e400}'))
    if strange < 0.06:
        name, value = source.choice(
            (("n", "12"), ("n", 1.5), ("n", 2**31), ("y", 200), ("v", "1.5"), ("f", 1), ("xs", 5))
        )
        found[name] = value
    return json.dumps(found, ensure_ascii=source.random() < 0.5).encode()


def payloads(count: int, seed: int) -> list[bytes]:
    source = random.Random(seed)
    return [payload(source, number) for number in range(count)]


def program_of(sql: str | Sequence[str], schema: str = SCHEMA, tables: Sequence[dict[str, str]] = ()) -> RuleProgram:
    steps = [{"sql": sql}] if isinstance(sql, str) else [{"sql": each, "name": f"s{at}"} for at, each in enumerate(sql)]
    tree = {"name": "twin", "source": {"topics": ["#"]}, "decode": {"format": "json", "schema": schema}, "steps": steps}
    return RuleProgram(build(RuleConfig, tree | {"tables": list(tables)}))


def rows_here(
    program: RuleProgram, messages: Sequence[bytes], topic: str = "plant/4/temp"
) -> tuple[list[Any], list[int]]:
    """The rows that the broker's engine makes, and the numbers of the messages that have none because they fail."""
    found: list[Any] = []
    failed: list[int] = []
    for number, each in enumerate(messages):
        try:
            found += program.rows(topic.encode(), each, 1, False, b"", 0)
        except RowFailed as error:
            if "decode.schema" not in str(error):
                failed.append(number)
    return found, failed


def frame(spark: SparkSession, messages: Sequence[bytes], topic: str = "plant/4/temp") -> DataFrame:
    """The decoded rows of these messages in Spark, as a pipeline has them with dead letters."""
    from starlingmq.spark.payloads import MALFORMED, decode_json

    schema = (
        "topic string, payload binary, qos tinyint, retain boolean, properties array<struct<name:string,value:string>>"
    )
    raw = spark.createDataFrame([(topic, bytearray(each), 1, False, []) for each in messages], schema)
    rows = decode_json(raw, SCHEMA)
    return rows.where(rows[MALFORMED].isNull()).drop(MALFORMED)


def plain(value: Any) -> Any:
    """A value of Spark as one of the broker's engine."""
    from pyspark.sql import Row

    if isinstance(value, Row):
        return tuple(plain(each) for each in value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same type; NaN is NaN, and 0.0 is not -0.0."""
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    return type(one) is type(other) and one == other
