"""Each expression of the broker's engine gives the rows that Spark gives it, over payloads of all kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rules.twins import frame, payloads, plain, program_of, rows_here, same
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

COUNT = 3000
EXPRESSIONS = """
topic
n + 1
n + b
n - y
n * n
y + y
y * y
b * b
b - 1
v + w
v * w
v - n
v * 9 / 5 + 32
n / 2
n / n
v / w
n div 2
b div n
n % 7
b % n
v % 2.5D
v % w
-n
-b
-v
-y
abs(n)
abs(b)
abs(v)
floor(v)
ceil(v)
floor(n)
round(v)
round(v, 2)
round(v, -1)
sqrt(v)
floor(sqrt(v))
round(sqrt(v), 3)
sqrt(v) > 2
2.5D < sqrt(v)
sqrt(v) = sqrt(v)
sqrt(v) <> 3D
sqrt(v) in (1D, w)
greatest(sqrt(v), w)
cast(sqrt(v) as string)
to_json(struct(sqrt(v) as r))
cast(sqrt(v) as int)
cast(sqrt(w) as boolean)
w * 1e300D * 1e300D
cast(w * 1e300D * 1e300D as string)
abs(w * 1e300D * 1e300D - w * 1e300D * 1e300D)
sign(v)
greatest(v, w, 1.5D)
least(n, b, 3)
greatest(s, t)
n = b
n <> y
v < w
v <= 1.5
v > n
n > 1.5
v = 2.5
s < t
s = 'a'
f = true
n <=> b
s <=> t
v <=> w
f and v > 1
f or n > 1
not f
f and f is null
(n > 1) or (v > 1 and w > 2)
s is null
v is not null
f is true
f is not true
f is false
isnull(n)
isnotnull(xs)
n between 0 and 100
v not between 0 and 1
n in (1, 7, 128)
s in ('a', t)
n not in (1, null)
v in (0.1D, 2.5D)
case when v > 100 then 'high' when v > 10 then 'mid' else 'low' end
case n when 1 then 'one' when 7 then 'seven' end
case when n <> 0 then 100 / n else -1 end
if(v > 1, v, w)
if(f, n, b)
coalesce(n, b, 0)
nvl(s, t)
coalesce(s, t, 'none')
nullif(n, 7)
nullif(s, t)
cast(n as bigint)
cast(b as int)
cast(v as int)
cast(v as bigint)
cast(n as double)
cast(b as double)
cast(n as string)
cast(v as string)
cast(w as string)
cast(f as string)
cast(f as int)
cast(n as boolean)
cast(s as int)
cast(s as double)
cast(s as boolean)
cast(s as binary)
cast(cast(s as binary) as string)
cast(n as tinyint)
try_cast(s as int)
try_cast(s as bigint)
try_cast(s as double)
try_cast(s as boolean)
try_cast(v as int)
try_cast(b as smallint)
string(n)
upper(s)
lower(t)
length(s)
substring(s, 2)
substring(s, 1, 3)
substr(s, -3, 2)
substring(s, 0, 2)
trim(s)
ltrim(s)
rtrim(t)
trim(both 'a' from s)
concat(s, '-', t)
s || t
concat(s, n)
concat_ws(',', s, t, 'x')
replace(s, 'a', 'bb')
replace(s, 'a')
split(topic, '/')
split(topic, '/')[1]
split(s, '/')
split_part(topic, '/', 2)
split_part(s, '/', -1)
startswith(s, 'a')
endswith(s, t)
contains(s, 'b')
instr(s, 'b')
s like 'a%'
s like '%\\\\_%'
s not like '_'
base64(cast(s as binary))
hex(cast(s as binary))
hex(s)
xs
xs[0]
element_at(xs, 1)
element_at(names, -1)
size(xs)
cardinality(names)
array_contains(names, 'x')
array_contains(names, s)
array(n, 1, 2)
array(s, t)
place
place.hall
place.box.x
items
items[0].k
struct(n, s as name)
named_struct('a', v, 'b', xs)
to_json(struct(n, b, v, w, s, f))
to_json(struct(xs, names, place, items))
to_json(struct(s, t))
to_json(named_struct('a', n, 'b', struct(v, f)))
to_json(xs)
get_json_object(s, '$.a')
get_json_object(s, '$.a.b')
get_json_object(s, '$.a.b[1]')
get_json_object(s, '$.a.b[3]')
get_json_object(s, '$.c')
get_json_object(s, '$.d')
get_json_object(s, '$')
get_json_object(s, '$[1]')
unix_millis(timestamp_millis(n))
unix_seconds(timestamp_micros(b))
unix_micros(timestamp_seconds(n))
to_json(struct(timestamp_millis(n) as at))
cast(timestamp_millis(n) as string)
1
null
true
'text'
2.5D
1L
""".strip().splitlines()
QUERIES = [
    "select i, topic, v from rows where v > 10 and f",
    "select i, s from rows where s like '%a%' or n is null",
    "select i, x from rows lateral view explode(xs) u as x",
    "select i, x from rows lateral view outer explode(xs) u as x",
    "select i, p, x from rows lateral view posexplode(names) u as p, x where x is not null",
    "select i, e.k, e.c + 1 as c from rows lateral view explode(items) u as e where e.c > 0",
    "select i, x, z from rows lateral view explode(xs) a as x lateral view explode(names) c as z",
    "select * from rows where i % 10 = 0",
    "select rows.i, rows.* from rows where f is true",
]
STEPS = [
    [
        "select i, v * 2 as w, n from rows where v > 0",
        "select i, w + n as x from s0 where w < 1000",
        "select * from s1",
    ],
    ["select i, case when n <> 0 then b / n end as r, s from rows", "select i, r from s0 where s is not null"],
    ["select i, x from rows lateral view explode(xs) u as x", "select i, x * 2 as y from s0 where x > 0"],
]


@pytest.fixture(scope="module")
def messages() -> list[bytes]:
    return payloads(COUNT, 1)


@pytest.fixture(scope="module")
def decoded(spark: SparkSession, messages: list[bytes]) -> Iterator[DataFrame]:
    rows = frame(spark, messages).cache()
    rows.createOrReplaceTempView("rows")
    yield rows
    rows.unpersist()


@pytest.mark.slow
def test_both_engines_decode_the_same_payloads_to_the_same_values(decoded: DataFrame, messages: list[bytes]) -> None:
    here, failed = rows_here(program_of("select * from rows"), messages)
    there = [tuple(plain(each) for each in row) for row in decoded.collect()]
    assert failed == [] and 0 < len(here) < len(messages)
    assert [one for one, other in zip(here, there, strict=True) if not same(one, other)] == []


@pytest.mark.slow
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_has_the_value_that_spark_gives_it(
    spark: SparkSession, decoded: DataFrame, messages: list[bytes], expression: str
) -> None:
    program = program_of(f"select i, {expression} as r from rows")
    here, failed = rows_here(program, messages)
    assert here or failed
    whole = decoded.where(~decoded.i.isin(failed)) if failed else decoded
    found = {row.i: plain(row.r) for row in whole.selectExpr("i", f"{expression} as r").collect()}
    assert len(found) == len(here)
    wrong = [(messages[i], value, found[i]) for i, value in here if not same(value, found[i])]
    assert wrong == []
    for number in failed[:2]:
        with pytest.raises(Exception, match=r"\[[A-Z_.]+\]"):
            decoded.where(decoded.i == number).selectExpr(f"{expression} as r").collect()


@pytest.mark.slow
@pytest.mark.parametrize("steps", [*QUERIES, *STEPS], ids=str)
def test_queries_have_the_rows_that_spark_gives_them(
    spark: SparkSession, decoded: DataFrame, messages: list[bytes], steps: str | list[str]
) -> None:
    compare_rows(spark, messages, steps)


def compare_rows(spark: SparkSession, messages: list[bytes], steps: str | Sequence[str]) -> None:
    here, failed = rows_here(program_of(steps), messages)
    assert here and failed == []
    for at, sql in enumerate([steps] if isinstance(steps, str) else steps):
        there = spark.sql(sql)
        there.createOrReplaceTempView(f"s{at}")
    found = [tuple(plain(each) for each in row) for row in there.collect()]
    assert len(here) == len(found)
    assert [(one, other) for one, other in zip(here, found, strict=True) if not same(one, other)] == []


@pytest.mark.slow
@pytest.mark.long(kept="tests/rules/test_twin.py::test_queries_have_the_rows_that_spark_gives_them")
def test_a_million_messages_have_the_same_rows_in_both_engines(spark: SparkSession) -> None:
    for seed in range(100, 120):
        messages = payloads(50_000, seed)
        rows = frame(spark, messages).cache()
        rows.createOrReplaceTempView("rows")
        for steps in (*QUERIES, *STEPS):
            compare_rows(spark, messages, steps)
        rows.unpersist()


JOINS = [
    "select i, n, d.hall, d.note from rows join d on d.key = s",
    "select i, coalesce(d.hall, 'none') as hall from rows left join d on s = d.key",
    "select i, x.hall, y.key from rows r join d x on x.key = r.s left join d y on y.hall = x.hall and y.key = r.t",
    "select i, d.* from rows left join d on d.key = string(n) where d.hall is null or n > 1",
]
TABLE = 'key,hall,note\na,A,"one, two"\n12,B,\n1,C,x\na,D,again\n,E,no key\nx/y/z,A,\n7,A,\n'


@pytest.mark.slow
@pytest.mark.parametrize("sql", JOINS)
def test_joins_with_a_lookup_table_have_the_rows_that_spark_gives_them(
    spark: SparkSession, decoded: DataFrame, messages: list[bytes], tmp_path: Path, sql: str
) -> None:
    file = tmp_path / "d.csv"
    file.write_text(TABLE)
    here, failed = rows_here(program_of(sql, tables=[{"name": "d", "path": str(file)}]), messages)
    spark.read.option("header", True).csv(str(file)).createOrReplaceTempView("d")
    found = [tuple(plain(each) for each in row) for row in spark.sql(sql).collect()]
    assert failed == [] and len(here) == len(found) > 100
    assert sorted(here, key=str) == sorted(found, key=str)
