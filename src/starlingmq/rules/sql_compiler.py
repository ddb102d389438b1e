"""Queries of a rule's steps, compiled once to one Python function for all of them.

``sqlglot`` reads the SQL, in Spark's dialect. The compiler goes through its tree once, knows the type of each value,
and writes a line of Python for each operation::

    select topic, v * 2 as w from rows where v > 1

    t1 = None if v is None else v > 1.0
    if not t1: return out
    t2 = None if v is None else v * 2.0
    out.append((topic, t2,))

Its law: a query has the rows that Spark (ANSI, UTC) gives it, or the compiler refuses it, with line and column. An
overflow, or a cast that fails, ends a query in Spark; here it raises RowFailed for the message. An expression is
evaluated where its value is needed: a branch of CASE only if it is taken, a column of an earlier step only if a later
one has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from starlingmq.config.section_types import ConfigError
from starlingmq.rules import sql_values
from starlingmq.rules.sql_types import DECIMAL, DOUBLE, INT, PLAIN, STRING, SqlType, array_of, common, struct_of

try:
    import sqlglot
    from sqlglot import TokenType, exp
    from sqlglot.errors import ParseError, TokenError
except ImportError as error:
    raise ConfigError(f"the SQL of rules cannot be read ({error}): pip install 'starlingmq[rules]'") from None

Handler = Callable[["Expressions", Any], "Value"]
HANDLERS: Final[dict[object, Handler]] = {}
"""The function that writes an expression, by the class of its node, or by a name for which sqlglot has no class.
``sql_functions`` fills it."""
SPARK: Final = "the broker's engine has {}; Spark has it: starlingmq pipeline"
NESTED_MAX: Final = 40
LOOPS_MAX: Final = 10
ALIASES: Final = {"text": "string", "varchar": "string", "integer": "int", "long": "bigint", "timestamptz": "timestamp"}
NAMES: Final = {"double": "double", "binary": "binary", "varbinary": "binary", "timestamp": "timestamp"}


class SqlError(ValueError):
    """SQL that the broker's engine does not run. ``line`` and ``column`` from 1, 0 if unknown."""

    def __init__(self, text: str, line: int = 0, column: int = 0) -> None:
        super().__init__(text)
        self.line = line
        self.column = column


class Value(Struct, frozen=True):
    """A value that the function has: the Python of it, without side effects. ``constant``: of a literal."""

    code: str
    type: SqlType
    nullable: bool = True
    constant: Any = None


class QueryColumn(Struct, frozen=True):
    """``value`` writes the lines that it needs, once for each place where it is used."""

    name: str
    type: SqlType
    value: Callable[[], Value]
    table: str = ""


class LookupTable(Struct, frozen=True):
    """Rows of texts, or null, that do not change while the function lives."""

    columns: tuple[str, ...]
    rows: list[tuple[str | None, ...]]

    def index(self, places: Sequence[int]) -> dict[tuple[str | None, ...], list[tuple[str | None, ...]]]:
        """The rows by their values in these columns; null equals nothing."""
        found: dict[tuple[str | None, ...], list[tuple[str | None, ...]]] = {}
        for row in self.rows:
            key = tuple(row[at] for at in places)
            if None not in key:
                found.setdefault(key, []).append(row)
        return found


def no_engine(missing: str, node: exp.Expr | None = None) -> SqlError:
    line, column = place_of(node)
    return SqlError(SPARK.format(f"no {missing}"), line, column)


def wrong(text: str, node: exp.Expr | None = None) -> SqlError:
    return SqlError(text, *place_of(node))


def place_of(node: exp.Expr | None) -> tuple[int, int]:
    """Line and column where the first name in it ends or begins; sqlglot knows the place of names only."""
    for each in () if node is None else node.walk():
        if "line" in each.meta:
            begin = each.meta["col"] - (each.meta.get("end", 0) - each.meta.get("start", 0))
            return int(each.meta["line"]), max(1, int(begin))
    return 0, 0


