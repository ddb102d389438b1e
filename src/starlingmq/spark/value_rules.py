"""Which values of a decoded column are taken. Spark's JSON and CSV also take others, which a person would not:

    timestamp       a whole date and a time of 1970 to 2199; Spark reads 12:00 as a time of today. JSON: a whole number
                    counts seconds, so milliseconds would be the year 57971
    ... with unit   a number that counts s, ms, us or ns since 1970, and does not look like another unit
    date            a whole date and no time, of the years 1 to 9999: Spark leaves out text that follows a date
    decimal         a number that the type holds exactly: Spark rounds 1.234, and reads "1,5" as 15
    tinyint         -128 to 127: Spark reads 200 as -56
    float, double   finite: Spark reads 1e999 as infinity

The rules are expressions of Spark, so that no row passes through Python. Some need the text of a value, from which
Spark has made another value. Binary formats are decoded in Python, where ``epoch_reader`` has the rules for times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, Final, cast

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from starlingmq.spark.option_error import OptionError

UNITS: Final = {"s": Decimal(1_000_000), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}  # microseconds
NUMBER: Final = DecimalType(38, 9)  # of a column with a unit
SECONDS_END: Final = 7_258_118_400  # 2200
MICROS_1971: Final = 365 * 86_400 * 1_000_000
COARSE: Final = 1_000_000_000  # a number from here that is a time of 1970 counts a longer unit, seconds at most
MICROS_END: Final = SECONDS_END * 1_000_000
INFINITY: Final = float("inf")
TIMES: Final = (TimestampType, TimestampNTZType)
RANGE: Final = "not in the years 1970 to 2199"
OTHER_UNIT: Final = f"{RANGE}, or of another unit"
DATE: Final = r"^\s*[+-]?\d{4,}-\d\d?-\d\d?"
MIDNIGHT: Final = r"(?:[T ]00:00(?::00(?:\.0+)?)?Z?)?\s*$"
SHOWN_CHARACTERS_MAX: Final = 60
OWN_FORM: Final = {  # options by which Spark reads texts of a type in a form of their own
    TimestampType: "timestampformat",
    TimestampNTZType: "timestampntzformat",
    DateType: "dateformat",
    DecimalType: "locale",
}
Outside = tuple[Callable[[Column], Column], Callable[[Column], Column]]
"""Whether a value is below, and whether it is above, what is taken."""
Judge = Callable[[Column, Column | None, DataType, str], Column | None]
"""Returns why a value with this text, type and path is not taken; null if it is taken, None if there is no rule."""
Words = Callable[[DataType, str, Column], Column]
"""Returns a reason about the value with this type, path and text."""


class ValueRules:
    """``units``: by path of a timestamp column: ``sent_at``, ``place.at``; elements of an array have the path of the
    array. ``options``: names of those that are set, in small letters. ``finite``: whether NaN and infinity are refused.
    ``read``: the columns as they are decoded, before ``columns`` makes times of numbers. ``texts``: the type of the
    texts that rules need; None: they need none.
    """

    def __init__(self, fields: StructType, units: Mapping[str, str], options: Collection[str], finite: bool) -> None:
        """Raises OptionError: a unit is unknown, or of a column that is no timestamp."""
        check_units(fields, units)
        self._fields = fields
        self._units = units
        self._options = options
        self._finite = finite
        self.read = StructType([self._read_field(field, field.name) for field in fields.fields])
        self.texts = as_texts(fields, self._needs_text)

    def problem(self, decoded: Column, texts: Column) -> Column | None:
        """Return the first value of this row of ``read`` that is not taken, and why; null if there is none. None: there
        are no rules.
        """
        return self._first(self._judged, decoded, texts, self._fields, self.texts, "")

    def refused(self, decoded: Column, texts: Column) -> Column | None:
        """Return true in place of the words of ``problem``: Java does not compile the long methods that words make."""
        return self._first(self._refused, decoded, texts, self._fields, self.texts, "")

    def unread(self, decoded: Column, texts: Column, words: Words) -> Column:
        """Return the first value that has a text, but is null in this row of ``read``, in words; null if there is none.
        ``texts``: of the type ``as_texts(fields)``.
        """

        def judge(value: Column, text: Column | None, type: DataType, path: str) -> Column | None:
            return None if text is None else F.when(value.isNull() & text.isNotNull(), words(type, path, text))

        found = self._first(judge, decoded, texts, self._fields, as_texts(self._fields), "")
        return F.lit(None).cast("string") if found is None else found

    def misfit(self, type: DataType, path: str, text: Column) -> Column:
        kind = f"a number of {self._units[path]}" if path in self._units else type.simpleString().partition("<")[0]
        return told(f"{path} does not fit {kind}: ", text)

    def columns(self, decoded: Column, texts: Column, malformed: Column) -> list[Column]:
        """Return the columns. In a malformed row, one with a value that is not taken is null."""
        found = []
        for field in self._fields.fields:
            value = decoded.getField(field.name)
            text, kinds = _below(texts, self.texts, field.name)
            refused = self._first(self._refused, value, text, field.dataType, kinds, field.name)
            if self._differs(field.dataType, field.name):
                value = self._converted(value, field.dataType, field.name)
            if refused is not None:
                value = F.when(malformed & refused.isNotNull(), F.lit(None)).otherwise(value)
            found.append(value.alias(field.name))
        return found

    def _read_field(self, field: StructField, path: str) -> StructField:
        return StructField(field.name, self._read(field.dataType, path), field.nullable)

    def _read(self, type: DataType, path: str) -> DataType:
        match type:
            case StructType():
                return StructType([self._read_field(field, f"{path}.{field.name}") for field in type.fields])
            case ArrayType():
                return ArrayType(self._read(type.elementType, path), type.containsNull)
            case MapType():
                return MapType(type.keyType, self._read(type.valueType, path), type.valueContainsNull)
            case ByteType():
                return ShortType()
        return NUMBER if path in self._units else type

    def _differs(self, type: DataType, path: str) -> bool:
        return self._read(type, path) != type

    def _needs_text(self, type: DataType, path: str) -> bool:
        return path not in self._units and any(
            isinstance(type, each) and option not in self._options for each, option in OWN_FORM.items()
        )

    def _outside(self, type: DataType, path: str) -> Outside | None:
        if path in self._units:
            factor = UNITS[self._units[path]]
            early, end = F.lit(MICROS_1971 / factor), F.lit(MICROS_END / factor)
            return lambda value: (value < 0) | ((value >= COARSE) & (value < early)), lambda value: value >= end
        match type:
            case TimestampType():
                first, end = F.timestamp_micros(F.lit(0)), F.timestamp_micros(F.lit(MICROS_END))
                return lambda value: value < first, lambda value: value >= end
            case TimestampNTZType():
                first, end = (F.expr(f"TIMESTAMP_NTZ '{year}-01-01 00:00:00'") for year in (1970, 2200))
                return lambda value: value < first, lambda value: value >= end
            case DateType():
                first, last = F.expr("DATE '0001-01-01'"), F.expr("DATE '9999-12-31'")
                return lambda value: value < first, lambda value: value > last
            case ByteType():
                return lambda value: value < -128, lambda value: value > 127
            case FloatType() | DoubleType() if self._finite:  # NaN is the greatest number for Spark
                return lambda value: value <= -INFINITY, lambda value: value >= INFINITY
        return None

    def _first(
        self, judge: Judge, value: Column, text: Column | None, type: DataType, texts: DataType | None, path: str
    ) -> Column | None:
        """Return what ``judge`` says first about a value or those in it. ``texts``: type of ``text``."""
        match type:
            case StructType():
                prefix = f"{path}." if path else ""
                found = []
                for field in type.fields:
                    inner, kinds = _below(text, texts, field.name)
                    said = self._first(
                        judge, value.getField(field.name), inner, field.dataType, kinds, prefix + field.name
                    )
                    if said is not None:
                        found.append(said)
                return F.coalesce(*found) if found else None
            case ArrayType():
                return self._first_element(judge, value, text, type.elementType, texts, path)
            case MapType():
                within = None if text is None else F.map_values(text)
                return self._first_element(judge, F.map_values(value), within, type.valueType, texts, path)
        return judge(value, text, type, path)

    def _first_element(
        self, judge: Judge, values: Column, text: Column | None, type: DataType, texts: DataType | None, path: str
    ) -> Column | None:
        below = texts.elementType if isinstance(texts, ArrayType) else getattr(texts, "valueType", None)
        if self._first(judge, F.lit(None), None if text is None else F.lit(None), type, below, path) is None:
            return None

        def said_of(value: Column, each: Column | None = None) -> Column:
            return cast(Column, self._first(judge, value, each, type, below, path))

        if text is None:
            said = F.transform(values, lambda value: said_of(value))
        else:
            said = F.zip_with(values, text, lambda value, each: said_of(value, each))
        found = F.get(F.filter(said, lambda each: each.isNotNull()), F.lit(0))
        outside = self._outside(type, path)
        if text is not None or outside is None:
            return found
        return F.when(outside[0](F.array_min(values)) | outside[1](F.array_max(values)), found)

    def _judged(self, value: Column, text: Column | None, type: DataType, path: str) -> Column | None:
        found = None
        for strange, shown, why in self._tests(value, text, type, path):
            words = told(f"{path} is ", shown, why)
            found = F.when(strange, words) if found is None else found.when(strange, words)
        return found

    def _refused(self, value: Column, text: Column | None, type: DataType, path: str) -> Column | None:
        tests = [strange for strange, *_ in self._tests(value, text, type, path)]
        return F.when(reduce(or_, tests), F.lit(True)) if tests else None

    def _tests(self, value: Column, text: Column | None, type: DataType, path: str) -> list[tuple[Column, Column, str]]:
        """Return tests that are true of a value that is not taken, each with what is shown of the value, and why."""
        found = []
        outside = self._outside(type, path)
        if outside is not None:
            shown = F.regexp_replace(value.cast("string"), r"\.0*$", "")
            found.append((outside[0](value) | outside[1](value), shown, self._why(type, path)))
        if text is not None:
            strange, why = _text_rule(value, text, type)
            found.append((strange, text, why))
        return found

    def _why(self, type: DataType, path: str) -> str:
        if path in self._units:
            return f" {self._units[path]}, {OTHER_UNIT}"
        if isinstance(type, TimestampType):
            return f", {RANGE}; a number counts seconds, unless decode.timestamp_unit says otherwise"
        if isinstance(type, TimestampNTZType):
            return f", {RANGE}"
        if isinstance(type, ByteType):
            return ", not in -128 to 127"
        return ", not in the years 1 to 9999" if isinstance(type, DateType) else ", which is not a finite number"

    def _converted(self, value: Column, type: DataType, path: str) -> Column:
        if not self._differs(type, path):
            return value
        match type:
            case StructType():
                fields = [
                    self._converted(value.getField(field.name), field.dataType, f"{path}.{field.name}").alias(
                        field.name
                    )
                    for field in type.fields
                ]
                return F.when(value.isNotNull(), F.struct(*fields))
            case ArrayType():
                return F.transform(value, lambda each: self._converted(each, type.elementType, path))
            case MapType():
                return F.transform_values(value, lambda _, each: self._converted(each, type.valueType, path))
            case ByteType():
                return F.when(value.between(-128, 127), value).cast("tinyint")
        return F.timestamp_micros((value * F.lit(UNITS[self._units[path]])).cast("bigint"))


def _text_rule(value: Column, text: Column, type: DataType) -> tuple[Column, str]:
    """Return whether the text of a value is not taken, and why."""
    if isinstance(type, DecimalType):
        exact = text.rlike(rf"^[+-]?[0-9]*(\.[0-9]{{0,{type.scale}}}0*)?$")
        same = text.rlike("^[+-]?[0-9.]+[eE]") & (text.try_cast("double") == value.cast("double"))
        return value.isNotNull() & ~exact & ~same, f", which {type.simpleString()} does not hold exactly"
    if isinstance(type, DateType):
        return value.isNotNull() & ~text.rlike(DATE + MIDNIGHT), ", which is not a whole date and nothing else"
    usual = (F.substring(text, 5, 1) == "-") & (F.substring(text, 8, 1) == "-")
    number = F.unix_seconds(value).cast("string") == text if isinstance(type, TimestampType) else F.lit(False)
    unusual = value.isNotNull() & ~text.rlike(DATE) & ~number
    return F.when(usual, F.lit(False)).otherwise(unusual), ", which has no whole date"


def told(before: str, value: Column, after: str = "") -> Column:
    """Return a reason, with the beginning of a long value."""
    shown = F.regexp_replace(value.cast("string"), f"(?s)^(.{{{SHOWN_CHARACTERS_MAX}}}).+", "$1...")
    return F.concat(F.lit(before), shown, F.lit(after))


def as_texts(
    type: DataType, wanted: Callable[[DataType, str], bool] = lambda *_: True, path: str = ""
) -> DataType | None:
    """Return the type with text in place of each wanted value, and without others; None if nothing is wanted."""
    match type:
        case StructType():
            prefix = f"{path}." if path else ""
            each = [(field.name, as_texts(field.dataType, wanted, prefix + field.name)) for field in type.fields]
            found = [StructField(name, below) for name, below in each if below is not None]
            return StructType(found) if found else None
        case ArrayType():
            element = as_texts(type.elementType, wanted, path)
            return None if element is None else ArrayType(element)
        case MapType():
            element = as_texts(type.valueType, wanted, path)
            return None if element is None else MapType(StringType(), element)
    return StringType() if wanted(type, path) else None


def ddl(type: DataType) -> str:
    """Return a type as SQL has it, with any names."""
    match type:
        case StructType():
            return f"struct<{', '.join(f'{quoted(field.name)}: {ddl(field.dataType)}' for field in type.fields)}>"
        case ArrayType():
            return f"array<{ddl(type.elementType)}>"
        case MapType():
            return f"map<{ddl(type.keyType)}, {ddl(type.valueType)}>"
    return type.simpleString()


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _below(text: Column | None, texts: DataType | None, name: str) -> tuple[Column | None, DataType | None]:
    """Return the text of a field, and its type, if there is one."""
    if text is None or not isinstance(texts, StructType) or name not in texts.fieldNames():
        return None, None
    return text.getField(name), texts[name].dataType


def check_units(fields: StructType, units: Mapping[str, str]) -> None:
    """Raises OptionError."""
    times = time_paths(fields)
    for path, unit in units.items():
        if unit not in UNITS:
            raise OptionError(f"timestamp_unit.{path}: {unit!r} is not one of {', '.join(UNITS)}")
        if not isinstance(times.get(path), TimestampType):
            known = ", ".join(path for path, type in times.items() if isinstance(type, TimestampType))
            raise OptionError(f"timestamp_unit.{path}: the schema has no timestamp {path}; it has {known or 'none'}")


def time_paths(type: DataType, path: str = "") -> dict[str, DataType]:
    """Return the paths of the times and dates in a type."""
    match type:
        case StructType():
            prefix = f"{path}." if path else ""
            found: dict[str, DataType] = {}
            for field in type.fields:
                found |= time_paths(field.dataType, prefix + field.name)
            return found
        case ArrayType():
            return time_paths(type.elementType, path)
        case MapType():
            return time_paths(type.valueType, path)
    return {path: type} if isinstance(type, (*TIMES, DateType)) else {}


# Binary formats

Reader = Callable[[Any], Any]
"""Returns the value for Arrow, which takes a whole number for microseconds. Raises ValueError."""


def epoch_reader(type: DataType, units: Mapping[str, str], path: str = "") -> Reader | None:
    """Return what makes times of numbers, by unit, and refuses other times than ``ValueRules``; None: no times."""
    match type:
        case StructType():
            return _struct_reader(type, units, path)
        case ArrayType():
            element = epoch_reader(type.elementType, units, path)
            return None if element is None else lambda value: _each(value, element)
        case MapType():
            below = epoch_reader(type.valueType, units, path)
            return None if below is None else lambda value: _each_value(value, below)
        case DateType():
            return lambda value: _date(value, path)
        case TimestampType() | TimestampNTZType():
            factor = UNITS[units[path]] if path in units else None
            return lambda value: _time(value, factor, path)
    return None


def _struct_reader(type: StructType, units: Mapping[str, str], path: str) -> Reader | None:
    prefix = f"{path}." if path else ""
    readers = [(field.name, epoch_reader(field.dataType, units, prefix + field.name)) for field in type.fields]
    found = [(name, reader) for name, reader in readers if reader is not None]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return value | {name: reader(value[name]) for name, reader in found if value.get(name) is not None}

    return read if found else None


def _each(values: Any, read: Reader) -> Any:
    return [None if value is None else read(value) for value in values] if isinstance(values, list | tuple) else values


def _each_value(values: Any, read: Reader) -> Any:
    if isinstance(values, dict):
        return {key: None if value is None else read(value) for key, value in values.items()}
    if isinstance(values, list):  # pairs
        return [(key, None if value is None else read(value)) for key, value in values]
    return values


def _time(value: Any, factor: Decimal | None, path: str) -> Any:
    if isinstance(value, datetime):
        if not 1970 <= (value if value.tzinfo is None else value.astimezone(UTC)).year < 2200:
            raise ValueError(f"{path} is {value.isoformat()}, {RANGE}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    if factor is None:
        raise ValueError(f"{path} is the number {value}; decode.timestamp_unit gives its unit: {', '.join(UNITS)}")
    micros = Decimal(value) * factor
    if not 0 <= micros < MICROS_END or (value >= COARSE and micros < MICROS_1971):
        raise ValueError(f"{path} is {value}, {OTHER_UNIT}")
    return int(micros)


def _date(value: Any, path: str) -> Any:
    if isinstance(value, int | float):  # Arrow would count days
        raise ValueError(f"{path} is the number {value}, which is not a date")
    return value
