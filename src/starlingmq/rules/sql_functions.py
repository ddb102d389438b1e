"""The operators and functions of the broker's engine, each with Spark's types and result.

One handler for each kind of expression: it writes the operands, checks their types, and writes the operation.
``docs/RULES.md`` has the list, which a test compares with this module.
"""

from __future__ import annotations

import sys
from typing import Final

from sqlglot import exp

from starlingmq.rules import sql_values
from starlingmq.rules.sql_compiler import Expressions, Value, handles, no_engine, type_of, wrong
from starlingmq.rules.sql_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DECIMAL,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    VOID,
    SqlType,
    array_of,
    bounds,
    struct_of,
)

ARITHMETIC: Final[dict[type, str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
COMPARISONS: Final[dict[type, str]] = {
    exp.EQ: "==",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
FLOAT_MAX: Final = sys.float_info.max
DIGITS_MAX: Final = 38  # of a decimal of Spark
EXACT: Final = 15  # digits of a decimal that a double holds
MICROS: Final = {"timestamp_seconds": 1_000_000, "timestamp_millis": 1000, "timestamp_micros": 1}
SINCE: Final[dict[type, int]] = {exp.UnixSeconds: 1_000_000, exp.UnixMillis: 1000, exp.UnixMicros: 1}


def of(compiler: Expressions, node: exp.Expr, *types: SqlType) -> Value:
    """The value of an operand that must be of one of these types, or null."""
    value = compiler.value(node)
    if value.type not in types and value.type != VOID:
        raise wrong(f"{node.sql(dialect='spark')} is {value.type}, but must be {' or '.join(map(str, types))}", node)
    return value


def number(compiler: Expressions, node: exp.Expr) -> Value:
    value = compiler.value(node)
    if not value.type.is_number and value.type != VOID:
        raise wrong(f"{node.sql(dialect='spark')} is {value.type}, but must be a number", node)
    return value


def double(compiler: Expressions, node: exp.Expr) -> Value:
    return compiler.typed(number(compiler, node), DOUBLE, node)


def no_decimal(value: Value, node: exp.Expr) -> Value:
    if value.type == DECIMAL:
        raise no_engine("decimal: write 1.5D", node)
    return value


def whole(compiler: Expressions, node: exp.Expr) -> Value:
    value = compiler.value(node)
    if not value.type.is_integer and value.type != VOID:
        raise wrong(f"{node.sql(dialect='spark')} is {value.type}, but must be an integer", node)
    return value


def narrow(compiler: Expressions, node: exp.Expr) -> Value:
    """An integer that an int holds."""
    value = whole(compiler, node)
    if value.type == BIGINT:
        raise no_engine("bigint here: cast it to int", node)
    return value


def only(nodes: list[exp.Expr], count: int, node: exp.Expr) -> list[exp.Expr]:
    if len(nodes) != count:
        raise wrong(f"{node.name.lower() or node.key} needs {count} operands, not {len(nodes)}", node)
    return nodes


def text_constant(compiler: Expressions, node: exp.Expr | None, named: str) -> str:
    value = None if node is None else compiler.value(node)
    if value is None or not isinstance(value.constant, str):
        raise no_engine(f"{named} that is no literal", node)
    return value.constant


# Literals and names


@handles(exp.Literal)
def literal(compiler: Expressions, node: exp.Literal) -> Value:
    text = node.name
    if node.is_string:
        return Value(repr(text), STRING, False, text)
    if text.isdecimal() and len(text) <= DIGITS_MAX:
        found = int(text)
        for type in (INT, BIGINT):
            if found <= bounds(type)[1]:
                return Value(text, type, False, found)
    if float(text) > FLOAT_MAX:
        raise wrong(f"{sql_values.shown(text)} is above what double holds", node)
    if "e" in text.lower():
        return Value(repr(float(text)), DOUBLE, False, float(text))
    return Value(text, DECIMAL, False, float(text))


@handles(exp.Boolean)
def boolean(compiler: Expressions, node: exp.Boolean) -> Value:
    return Value(repr(bool(node.this)), BOOLEAN, False, bool(node.this))


@handles(exp.Null)
def null(compiler: Expressions, node: exp.Null) -> Value:
    return Value("None", VOID)


@handles(exp.Column)
def column(compiler: Expressions, node: exp.Column) -> Value:
    return compiler.column(node)


@handles(exp.Dot)
def dot(compiler: Expressions, node: exp.Dot) -> Value:
    return compiler.field(compiler.value(node.this), node.expression.name, node)


@handles(exp.Paren)
def parentheses(compiler: Expressions, node: exp.Paren) -> Value:
    return compiler.value(node.this)


# Arithmetic


@handles(exp.Add, exp.Sub, exp.Mul)
def arithmetic(compiler: Expressions, node: exp.Binary) -> Value:
    one, other = compiler.together([number(compiler, node.left), number(compiler, node.right)], node)
    return _calculated(compiler, ARITHMETIC[type(node)], one, other, node)


def _calculated(compiler: Expressions, sign: str, one: Value, other: Value, node: exp.Expr) -> Value:
    type = one.type
    if type == DECIMAL:
        raise no_engine("decimal: write 1.5D", node)
    if type == VOID:
        return Value("None", DOUBLE)
    code = f"{one.code} {sign} {other.code}"
    if type.is_integer:
        least, most = bounds(type)
        code = f"values.within({code}, {least}, {most})"
    return compiler.strict([one, other], type, code)


@handles(exp.Div)
def division(compiler: Expressions, node: exp.Div) -> Value:
    given = [number(compiler, node.left), number(compiler, node.right)]
    if any(each.type == DECIMAL for each in given) and not any(each.type == DOUBLE for each in given):
        raise no_engine("decimal: write 1.5D", node)
    one, other = [compiler.typed(each, DOUBLE, node) for each in given]
    safe = other.constant is not None and other.constant != 0
    return compiler.strict(
        [one, other], DOUBLE, f"{one.code} / {other.code}" if safe else f"values.divided({one.code}, {other.code})"
    )


@handles(exp.IntDiv)
def integer_division(compiler: Expressions, node: exp.IntDiv) -> Value:
    one, other = whole(compiler, node.left), whole(compiler, node.right)
    return compiler.strict([one, other], BIGINT, f"values.quotient({one.code}, {other.code})")


@handles(exp.Mod)
def modulo(compiler: Expressions, node: exp.Mod) -> Value:
    one, other = compiler.together([number(compiler, node.left), number(compiler, node.right)], node)
    if one.type == DECIMAL:
        raise no_engine("decimal: write 1.5D", node)
    name = "remainder" if one.type.is_integer else "remainder_of_doubles"
    return compiler.strict([one, other], one.type, f"values.{name}({one.code}, {other.code})")


@handles(exp.Neg)
def negative(compiler: Expressions, node: exp.Neg) -> Value:
    value = number(compiler, node.this)
    if value.type == VOID:
        return Value("None", DOUBLE)
    if value.constant is not None and (isinstance(node.this, exp.Literal) or not value.type.is_integer):
        lowest = INT if -value.constant == bounds(INT)[0] and value.type == BIGINT else value.type
        return Value(f"(-{value.code})", lowest, False, -value.constant)
    if value.type == DOUBLE:
        return compiler.strict([value], DOUBLE, f"-{value.code}")
    least, most = bounds(value.type)
    return compiler.strict([value], value.type, f"values.within(-{value.code}, {least}, {most})")


@handles(exp.Abs)
def absolute(compiler: Expressions, node: exp.Abs) -> Value:
    value = no_decimal(number(compiler, node.this), node)
    if not value.type.is_integer:
        value = compiler.typed(value, DOUBLE, node)
        return compiler.strict([value], DOUBLE, f"abs({value.code})")
    least, most = bounds(value.type)
    return compiler.strict([value], value.type, f"values.within(abs({value.code}), {least}, {most})")


@handles(exp.Floor, exp.Ceil)
def whole_number(compiler: Expressions, node: exp.Expr) -> Value:
    if node.args.get("decimals") is not None:
        raise no_engine("second argument of floor and ceil", node)
    value = no_decimal(number(compiler, node.this), node)
    if value.type.is_integer:
        return Value(value.code, BIGINT, value.nullable)
    value = compiler.typed(value, DOUBLE, node)
    name = "floor_of" if isinstance(node, exp.Floor) else "ceiling_of"
    return compiler.strict([value], BIGINT, f"values.{name}({value.code})")


@handles(exp.Round)
def rounding(compiler: Expressions, node: exp.Round) -> Value:
    value = number(compiler, node.this)
    if value.type != DOUBLE:
        raise no_engine(f"round of {value.type}: cast it to double", node)
    places = node.args.get("decimals")
    decimals = 0 if places is None else compiler.value(places).constant
    if not isinstance(decimals, int):
        raise no_engine("round to a number of decimals that is no literal", node)
    return compiler.strict([value], DOUBLE, f"values.rounded({value.code}, {decimals})")


@handles(exp.Sqrt)
def square_root(compiler: Expressions, node: exp.Sqrt) -> Value:
    value = double(compiler, node.this)
    return compiler.strict([value], DOUBLE, f"values.root({value.code})")


@handles(exp.Sign)
def sign(compiler: Expressions, node: exp.Sign) -> Value:
    value = double(compiler, node.this)
    code = f"{value.code} if {value.code} != {value.code} or {value.code} == 0 else (1.0 if {value.code} > 0 else -1.0)"
    return compiler.strict([value], DOUBLE, f"({code})")


@handles(exp.Greatest, exp.Least)
def extreme(compiler: Expressions, node: exp.Expr) -> Value:
    """The largest or least of those that are not null."""
    nodes = [node.this, *node.expressions]
    if len(nodes) < 2:
        raise wrong(f"{node.key} needs 2 operands or more", node)
    found = [compiler.held(each) for each in compiler.together([compiler.value(each) for each in nodes], node)]
    type = found[0].type
    if type.kind in ("struct", "array", "boolean", "decimal", "void"):
        raise no_engine(f"{node.key} of {type}", node)
    written = compiler.function
    result = written.variable(found[0].code)
    sign = "> 0" if isinstance(node, exp.Greatest) else "< 0"
    for each in found[1:]:
        plain = f"{each.code} {sign[0]} {result}"
        better = f"values.order({each.code}, {result}) {sign}" if type == DOUBLE else plain
        there = f"{each.code} is not None and " if each.nullable else ""
        written.write(f"if {there}({result} is None or {better}): {result} = {each.code}")
    return Value(result, type, all(each.nullable for each in found))


# Comparisons and logic


@handles(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
def comparison(compiler: Expressions, node: exp.Binary) -> Value:
    if isinstance(node.right, tuple(COMPARISONS)):  # Spark compares from the left
        raise wrong("two comparisons in a row: put one of them in parentheses", node)
    one, other = comparable(compiler, [node.left, node.right], node)
    return compiler.strict([one, other], BOOLEAN, compared(one, COMPARISONS[type(node)], other))


def comparable(compiler: Expressions, nodes: list[exp.Expr], node: exp.Expr) -> list[Value]:
    """The operands as one type that can be compared. Against a literal with decimals, integers are compared exactly."""
    found = [compiler.value(each) for each in nodes]
    if any(each.type == DECIMAL for each in found) and all(each.type.is_number for each in found):
        if any(each.type == DOUBLE for each in found):
            return [compiler.typed(each, DOUBLE, node) for each in found]
        for each in found:
            if each.type == DECIMAL and sum(map(str.isdigit, each.code)) > EXACT:
                raise no_engine(f"decimal of more than {EXACT} digits: write 1.5D", node)
        return found
    found = compiler.together(found, node)
    if found[0].type.kind in ("struct", "array"):
        raise no_engine(f"comparison of {found[0].type}", node)
    return found


def compared(one: Value, sign: str, other: Value) -> str:
    if DOUBLE in (one.type, other.type) and one.constant is None and other.constant is None:
        return f"values.order({one.code}, {other.code}) {sign} 0"
    if DOUBLE in (one.type, other.type) and sign in ("<", "<=", ">", ">=", "!="):
        value, swapped = (other, True) if one.constant is not None else (one, False)
        above = sign in ("<", "<=") if swapped else sign in (">", ">=")
        nan = above or sign == "!="  # NaN is above all
        plain = f"{one.code} {sign} {other.code}"
        return f"({plain} or {value.code} != {value.code})" if nan else f"({plain} and {value.code} == {value.code})"
    return f"{one.code} {sign} {other.code}"


@handles(exp.NullSafeEQ)
def same(compiler: Expressions, node: exp.NullSafeEQ) -> Value:
    one, other = comparable(compiler, [node.left, node.right], node)
    nulls = [f"{each.code} is None" for each in (one, other) if each.nullable]
    code = compared(one, "==", other)
    if nulls:
        code = f"{' and '.join(nulls) if len(nulls) == 2 else False} if {' or '.join(nulls)} else {code}"
    return Value(compiler.function.variable(code), BOOLEAN, False)


def condition(compiler: Expressions, node: exp.Expr) -> Value:
    return of(compiler, node, BOOLEAN)


@handles(exp.And, exp.Or)
def conjunction(compiler: Expressions, node: exp.Connector) -> Value:
    """The right side is evaluated only if the left one does not decide."""
    decides = isinstance(node, exp.Or)
    left, written = condition(compiler, node.left), compiler.function
    result = written.variable(left.code)
    with written.block(f"if {result} is not {decides}:"):
        right = condition(compiler, node.right)
        if left.nullable:
            written.write(f"if {result} is not None or {right.code} is {decides}: {result} = {right.code}")
        else:
            written.write(f"{result} = {right.code}")
    return Value(result, BOOLEAN, left.nullable or right.nullable)


@handles(exp.Not)
def negation(compiler: Expressions, node: exp.Not) -> Value:
    value = condition(compiler, node.this)
    return compiler.strict([value], BOOLEAN, f"not {value.code}")


@handles(exp.Is)
def is_(compiler: Expressions, node: exp.Is) -> Value:
    wanted = node.expression
    if isinstance(wanted, exp.Null):
        return missing(compiler, node.this, True)
    if not isinstance(wanted, exp.Boolean):
        raise no_engine(node.sql(dialect="spark"), node)
    value = condition(compiler, node.this)
    return Value(compiler.function.variable(f"{value.code} is {bool(wanted.this)}"), BOOLEAN, False)


@handles("isnull", "isnotnull")
def is_null(compiler: Expressions, node: exp.Anonymous) -> Value:
    return missing(compiler, only(node.expressions, 1, node)[0], node.name.lower() == "isnull")


def missing(compiler: Expressions, node: exp.Expr, wanted: bool) -> Value:
    """Whether the value is null, if that is ``wanted``; else whether it is not."""
    value = compiler.value(node)
    if not value.nullable:
        return Value(repr(not wanted), BOOLEAN, False)
    return Value(compiler.function.variable(f"{value.code} {'is' if wanted else 'is not'} None"), BOOLEAN, False)


@handles(exp.Between)
def between(compiler: Expressions, node: exp.Between) -> Value:
    this = node.this
    both = exp.And(
        this=exp.GTE(this=this.copy(), expression=node.args["low"].copy()),
        expression=exp.LTE(this=this.copy(), expression=node.args["high"].copy()),
    )
    return compiler.value(both)


@handles(exp.In)
def among(compiler: Expressions, node: exp.In) -> Value:
    """True if one equals it, else null if one is null."""
    if node.args.get("query") is not None or node.args.get("unnest") is not None or not node.expressions:
        raise no_engine("IN with a query", node)
    found = comparable(compiler, [node.this, *node.expressions], node)
    value, others = found[0], found[1:]
    nulls = [each.code for each in others if each.nullable]
    equal = " or ".join(
        f"({each.code} is not None and {compared(value, '==', each)})" if each.nullable else compared(value, "==", each)
        for each in others
    )
    code = f"({equal})"
    if nulls:
        code = f"(True if {code} else (None if {' or '.join(f'{each} is None' for each in nulls)} else False))"
    return compiler.strict([value], BOOLEAN, code, bool(nulls))


@handles(exp.Case)
def case(compiler: Expressions, node: exp.Case) -> Value:
    subject = node.args.get("this")
    branches: list[tuple[exp.Expr, exp.Expr]] = []
    for each in node.args["ifs"]:
        test = each.this if subject is None else exp.EQ(this=subject.copy(), expression=each.this.copy())
        branches.append((test, each.args["true"]))
    return chosen(compiler, branches, node.args.get("default"), node)


@handles(exp.If)
def if_(compiler: Expressions, node: exp.If) -> Value:
    if node.args.get("false") is None:
        raise wrong("if needs 3 operands", node)
    return chosen(compiler, [(node.this, node.args["true"])], node.args["false"], node)


def chosen(
    compiler: Expressions,
    branches: list[tuple[exp.Expr, exp.Expr]],
    default: exp.Expr | None,
    node: exp.Expr,
) -> Value:
    """The value of the first branch whose condition holds."""
    results = [result for _, result in branches] + ([default] if default is not None else [])
    type = result_type(compiler, results, node)
    written = compiler.function
    result = written.variable("None")

    def write(rest: list[tuple[exp.Expr, exp.Expr]]) -> bool:
        """Returns whether it may be null."""
        if not rest:
            if default is None:
                return True
            value = compiler.typed(compiler.value(default), type, node)
            written.write(f"{result} = {value.code}")
            return value.nullable
        test = condition(compiler, rest[0][0])
        with written.block(f"if {test.code}:"):
            value = compiler.typed(compiler.value(rest[0][1]), type, node)
            written.write(f"{result} = {value.code}")
        with written.block("else:"):
            written.write("pass")
            nullable = write(rest[1:])
        return value.nullable or nullable

    return Value(result, type, write(branches))


def result_type(compiler: Expressions, nodes: list[exp.Expr], node: exp.Expr) -> SqlType:
    types = [compiler.type_of(each) for each in nodes]
    values = compiler.together([Value("None", each) for each in types], node)
    if values[0].type == DECIMAL:
        raise no_engine("decimal: write 1.5D", node)
    return values[0].type


@handles(exp.Coalesce)
def coalesce(compiler: Expressions, node: exp.Coalesce) -> Value:
    nodes = [node.this, *node.expressions]
    type = result_type(compiler, nodes, node)
    written = compiler.function
    first = compiler.typed(compiler.value(nodes[0]), type, node)
    result, nullable = written.variable(first.code), first.nullable

    def write(rest: list[exp.Expr]) -> bool:
        if not rest:
            return True
        with written.block(f"if {result} is None:"):
            value = compiler.typed(compiler.value(rest[0]), type, node)
            written.write(f"{result} = {value.code}")
            return value.nullable and write(rest[1:])

    return Value(result, type, nullable and write(nodes[1:]))


@handles(exp.Nullif)
def null_if(compiler: Expressions, node: exp.Nullif) -> Value:
    value = compiler.value(node.this)
    one, other = comparable(compiler, [node.this, node.expression], node)
    equal = compared(one, "==", other)
    test = " and ".join([*(f"{each.code} is not None" for each in (one, other) if each.nullable), equal])
    return Value(compiler.function.variable(f"None if {test} else {value.code}"), value.type)


# Casts


@handles(exp.Cast, exp.TryCast)
def cast(compiler: Expressions, node: exp.Cast) -> Value:
    target = type_of(node.args["to"])
    value = compiler.value(node.this)
    if value.type == target:
        return value
    if value.type == VOID:
        return Value("None", target)
    if isinstance(value.constant, float) and target == DOUBLE and value.type == DECIMAL:
        return Value(repr(value.constant), DOUBLE, False, value.constant)
    if isinstance(value.constant, int) and target.is_integer and value.type.is_integer:
        least, most = bounds(target)
        if least <= value.constant <= most:
            return Value(value.code, target, value.nullable, value.constant)
    code = cast_code(compiler, value, target)
    if code is None:
        raise no_engine(f"cast of {value.type} to {target}", node)
    if not node.args.get("safe") or not may_fail(value.type, target):
        return compiler.strict([value], target, code)
    written = compiler.function
    result = written.variable("None")
    with written.block(f"if {value.code} is not None:" if value.nullable else "if True:"):
        written.write(f"try: {result} = {code}")
        written.write("except RowFailed: pass")
    return Value(result, target)


def may_fail(here: SqlType, target: SqlType) -> bool:
    return target.is_integer or here in (STRING, BINARY)


def cast_code(compiler: Expressions, value: Value, target: SqlType) -> str | None:
    here, code = value.type, value.code
    if target.is_integer:
        least, most = bounds(target)
        type = compiler.function.constant(target)
        if here.is_integer:
            narrow = bounds(here)[1] > most
            return f"values.within({code}, {least}, {most})" if narrow else f"{code}"
        return {
            "string": f"values.integer_of_text({code}, {type})",
            "double": f"values.integer_of_double({code}, {type})",
            "boolean": f"int({code})",
        }.get(here.kind)
    if target == DOUBLE:
        if here.is_integer or here == BOOLEAN:
            return f"float({code})"
        return f"values.double_of_text({code})" if here == STRING else None
    if target == BOOLEAN:
        if here.is_integer or here == DOUBLE:
            return f"{code} != 0"
        return f"values.boolean_of_text({code})" if here == STRING else None
    if target == BINARY:
        return f"{code}.encode()" if here == STRING else None
    if target == STRING:
        return {
            "double": f"values.java_double({code})",
            "boolean": f"('true' if {code} else 'false')",
            "binary": f"values.text_of_bytes({code})",
            "timestamp": f"values.time_text({code})",
        }.get(here.kind, f"str({code})" if here.is_integer else None)
    return None


# Texts


@handles(exp.Upper, exp.Lower)
def letters(compiler: Expressions, node: exp.Func) -> Value:
    value = of(compiler, node.this, STRING)
    return compiler.strict([value], STRING, f"{value.code}.{'upper' if isinstance(node, exp.Upper) else 'lower'}()")


@handles(exp.Length)
def length(compiler: Expressions, node: exp.Length) -> Value:
    value = of(compiler, node.this, STRING, BINARY)
    return compiler.strict([value], INT, f"len({value.code})")


@handles(exp.Substring)
def substring(compiler: Expressions, node: exp.Substring) -> Value:
    value, start = of(compiler, node.this, STRING, BINARY), narrow(compiler, node.args["start"])
    size = node.args.get("length")
    count = Value("2147483647", INT, False, 2147483647) if size is None else narrow(compiler, size)
    arguments = [value, start, count]
    return compiler.strict(arguments, value.type, f"values.substring({', '.join(each.code for each in arguments)})")


@handles(exp.Trim)
def trim(compiler: Expressions, node: exp.Trim) -> Value:
    value = of(compiler, node.this, STRING)
    letters = node.args.get("expression")
    what = of(compiler, letters, STRING) if letters is not None else Value("' '", STRING, False)
    name = {"LEADING": "lstrip", "TRAILING": "rstrip"}.get(str(node.args.get("position")), "strip")
    return compiler.strict([value, what], STRING, f"{value.code}.{name}({what.code})")


@handles(exp.Concat, exp.DPipe)
def concat(compiler: Expressions, node: exp.Expr) -> Value:
    if isinstance(node, exp.DPipe) and isinstance(node.right, (exp.Add, exp.Sub)):  # one after the other in Spark
        raise wrong("|| and then + or -: put these in parentheses", node)
    nodes = [node.left, node.right] if isinstance(node, exp.DPipe) else node.expressions
    found = [as_text(compiler, each) for each in nodes]
    return compiler.strict(found, STRING, " + ".join(each.code for each in found))


def as_text(compiler: Expressions, node: exp.Expr) -> Value:
    """An operand of concat: another type is cast to string."""
    value = compiler.value(node)
    if value.type in (STRING, VOID):
        return value
    code = None if value.type in (BINARY, DECIMAL) else cast_code(compiler, value, STRING)
    if code is None:
        raise wrong(f"{node.sql(dialect='spark')} is {value.type}: cast it to string", node)
    return compiler.strict([value], STRING, code)


@handles(exp.ConcatWs)
def concat_ws(compiler: Expressions, node: exp.ConcatWs) -> Value:
    """Nulls are left out."""
    separator, *others = [as_text(compiler, each) for each in node.expressions]
    items = ", ".join(each.code for each in others)
    nullable = any(each.nullable for each in others)
    joined = f"[each for each in ({items},) if each is not None]" if nullable else f"({items},)"
    return compiler.strict([separator], STRING, f"{separator.code}.join({joined if others else '()'})")


@handles(exp.Replace)
def replace(compiler: Expressions, node: exp.Replace) -> Value:
    value, old = of(compiler, node.this, STRING), of(compiler, node.expression, STRING)
    given = node.args.get("replacement")
    new = of(compiler, given, STRING) if given is not None else Value("''", STRING, False)
    return compiler.strict([value, old, new], STRING, f"values.replaced({value.code}, {old.code}, {new.code})")


@handles(exp.RegexpSplit)
def split(compiler: Expressions, node: exp.RegexpSplit) -> Value:
    value = of(compiler, node.this, STRING)
    separator = text_constant(compiler, node.expression, "separator of split")
    plain = separator.replace("\\", "", 1) if separator.startswith("\\") else separator
    if separator != plain and plain[:1].isalnum():  # a class of letters, such as \\d
        raise no_engine(f"split by the regular expression {separator!r}, only by a text", node)
    if not plain or node.args.get("limit") is not None:
        raise no_engine("split with a limit, or by nothing", node)
    if any(each in ".*+?[](){}^$|\\" for each in plain) and (len(plain) > 1 or plain == separator):
        raise no_engine(f"split by the regular expression {separator!r}, only by a text", node)
    return compiler.strict([value], array_of(STRING), f"{value.code}.split({plain!r})")


@handles(exp.SplitPart)
def split_part(compiler: Expressions, node: exp.SplitPart) -> Value:
    value, separator = of(compiler, node.this, STRING), of(compiler, node.args["delimiter"], STRING)
    at = narrow(compiler, node.args["part_index"])
    arguments = [value, separator, at]
    return compiler.strict(arguments, STRING, f"values.split_part({', '.join(each.code for each in arguments)})")


@handles(exp.StartsWith, exp.EndsWith, exp.Contains)
def part_of(compiler: Expressions, node: exp.Expr) -> Value:
    value, part = of(compiler, node.this, STRING), of(compiler, node.expression, STRING)
    if isinstance(node, exp.Contains):
        return compiler.strict([value, part], BOOLEAN, f"{part.code} in {value.code}")
    name = "startswith" if isinstance(node, exp.StartsWith) else "endswith"
    return compiler.strict([value, part], BOOLEAN, f"{value.code}.{name}({part.code})")


@handles(exp.StrPosition)
def position(compiler: Expressions, node: exp.StrPosition) -> Value:
    if node.args.get("position") is not None or node.args.get("occurrence") is not None:
        raise no_engine("locate with a position", node)
    value, part = of(compiler, node.this, STRING), of(compiler, node.args["substr"], STRING)
    return compiler.strict([value, part], INT, f"{value.code}.find({part.code}) + 1")


@handles(exp.Like)
def like(compiler: Expressions, node: exp.Like) -> Value:
    value = of(compiler, node.this, STRING)
    pattern = text_constant(compiler, node.expression, "LIKE pattern")
    try:
        match = compiler.function.constant(sql_values.LikePattern(pattern).matches)
    except ValueError as error:
        raise wrong(str(error), node) from None
    sign = "not " if node.args.get("negate") else ""
    return compiler.strict([value], BOOLEAN, f"{sign}{match}({value.code})")


@handles(exp.ToBase64)
def base64(compiler: Expressions, node: exp.ToBase64) -> Value:
    value = of(compiler, node.this, BINARY)
    return compiler.strict([value], STRING, f"values.base64_text({value.code})")


@handles(exp.Hex, exp.LowerHex)
def hexadecimal(compiler: Expressions, node: exp.Expr) -> Value:
    """sqlglot makes one of ``lower(hex(x))``."""
    value = of(compiler, node.this, BINARY, STRING)
    data = value.code if value.type == BINARY else f"{value.code}.encode()"
    upper = "" if isinstance(node, exp.LowerHex) else ".upper()"
    return compiler.strict([value], STRING, f"{data}.hex(){upper}")


# Arrays, structs, JSON


@handles(exp.Array)
def array(compiler: Expressions, node: exp.Array) -> Value:
    if not node.expressions:
        return Value("[]", array_of(VOID), False)
    found = compiler.together([compiler.value(each) for each in node.expressions], node)
    if found[0].type == DECIMAL:
        raise no_engine("decimal: write 1.5D", node)
    code = f"[{', '.join(each.code for each in found)}]"
    return Value(compiler.function.variable(code), array_of(found[0].type), False)


@handles(exp.Bracket)
def item(compiler: Expressions, node: exp.Bracket) -> Value:
    value = compiler.value(node.this)
    one_based = node.args.get("offset") == 1
    (at,) = [(narrow if one_based else whole)(compiler, each) for each in only(node.expressions, 1, node)]
    if value.type.element is None:
        raise wrong(f"{node.this.sql(dialect='spark')} is {value.type}, but must be an array", node)
    if node.args.get("safe"):
        raise no_engine("try_element_at", node)
    name = "element_at" if one_based else "item"
    return compiler.strict([value, at], value.type.element, f"values.{name}({value.code}, {at.code})", True)


@handles(exp.ArraySize, "cardinality")
def size(compiler: Expressions, node: exp.Expr) -> Value:
    value = compiler.value(only(node.expressions, 1, node)[0] if isinstance(node, exp.Anonymous) else node.this)
    if value.type.element is None:
        raise wrong(f"size needs an array, not {value.type}", node)
    return compiler.strict([value], INT, f"len({value.code})")


@handles(exp.ArrayContains)
def array_contains(compiler: Expressions, node: exp.ArrayContains) -> Value:
    values, wanted = compiler.value(node.this), compiler.value(node.expression)
    element = values.type.element
    if element is None or element.kind in ("struct", "array", "double"):
        raise no_engine(f"array_contains in {values.type}", node)
    both = compiler.together([Value("None", element), wanted], node)
    if both[0].type != element and not (element.is_integer and wanted.type.is_integer):
        raise wrong(f"{values.type} has no {wanted.type}: cast it", node)
    return compiler.strict([values, wanted], BOOLEAN, f"values.contained({values.code}, {wanted.code})", True)


@handles(exp.Struct)
def struct(compiler: Expressions, node: exp.Struct) -> Value:
    fields: list[tuple[str, Value]] = []
    for at, each in enumerate(node.expressions):
        if isinstance(each, exp.Star):
            fields += [(found.name, found.value()) for found in compiler.columns]
        elif isinstance(each, exp.PropertyEQ):
            if each.name == f"col{at + 1}" and isinstance(each.expression, (exp.Paren, exp.Dot)):
                raise wrong(f"the field {each.expression.sql(dialect='spark')} needs a name: AS name", node)
            fields.append((each.name, compiler.value(each.expression)))
        else:
            named = each.output_name
            fields.append((named or f"col{at + 1}", compiler.value(each.unalias())))
    if any(value.type == DECIMAL for _, value in fields):
        raise no_engine("decimal: write 1.5D", node)
    if not all(name for name, _ in fields):
        raise no_engine("named_struct with a name that is no literal", node)
    code = f"({''.join(f'{value.code}, ' for _, value in fields)})"
    type = struct_of(tuple((name, value.type) for name, value in fields))
    return Value(compiler.function.variable(code), type, False)


@handles(exp.JSONFormat)
def to_json(compiler: Expressions, node: exp.JSONFormat) -> Value:
    if node.args.get("options"):
        raise no_engine("options of to_json", node)
    value = compiler.value(node.this)
    if value.type.kind not in ("struct", "array"):
        raise wrong(f"to_json needs a struct or array, not {value.type}", node)
    write = compiler.function.constant(sql_values.json_writer(value.type))
    return compiler.strict([value], STRING, f"{write}({value.code})")


@handles(exp.JSONExtractScalar)
def get_json_object(compiler: Expressions, node: exp.JSONExtractScalar) -> Value:
    value = of(compiler, node.this, STRING)
    path: list[str | int] = []
    for each in node.expression.expressions if isinstance(node.expression, exp.JSONPath) else [None]:
        if isinstance(each, exp.JSONPathRoot):
            continue
        key = each.this if isinstance(each, (exp.JSONPathKey, exp.JSONPathSubscript)) else None
        if not isinstance(key, (str, int)) or (isinstance(key, int) and key < 0):
            raise no_engine("JSON path with more than names and numbers: $.a.b[0]", node)
        path.append(key)
    keys = compiler.function.constant(tuple(path))
    return compiler.strict([value], STRING, f"values.json_value({value.code}, {keys})", True)


# Times


@handles(exp.CurrentTimestamp, "now")
def now(compiler: Expressions, node: exp.Expr) -> Value:
    if node.this and (not isinstance(node, exp.Anonymous) or node.expressions):
        raise wrong("the time now has no operand", node)
    return Value("now", TIMESTAMP, False)


@handles(*MICROS)
def timestamp(compiler: Expressions, node: exp.Anonymous) -> Value:
    (value,) = [whole(compiler, each) for each in only(node.expressions, 1, node)]
    least, most = bounds(BIGINT)
    code = f"values.within({value.code} * {MICROS[node.name.lower()]}, {least}, {most})"
    return compiler.strict([value], TIMESTAMP, code)


@handles(*SINCE)
def since(compiler: Expressions, node: exp.Func) -> Value:
    value = of(compiler, node.this, TIMESTAMP)
    return compiler.strict([value], BIGINT, f"{value.code} // {SINCE[type(node)]}")