class Function:
    """The text of the function. ``known``: values by key, valid in the block in which they were written and below."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"values": sql_values, "RowFailed": sql_values.RowFailed}
        self.loops = 0
        self._indent = 1
        self._count = 0
        self._known: list[dict[object, Value]] = [{}]

    def write(self, line: str) -> None:
        self.lines.append("    " * self._indent + line)

    def variable(self, code: str) -> str:
        """A new variable with this value."""
        self._count += 1
        self.write(f"t{self._count} = {code}")
        return f"t{self._count}"

    def constant(self, value: object) -> str:
        """The name of an object that the function uses."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def once(self, key: object, make: Callable[[], Value]) -> Value:
        for block in self._known:
            if key in block:
                return block[key]
        found = self._known[-1][key] = make()
        return found

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        if self._indent > NESTED_MAX:
            raise SqlError(f"more than {NESTED_MAX} conditions inside of each other; take steps")
        self.write(head)
        self._indent += 1
        self._known.append({})
        yield
        self._known.pop()
        self._indent -= 1

    @contextmanager
    def trial(self) -> Iterator[None]:
        """All lines that are written meanwhile are thrown away."""
        lines, known = len(self.lines), self._known
        self._known = [*known, {}]
        yield
        self._known = known
        del self.lines[lines:]

    def loop(self, head: str) -> None:
        """All lines from here to the end are in the loop."""
        if self.loops == LOOPS_MAX:
            raise SqlError(f"more than {LOOPS_MAX} of LATERAL VIEW and JOIN; take several rules")
        self.write(head)
        self._indent += 1
        self.loops += 1
        self._known.append({})
        self.write("turns += 1")
        self.write("if turns > values.TURNS_MAX: raise values.too_many_turns()")

    def leave(self, condition: str) -> None:
        """This row ends if the condition holds."""
        self.write(f"if {condition}: {'continue' if self.loops else 'return out'}")

    def compiled(self, parameters: str, result: Sequence[Value]) -> Callable[..., list[tuple[Any, ...]]]:
        texts = [each.code for each in result if each.type.kind in ("string", "binary")]
        if self.loops and texts:
            self.write(f"size += {' + '.join(f'len({each} or ())' for each in texts)}")
            self.write("if size > values.BYTES_MAX: raise values.too_large()")
        self.write(f"out.append(({''.join(f'{each.code}, ' for each in result)}))")
        text = "\n".join(
            [f"def run({parameters}):", "    out = []", "    turns = size = 0", *self.lines, "    return out", ""]
        )
        names = dict(self.names)
        exec(compile(text, "<rule>", "exec"), names)  # noqa: S102 - of names and constants that the compiler made
        run: Callable[..., list[tuple[Any, ...]]] = names["run"]
        return run


def parse(sql: str) -> exp.Select:
    """Raises SqlError."""
    try:
        tokens = sqlglot.tokenize(sql, read="spark")
        for token, following in pairwise(tokens):
            if token.token_type == following.token_type == TokenType.STRING:
                raise SqlError(
                    "two texts in a row: write || between them, or \\' in one", following.line, following.col
                )
        found = sqlglot.parse(sql, read="spark")
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        reason = str(first.get("description", "this is not SQL"))
        raise SqlError(
            f"{'an operand is missing' if reason.startswith('Required keyword') else reason}: "
            f"{first.get('highlight', '')}".rstrip(": "),
            int(first.get("line") or 0),
            int(first.get("col") or 0),
        ) from None
    except (TokenError, RecursionError) as error:
        raise SqlError(str(error).splitlines()[0] if str(error) else "too many parentheses") from None
    if len(found) != 1 or found[0] is None:
        raise SqlError("expected one query")
    query = found[0]
    if not isinstance(query, exp.Select):
        raise no_engine(f"{query.key.upper()}, only SELECT", query)
    return query


CLAUSES: Final = {"group": "GROUP BY", "order": "ORDER BY", "with_": "WITH", "distinct": "DISTINCT"}


