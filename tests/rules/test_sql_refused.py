"""SQL that Spark would answer differently is refused, in one line; and values at the bounds of their types."""

from __future__ import annotations

import json

import pytest

from starlingmq.rules.program import RuleError
from starlingmq.rules.sql_values import RowFailed
from tests.rules.twins import program_of

DEEP = "n"
for number in range(30):
    DEEP = f"case when n > {number} then {DEEP} else {number} end"


def value_of(expression: str, **payload: object) -> object:
    ((value,),) = program_of(f"select {expression} as r from rows").rows(
        b"t", json.dumps(payload).encode(), 1, False, b"", 0
    )
    return value


@pytest.mark.parametrize(
    "expression",
    [
        *("1e400", "v < 1e400D", "v < 1" + "0" * 400, "1" + "0" * 5000),
        *("n / 1.5", "1.5 / 2", "abs(1.5)", "floor(1.5)", "b = 9007199254740993.0", "0.10000000000000000001 > 0.1"),
        *("split(s, '\\\\d')", "split(s, '\\\\s')", "'x' || n + 1", "f = f < f", "'it''s'", "'a' 'b'"),
        *("isnull()", "isnull(n, n)", "cardinality()", "cardinality(xs, xs)", "timestamp_millis()", "xs[1, 2]"),
        *("timestamp_millis(n, n)", "now(1)", "current_timestamp(3)", "if(f, n)", "greatest(n)"),
        *("substring(s, b)", "substring(s, 1, b)", "split_part(s, '/', b)", "element_at(xs, b)"),
        *("struct((n))", "struct(items[0].k)", "named_struct(concat('a', 'b'), v)", "+".join(["n"] * 2000)),
    ],
)
def test_an_expression_is_refused_in_one_line(expression: str) -> None:
    with pytest.raises(RuleError, match=r"^steps\[0\]\.sql[^\n]*$"):
        program_of(f"select {expression} as r from rows")


@pytest.mark.parametrize(
    "sql",
    [
        "select upper('x') from rows",
        "select x from rows lateral view explode(xs, names) t as x",
        "select i from rows " + " ".join(f"lateral view explode(xs) t{at} as x{at}" for at in range(25)),
    ],
)
def test_a_query_is_refused_in_one_line(sql: str) -> None:
    with pytest.raises(RuleError, match=r"^steps\[0\]\.sql[^\n]*$"):
        program_of(sql)


@pytest.mark.parametrize("expression", ["-2147483648 - 1", "-cast(-128 as tinyint)", "abs(-2147483648)"])
def test_a_constant_overflows_as_a_value_does(expression: str) -> None:
    with pytest.raises(RowFailed, match="above or below"):
        value_of(expression)


def test_values_at_the_bounds_of_their_types() -> None:
    most = 2**63 - 1
    assert (value_of("floor(b)", b=most), value_of("ceil(b)", b=most)) == (most, most)
    assert value_of("b in (v, 0.5)", b=2**53 + 1, v=2.0**53) is True
    assert (value_of("-null"), value_of("coalesce(null + null, 1)")) == (None, 1.0)
    assert (value_of("try_cast(s as bigint)", s="1" * 5000), value_of("int(s)", s="0" * 5000 + "7")) == (None, 7)
    assert (value_of("int(s)", s="-2147483648"), value_of("int(s)", s="+0")) == (-(2**31), 0)


def test_conditions_inside_of_each_other_are_compiled_in_time_that_grows_with_their_number() -> None:
    assert value_of(DEEP, n=5) == 29
