"""A rule as one function: a message in, rows out."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from starlingmq.config.rules_section import ROWS, RuleConfig, RuleTable
from starlingmq.core.topics.topics import valid_topic
from starlingmq.rules import sql_functions as _operators  # noqa: F401 - fills sql_compiler.HANDLERS
from starlingmq.rules.sql_compiler import (
    Function,
    LookupTable,
    QueryColumn,
    SqlError,
    Value,
    parse,
    run_query,
    schema_of,
)
from starlingmq.rules.sql_types import BINARY, BOOLEAN, STRING, VOID, SqlType, array_of, bounds, struct_of
from starlingmq.rules.sql_values import RowFailed, json_writer
from starlingmq.wire.named_properties import encoded_pairs, named_pairs

PAIR: Final = struct_of((("name", STRING), ("value", STRING)))
MESSAGE_COLUMNS: Final = {
    "topic": STRING,
    "payload": BINARY,
    "qos": SqlType("tinyint"),
    "retain": BOOLEAN,
    "properties": array_of(PAIR),
}
"""Columns of a message. A stream also has client_id, timestamp, node and offset, which a PUBLISH does not tell."""
OTHER_COLUMNS: Final = ("client_id", "timestamp", "node", "offset")
INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
SINK_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "qos": INTEGERS,
    "retain": ("boolean",),
    "properties": ("array",),
    "expiry": INTEGERS,
}
Message = tuple[bytes, bytes, int, bool, bytes]
"""Topic, payload, QoS, retain, encoded properties."""
Row = tuple[Any, ...]


class RuleError(ValueError):
    """A rule that the broker's engine does not run: one line, which begins with the setting at fault."""