def run_query(
    query: exp.Select, tables: dict[str, list[QueryColumn]], lookups: dict[str, LookupTable], function: Function
) -> list[QueryColumn]:
    """Write a query over a table, and return its columns. Raises SqlError."""
    for name, clause in query.args.items():
        if clause and name not in ("expressions", "from_", "joins", "laterals", "where"):
            raise no_engine(
                CLAUSES.get(name, name.strip("_").upper()), clause if isinstance(clause, exp.Expr) else query
            )
    source = query.args.get("from_")
    table = None if source is None else source.this
    if not isinstance(table, exp.Table) or any(
        table.args[name] for name in table.args if name not in ("this", "alias")
    ):
        raise no_engine("query without one table in FROM", query)
    name = table.name.lower()
    if name not in tables or table.db:
        raise wrong(f"there is no table {table.sql()}; there is {', '.join(tables)}", table)
    alias = (table.alias or table.name).lower()
    columns = [QueryColumn(each.name, each.type, each.value, alias) for each in tables[name]]
    compiler = Expressions(columns, function)
    for join in query.args.get("joins") or ():
        compiler.columns += compiler.joined(join, lookups)
    for lateral in query.args.get("laterals") or ():
        compiler.columns += compiler.exploded(lateral)
    where = query.args.get("where")
    if where is not None:
        condition = compiler.value(where.this)
        if condition.type.kind not in ("boolean", "void"):
            raise wrong(f"WHERE needs a boolean, not {condition.type}", where)
        function.leave(f"not {condition.code}")
    found: list[QueryColumn] = []
    for node in query.expressions:
        found += compiler.projected(node)
    if not found:
        raise wrong("SELECT has no columns", query)
    return found


