"""Expressions that are drawn by seed: the broker's engine gives each the value that Spark gives it, or both fail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

from tests.few import few
from tests.rules.twins import frame, payloads, plain, program_of, rows_here, same
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

ROWS: Final = 400
TOGETHER: Final = 30  # expressions of a query
DEPTH: Final = 4


class Drawn:
    """Expressions of each type, by seed."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def one(self, *choices: str) -> str:
        return self.source.choice(choices)

    def of(self, kind: str, depth: int = DEPTH) -> str:
        if depth == 0 or self.source.random() < 0.15:
            return self.leaf(kind)
        return {"int": self.integer, "double": self.double, "string": self.string, "boolean": self.boolean}[kind](
            depth - 1
        )

    def leaf(self, kind: str) -> str:
        return {
            "int": lambda: self.one(
                "n", "b", "cast(y as int)", "0", "1", "-7", "128", "2147483647", "cast(null as int)"
            ),
            "double": lambda: self.one("v", "w", "0D", "1.5D", "-2.5D", "1e3", "cast(null as double)"),
            "string": lambda: self.one("s", "t", "topic", "''", "'a'", "'12'", "'x/y'", "place.hall", "names[0]"),
            "boolean": lambda: self.one("f", "true", "false", "cast(null as boolean)"),
        }[kind]()

    def any(self, kind: str, depth: int) -> str:
        """For each type."""
        one, other = self.of(kind, depth), self.of(kind, depth)
        condition = self.of("boolean", depth)
        return self.one(
            f"if({condition}, {one}, {other})",
            f"coalesce({one}, {other})",
            f"case when {condition} then {one} when {self.of('boolean', depth)} then {other} end",
            f"case when {condition} then {one} else {other} end",
            f"nullif({one}, {other})",
        )

    def integer(self, depth: int) -> str:
        one, other, text = self.of("int", depth), self.of("int", depth), self.of("string", depth)
        return self.one(
            *(f"({one} + {other})", f"({one} - {other})", f"({one} * {other})", f"({one} % {other})"),
            *(f"({one} div {other})", f"(-({one}))", f"abs({one})", f"length({text})", f"instr({text}, 'a')"),
            *(
                f"try_cast({text} as int)",
                f"cast({self.of('boolean', depth)} as int)",
                "size(xs)",
                "cast(xs[0] as int)",
            ),
            *(f"greatest({one}, {other})", f"least({one}, {other}, 5)", f"floor({self.of('double', depth)})"),
            *(f"cast({one} as bigint)", f"try_cast({one} as smallint)", f"cast({self.of('double', depth)} as bigint)"),
            self.any("int", depth),
        )

    def double(self, depth: int) -> str:
        one, other = self.of("double", depth), self.of("double", depth)
        return self.one(
            *(f"({one} + {other})", f"({one} - {other})", f"({one} * {other})", f"({one} / {other})"),
            *(f"({self.of('int', depth)} / {self.of('int', depth)})", f"round({one}, {self.source.randrange(-2, 5)})"),
            *(f"sqrt({one})", f"abs({one})", f"(-({one}))", f"sign({one})", f"({one} % {other})", "xs[0]"),
            *(f"cast({self.of('int', depth)} as double)", f"try_cast({self.of('string', depth)} as double)"),
            *(f"greatest({one}, {other})", f"least({one}, {self.of('int', depth)})", self.any("double", depth)),
        )

    def string(self, depth: int) -> str:
        one, other, number = self.of("string", depth), self.of("string", depth), self.of("int", depth)
        return self.one(
            *(f"concat({one}, {other})", f"({one} || {number})", f"upper({one})", f"lower({one})", f"trim({one})"),
            *(f"substring({one}, {self.source.randrange(-4, 5)}, {self.source.randrange(-1, 5)})", f"ltrim({one})"),
            *(f"replace({one}, 'a', {other})", f"split_part({one}, '/', {self.one('1', '2', '-1')})", f"rtrim({one})"),
            *(f"cast({number} as string)", f"cast({self.of('boolean', depth)} as string)", f"hex({one})"),
            *(
                f"concat_ws('-', {one}, {other})",
                f"to_json(struct({number} as a, {one} as b))",
                f"split({one}, '/')[0]",
            ),
            *(f"get_json_object({one}, '$.a')", f"base64(cast({one} as binary))", self.any("string", depth)),
        )

    def boolean(self, depth: int) -> str:
        kind = self.one("int", "double", "string")
        one, other = self.of(kind, depth), self.of(kind, depth)
        left, right = self.of("boolean", depth), self.of("boolean", depth)
        return self.one(
            *(f"({one} {self.one('=', '<>', '<', '<=', '>', '>=', '<=>')} {other})", f"({left} and {right})"),
            *(f"({left} or {right})", f"(not {left})", f"({one} is null)", f"({one} is not null)", f"({left} is true)"),
            *(f"({one} in ({other}, {self.leaf(kind)}))", f"({one} not in ({other}, {self.leaf(kind)}))"),
            *(f"({one} between {other} and {self.leaf(kind)})", f"({self.of('string', depth)} like '%a_%')"),
            *(f"startswith({self.of('string', depth)}, 'a')", f"contains({self.of('string', depth)}, 'x')"),
            *(
                f"({self.of('int', depth)} < {self.of('double', depth)})",
                f"({left} <=> {right})",
                "array_contains(names, 'x')",
            ),
            self.any("boolean", depth),
        )


@pytest.fixture
def unfolded(spark: SparkSession) -> Iterator[None]:
    """Spark evaluates an expression of literals while it plans, and fails although no row needs it."""
    spark.conf.set("spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer.ConstantFolding")
    yield
    spark.conf.unset("spark.sql.optimizer.excludedRules")


@pytest.mark.slow
@pytest.mark.usefixtures("unfolded")
@pytest.mark.parametrize("rounds", few([2, 30], 2))
def test_drawn_expressions_have_the_value_that_spark_gives_them(spark: SparkSession, rounds: int) -> None:
    from pyspark.errors import ArithmeticException, ArrayIndexOutOfBoundsException

    messages = payloads(ROWS, 7)
    decoded = frame(spark, messages).cache()
    compared = 0
    early: list[str] = []
    for seed in range(rounds):
        drawn = Drawn(seed)
        expressions = [drawn.of(kind) for kind in ("int", "double", "string", "boolean") for _ in range(TOGETHER // 4)]
        whole: dict[str, dict[int, object]] = {}  # by expression: values of all messages
        parts: dict[str, dict[int, object]] = {}  # the same of those with which some messages fail
        for each in expressions:
            rows, failed = rows_here(program_of(f"select i, {each} as r from rows"), messages)
            (parts if failed else whole)[each] = dict(rows)
        for group in [whole, *({each: values} for each, values in parts.items() if values)]:
            numbers = list(next(iter(group.values())))
            chosen = decoded if group is whole else decoded.where(decoded.i.isin(numbers))
            try:
                found = chosen.selectExpr("i", *[f"{each} as r{at}" for at, each in enumerate(group)]).collect()
            except (ArithmeticException, ArrayIndexOutOfBoundsException) as error:
                early.append(str(error))  # Spark has evaluated a part that no row needs
                continue
            for row in found:
                for each, value in zip(group, row[1:], strict=True):
                    assert same(group[each][row.i], plain(value)), (seed, each, messages[row.i], plain(value))
                    compared += 1
    assert compared > 100 * rounds and len(early) <= rounds // 10, early
    decoded.unpersist()