class RuleProgram:
    """``columns``: names and types of the result. Raises RuleError."""

    def __init__(self, rule: RuleConfig) -> None:
        function = Function()
        self._decode: Callable[[bytes], Any] | None = None
        columns = [_argument(name, type) for name, type in MESSAGE_COLUMNS.items()]
        if rule.decode.format == "json":
            try:
                fields = schema_of(rule.decode.schema)
                self._decode = decoder_of(rule.decode.schema)
            except (SqlError, TypeError, ValueError) as error:
                raise RuleError(f"decode.schema: {error}") from None
            decoded = [_field(at, name, type, function) for at, (name, type) in enumerate(fields)]
            columns = [*decoded, *(each for each in columns if each.name != "payload")]  # in the order of Spark's
        names = [each.name.lower() for each in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise RuleError(f"decode.schema: {', '.join(twice)} is a column of the message, or there twice; rename it")
        tables = {ROWS: columns}
        lookups = {table.name.lower(): read_table(table, f"tables[{at}]") for at, table in enumerate(rule.tables)}
        last = columns
        for number, step in enumerate(rule.steps):
            try:
                last = run_query(parse(step.sql), tables, lookups, function)
            except RecursionError:
                raise RuleError(f"steps[{number}].sql: it is nested too deeply; take steps") from None
            except SqlError as error:
                place = f", line {error.line}, column {error.column}" if error.line else ""
                raise RuleError(f"steps[{number}].sql{place}: {error}") from None
            tables[step.name.lower()] = last
        self.columns = tuple((each.name, each.type) for each in last)
        result = [each.value() for each in last]
        self._run = function.compiled("topic, payload, qos, retain, pairs, d, now", result)
        self._wants_pairs = any("pairs" in line for line in function.lines)

    def rows(self, topic: bytes, payload: bytes, qos: int, retain: bool, properties: bytes, now: int) -> list[Row]:
        """The rows of a message; ``now`` in microseconds since 1970. Raises RowFailed: it has no result."""
        decoded = None
        if self._decode is not None:
            try:
                decoded = self._decode(payload)
            except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise RowFailed(f"the payload does not fit decode.schema: {error}") from None
        pairs = named_pairs(properties) if self._wants_pairs and properties else []
        return self._run(topic.decode(), payload, qos, retain, pairs, decoded, now)


def decoder_of(schema: str) -> Callable[[bytes], Any]:
    """The decoder of JSON of this schema. Raises SqlError, TypeError, ValueError."""
    return msgspec.json.Decoder(_decoded_type(struct_of(schema_of(schema)))).decode


def read_table(table: RuleTable, path: str) -> LookupTable:
    """The rows of a CSV file, of which the first line has the names. Raises RuleError."""
    try:
        with Path(table.path).open(encoding="utf-8", newline="") as file:
            names, *lines = [*csv.reader(file)] or [[]]
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RuleError(f"{path}.path: {table.path} cannot be read: {reason}") from None
    if not names:
        raise RuleError(f"{path}.path: {table.path} is empty: its first line has the names of its columns")
    for number, line in enumerate(lines, 2):
        if line and len(line) != len(names):
            raise RuleError(
                f"{path}.path: line {number} of {table.path} has {len(line)} values for {len(names)} columns"
            )
    return LookupTable(tuple(names), [tuple(value or None for value in line) for line in lines if line])


def _argument(name: str, type: SqlType) -> QueryColumn:
    code = "pairs" if name == "properties" else name
    return QueryColumn(name, type, lambda: Value(code, type, False))


def _field(at: int, name: str, type: SqlType, function: Function) -> QueryColumn:
    """A decoded column: nested values become tuples where they are used."""

    def value() -> Value:
        code = f"d.f{at}"
        turn = _turned(type)
        if turn is not None:
            variable, call = function.variable(code), function.constant(turn)
            code = f"None if {variable} is None else {call}({variable})"
        return Value(function.variable(code), type)

    return QueryColumn(name, type, lambda: function.once(("field", at), value))


def _turned(type: SqlType) -> Callable[[Any], Any] | None:
    """The function that makes the value of ``sql_types`` of a decoded one; None: it is the same."""
    if type.element is not None:
        each = _turned(type.element)
        if each is None:
            return None
        return lambda values: [None if value is None else each(value) for value in values]
    if type.kind != "struct":
        return None
    turns = [_turned(below) for _, below in type.fields]

    def turn(value: Any) -> tuple[Any, ...]:
        values = msgspec.structs.astuple(value)
        return tuple(
            one if one is None or change is None else change(one) for one, change in zip(values, turns, strict=True)
        )

    return turn


def _decoded_type(type: SqlType) -> Any:
    """The type that msgspec is to decode: a value has the type of its column, or is null."""
    if type.element is not None:
        return list[_decoded_type(type.element) | None]  # type: ignore[misc]
    if type.kind == "struct":
        fields = [(f"f{at}", _decoded_type(below) | None, None) for at, (_, below) in enumerate(type.fields)]
        names = {f"f{at}": name for at, (name, _) in enumerate(type.fields)}
        return msgspec.defstruct("Decoded", fields, rename=names)
    if type.is_integer:
        least, most = bounds(type)
        return int if type.kind == "bigint" else Annotated[int, Meta(ge=least, le=most)]
    plain = {"double": float, "boolean": bool, "string": str}.get(type.kind)
    if plain is None:
        raise ValueError(f"the broker's engine decodes no {type}; Spark does: starlingmq pipeline")
    return plain


class TopicRows:
    """Rows of a program as messages. Raises RuleError for columns that make none."""

    def __init__(self, rule: RuleConfig, program: RuleProgram) -> None:
        options = rule.sink.options
        self._topic = options.get("topic", "")
        self._qos, self._retain = int(options.get("qos", "1")), options.get("retain") == "true"
        self._deletes = options.get("deleteRetained") == "true"
        self._known: dict[str, bytes] = {}
        at = {name: number for number, (name, _) in enumerate(program.columns)}
        for name, type in program.columns:
            if name in OTHER_COLUMNS:
                continue
            wanted = SINK_TYPES.get(name)
            if wanted is None:
                raise RuleError(
                    f"sink: column {name} is unknown to the format topic, which has {', '.join(SINK_TYPES)}; put it "
                    "into the payload (to_json), or leave it out"
                )
            if (type.kind not in wanted and type != VOID) or (name == "properties" and type.element != PAIR):
                needed = " or ".join(wanted) if name != "properties" else "array<struct<name:string,value:string>>"
                raise RuleError(f"sink: column {name} is {type}, but must be {needed}")
        if "payload" not in at:
            raise RuleError("sink: the column payload (binary or string) is missing")
        if "topic" not in at and not self._topic:
            raise RuleError("sink: the column topic is missing; add it, or set sink.options.topic")
        self._at = [at.get(name, -1) for name in SINK_TYPES]

    def message(self, row: Row) -> Message:
        """Raises RowFailed: the row makes none."""
        topic, payload, qos, retain, pairs, expiry = [None if at < 0 else row[at] for at in self._at]
        name = self._named(self._topic if topic is None else topic)
        qos = self._qos if qos is None else qos
        retain = self._retain if retain is None else retain
        if qos not in (0, 1, 2):
            raise RowFailed(f"qos is {qos}, but must be 0, 1 or 2")
        if retain and payload is None and not self._deletes:
            raise RowFailed(
                f"the payload to {name.decode()} is null and the row has retain, which would delete the retained "
                "message; leave such rows out, or set deleteRetained: true"
            )
        properties = b""
        if pairs or expiry is not None:
            try:
                properties = encoded_pairs(pairs or (), expiry)
            except ValueError as error:
                raise RowFailed(str(error)) from None
        return name, payload.encode() if isinstance(payload, str) else payload or b"", qos, retain, properties

    def _named(self, topic: str) -> bytes:
        found = self._known.get(topic)
        if found is None:
            found = topic.encode()
            if not topic:
                raise RowFailed("the topic of a row is null or empty; leave such rows out, or set sink.options.topic")
            if not valid_topic(found) or topic.startswith("$"):
                raise RowFailed(f"{topic!r} is not a topic that a rule may publish to")
            if len(self._known) >= 1000:
                self._known.clear()
            self._known[topic] = found
        return found


class JsonRows:
    """Rows of a program as JSON objects, with their nulls."""

    def __init__(self, program: RuleProgram) -> None:
        self._writers = [
            (msgspec.json.encode(name).decode() + ":", json_writer(type)) for name, type in program.columns
        ]

    def text(self, row: Row) -> str:
        pairs = [
            name + ("null" if value is None else write(value))
            for (name, write), value in zip(self._writers, row, strict=True)
        ]
        return "{" + ",".join(pairs) + "}"