class Expressions:
    """Expressions over some columns."""

    def __init__(self, columns: list[QueryColumn], function: Function) -> None:
        self.columns = columns
        self.function = function
        self._types: dict[int, tuple[exp.Expr, SqlType]] = {}

    # Columns

    def projected(self, node: exp.Expr) -> list[QueryColumn]:
        if isinstance(node, exp.Star):
            if any(node.args.values()):
                raise no_engine("EXCEPT after *", node)
            return [QueryColumn(each.name, each.type, each.value) for each in self.columns]
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            table = node.table.lower()
            found = [QueryColumn(each.name, each.type, each.value) for each in self.columns if each.table == table]
            if not found:
                raise wrong(f"there is no table {node.table}", node)
            return found
        name = node.alias_or_name
        inner = node.unalias()
        if isinstance(inner, (exp.Explode, exp.Posexplode)):
            raise no_engine("explode() in SELECT: write LATERAL VIEW explode(...) t AS x", node)
        if not name or not (isinstance(node, exp.Alias) or isinstance(node.unnest(), (exp.Column, exp.Literal))):
            raise wrong(f"the column {inner.sql(dialect='spark')} needs a name: AS name", node)
        type, key = self.type_of(inner), (id(self), id(node))
        if type == DECIMAL:
            raise no_engine("decimal: write 1.5D", node)
        return [QueryColumn(name, type, lambda: self.function.once(key, lambda: self.value(inner)))]

    def joined(self, join: exp.Join, lookups: dict[str, LookupTable]) -> list[QueryColumn]:
        """The columns of a lookup table, in a loop over the rows that have the key."""
        table, side, on = join.this, join.side, join.args.get("on")
        if not isinstance(table, exp.Table) or table.name.lower() not in lookups or table.db:
            raise no_engine(f"JOIN with {table.sql(dialect='spark')}, only with one of tables", join)
        if side not in ("", "LEFT") or join.kind not in ("", "INNER", "OUTER") or on is None:
            raise no_engine("JOIN that is no JOIN or LEFT JOIN with ON", join)
        lookup, alias = lookups[table.name.lower()], (table.alias or table.name).lower()
        keys: list[Value] = []
        places: list[int] = []
        for equal in on.flatten() if isinstance(on, exp.And) else [on]:
            at, value = self._key(equal.unnest(), lookup, alias)
            places.append(at)
            keys.append(value)
        index = self.function.constant(lookup.index(places))
        none = self.function.constant([(None,) * len(lookup.columns)] if side == "LEFT" else [])
        row = self.function.variable("None")
        self.function.loop(f"for {row} in {index}.get(({''.join(f'{key.code}, ' for key in keys)}), {none}):")
        return [
            QueryColumn(name, STRING, lambda at=at: Value(self.function.variable(f"{row}[{at}]"), STRING), alias)  # type: ignore[misc]
            for at, name in enumerate(lookup.columns)
        ]

    def _key(self, equal: exp.Expr, lookup: LookupTable, alias: str) -> tuple[int, Value]:
        """Of ``column of the table = expression``: the place of the column, and the value."""
        if isinstance(equal, exp.EQ):
            names = [name.lower() for name in lookup.columns]
            for mine, other in ((equal.left, equal.right), (equal.right, equal.left)):
                if isinstance(mine, exp.Column) and mine.table.lower() == alias and mine.name.lower() in names:
                    value = self.value(other)
                    if value.type.kind not in ("string", "void"):
                        raise wrong(f"{other.sql(dialect='spark')} is {value.type}: cast it to string", equal)
                    return names.index(mine.name.lower()), value
        raise no_engine(f"JOIN whose ON is more than {alias}.COLUMN = a value, and the like with AND", equal)

    def exploded(self, lateral: exp.Lateral) -> list[QueryColumn]:
        call, alias = lateral.this, lateral.args.get("alias")
        if not isinstance(call, (exp.Explode, exp.Posexplode)) or not lateral.args.get("view"):
            raise no_engine(f"{call.sql(dialect='spark')} in LATERAL VIEW, only explode and posexplode", lateral)
        if call.args.get("expressions"):
            raise wrong(f"{call.key} needs 1 operand", lateral)
        values = self.value(call.this)
        if values.type.element is None:
            raise wrong(f"{call.key} needs an array, not {values.type}", lateral)
        names = [each.name for each in (alias.columns if alias is not None else [])]
        table = alias.name.lower() if alias is not None else ""
        numbered = isinstance(call, exp.Posexplode)
        names = names or (["pos", "col"] if numbered else ["col"])
        if len(names) != 1 + numbered:
            raise wrong(f"{call.key} gives {1 + numbered} columns, and {len(names)} names are given", lateral)
        outer = bool(lateral.args.get("outer"))
        element = values.type.element
        at, each = self.function.variable("None"), self.function.variable("None")
        array = f"({values.code} or (None,))" if outer else f"({values.code} or ())"
        self.function.loop(f"for {at}, {each} in enumerate({array}):" if numbered else f"for {each} in {array}:")
        if outer and numbered:
            self.function.write(f"if not {values.code}: {at} = None")
        found = [QueryColumn(names[-1], element, lambda: Value(each, element), table)]
        if numbered:
            found.insert(0, QueryColumn(names[0], INT, lambda: Value(at, INT, outer), table))
        return found

    def column(self, node: exp.Column) -> Value:
        parts = [part.name for part in node.parts]
        names = [part.lower() for part in parts]
        found = [each for each in self.columns if [each.table, each.name.lower()] == names[:2]]
        rest = parts[2:]
        if not found:
            found = [each for each in self.columns if each.name.lower() == names[0]]
            rest = parts[1:]
        if not found:
            known = ", ".join(each.name for each in self.columns)
            raise wrong(f"there is no column {'.'.join(parts)}; there is {known}", node)
        if len(found) > 1:
            raise wrong(f"there are {len(found)} columns {parts[0]}; write TABLE.{parts[0]}", node)
        value = found[0].value()
        for name in rest:
            value = self.field(value, name, node)
        return value

    def field(self, value: Value, name: str, node: exp.Expr) -> Value:
        places = [at for at, (each, _) in enumerate(value.type.fields) if each.lower() == name.lower()]
        if len(places) != 1:
            names = ", ".join(each for each, _ in value.type.fields) or "none"
            raise wrong(f"{value.type} has no field {name}, only {names}", node)
        type = value.type.fields[places[0]][1]
        code = f"{value.code}[{places[0]}]"
        return Value(
            self.function.variable(f"None if {value.code} is None else {code}" if value.nullable else code), type
        )

    # Expressions

    def value(self, node: exp.Expr) -> Value:
        """Write an expression, and return its value. Raises SqlError."""
        handler = HANDLERS.get(node.name.lower() if isinstance(node, exp.Anonymous) else type(node))
        if handler is not None:
            return handler(self, node)
        if isinstance(node, exp.Func):
            raise no_engine(
                f"function {(node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()}", node
            )
        raise no_engine(node.sql(dialect="spark"), node)

    def type_of(self, node: exp.Expr) -> SqlType:
        """The type of an expression that is written later, where its value is needed."""
        known = self._types.get(id(node))
        if known is None:  # with the node, so that no other one gets its number
            with self.function.trial():
                known = self._types[id(node)] = (node, self.value(node).type)
        return known[1]

    def held(self, value: Value) -> Value:
        """The value in a variable: Python warns of a literal that is compared with None."""
        return value if value.constant is None else Value(self.function.variable(value.code), value.type, False)

    def strict(self, arguments: Sequence[Value], type: SqlType, code: str, nullable: bool = False) -> Value:
        """A value that is null if one of these is."""
        nulls = list(dict.fromkeys(each.code for each in arguments if each.nullable))
        if "None" in nulls:
            return Value("None", type)
        if nulls:
            code = f"None if {' or '.join(f'{each} is None' for each in nulls)} else {code}"
        return Value(self.function.variable(code), type, nullable or bool(nulls))

    def typed(self, value: Value, type: SqlType, node: exp.Expr) -> Value:
        """The value as this type, which ``common`` says it can become without a cast."""
        if value.type == type or value.type.kind == "void" or (value.type.is_integer and type.is_integer):
            return Value(value.code, type, value.nullable, value.constant)
        if type.kind == "double" and value.type.is_number:
            if value.constant is not None:
                return Value(repr(float(value.constant)), DOUBLE, False, float(value.constant))
            return self.strict([value], DOUBLE, f"float({value.code})")
        raise wrong(f"{value.type} is no {type}: cast it", node)

    def together(self, values: Sequence[Value], node: exp.Expr) -> list[Value]:
        """The values as one type."""
        type = values[0].type
        for each in values[1:]:
            wider = common(type, each.type)
            if wider is None:
                if "decimal" in (type.kind, each.type.kind) and type.is_number and each.type.is_number:
                    raise no_engine("decimal: write 1.5D, or cast the other side to double", node)
                raise wrong(f"{type} and {each.type} do not go together: cast one of them", node)
            type = wider
        return [self.typed(each, type, node) for each in values]


def type_of(node: exp.DataType) -> SqlType:
    """The type that SQL names. Raises SqlError."""
    name = node.this.value.lower()
    name = ALIASES.get(name, name)
    if name == "array" and node.expressions:
        return array_of(type_of(node.expressions[0]))
    if name == "struct":
        return struct_of(tuple((each.name, type_of(each.args["kind"])) for each in node.expressions))
    name = NAMES.get(name, name)
    if name not in PLAIN or name in ("void", "decimal"):
        raise no_engine(f"type {node.sql(dialect='spark').lower()}", node)
    return SqlType(name)


def schema_of(text: str) -> tuple[tuple[str, SqlType], ...]:
    """The columns of ``decode.schema``. Raises SqlError."""
    try:
        cast = sqlglot.parse_one(f"cast(x as struct<{text}>)", read="spark")
    except (ParseError, TokenError) as error:
        raise SqlError(f"{text!r} is no list of columns and types, such as id string, v double") from error
    kind = cast.args.get("to")
    if not isinstance(kind, exp.DataType):
        raise SqlError(f"{text!r} is no list of columns and types, such as id string, v double")
    return type_of(kind).fields


def handles(*kinds: object) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[kind] = handler
        return handler

    return register
