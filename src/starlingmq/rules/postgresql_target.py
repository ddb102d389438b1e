"""A table of PostgreSQL or TimescaleDB. A batch is one transaction; with ``key`` a row takes the place of an earlier
one with the same key, so one that is sent again is there once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from starlingmq.config.rules_section import RuleSink
from starlingmq.rules.rule_target import Delivered, RefusedRows, RuleTarget, UnusableTarget
from starlingmq.rules.sql_types import SqlType
from starlingmq.rules.sql_values import json_writer

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(f"its client is not installed ({error}): pip install 'starlingmq[postgresql]'") from None

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS: Final = ("float4", "float8", "numeric")
TEXTS: Final = ("text", "varchar", "bpchar", "name", "json", "jsonb", "uuid", "citext")
FITTING: Final[dict[str, Sequence[str]]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), ("int2", "int4", "int8", *NUMBERS)),
    "double": NUMBERS,
    "string": TEXTS,
    "binary": ("bytea",),
    "boolean": ("bool",),
    "timestamp": ("timestamptz",),
    "struct": ("json", "jsonb", "text"),
}
"""Types of PostgreSQL that take a type of SQL; an array takes one of the same elements."""
FOR_GOOD: Final = ("22", "23")  # classes of errors of the data themselves: values out of range, constraints


class PostgresqlTarget(RuleTarget):
    """``columns``: names and types of the rows."""

    def __init__(
        self,
        sink: RuleSink,
        columns: Sequence[tuple[str, SqlType]],
        delivered: Delivered,
        ended: Callable[[str], None],
    ) -> None:
        super().__init__(sink, delivered, ended)
        self._columns = columns
        self._makers = [_maker(type) for _, type in columns]
        self._connection: Any = None
        self._sql = insert_of(sink, [name for name, _ in columns])

    async def open(self) -> None:
        password = None
        if self.sink.password_file:
            password = (await asyncio.to_thread(Path(self.sink.password_file).read_text)).removesuffix("\n")
        try:
            self._connection = await asyncpg.connect(
                self.sink.url, user=self.sink.user or None, password=password, timeout=self.sink.timeout
            )
            taken = (await self._connection.prepare(self._sql)).get_parameters()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise UnusableTarget(_line(error)) from None
        for (name, type), there in zip(self._columns, taken, strict=True):
            element = type if type.element is None else type.element
            fits = there.name.strip("[]_") in FITTING[element.kind]
            if not fits or (there.kind == "array") != (type.element is not None):
                raise UnusableTarget(f"column {name} is {type}, and the one of the table is {there.name}: cast it")

    async def write(self, rows: list[tuple[Any, ...]]) -> None:
        values = [list(map(_made, self._makers, row)) for row in rows]
        try:
            await self._connection.executemany(self._sql, values, timeout=self.sink.timeout)
        except asyncpg.PostgresError as error:
            if str(error.sqlstate)[:2] in FOR_GOOD:
                raise RefusedRows(_line(error)) from None
            raise UnusableTarget(_line(error)) from None
        except asyncpg.InterfaceError as error:
            raise UnusableTarget(_line(error)) from None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def insert_of(sink: RuleSink, names: Sequence[str]) -> str:
    """The statement for a row."""
    quoted = [_quoted(name) for name in names]
    values = ", ".join(f"${at}" for at in range(1, len(names) + 1))
    table = ".".join(map(_quoted, sink.table.split(".")))
    sql = f"INSERT INTO {table} ({', '.join(quoted)}) VALUES ({values})"  # noqa: S608 - names are quoted
    if not sink.key:
        return sql
    others = [name for name in quoted if name not in map(_quoted, sink.key)]
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
    action = f"UPDATE SET {changes}" if others else "NOTHING"
    return f"{sql} ON CONFLICT ({', '.join(map(_quoted, sink.key))}) DO {action}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _maker(type: SqlType) -> Callable[[Any], Any] | None:
    """The function that makes asyncpg's value of one of the engine; None: it is the same."""
    if type.kind == "struct":
        return json_writer(type)
    if type.kind == "timestamp":
        return lambda micros: EPOCH + timedelta(microseconds=micros)
    each = None if type.element is None else _maker(type.element)
    if each is None:
        return None
    return lambda values: [None if value is None else each(value) for value in values]


def _made(maker: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if value is None or maker is None else maker(value)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
