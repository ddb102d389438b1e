"""Which values of a decoded column are taken. Spark's JSON and CSV also take others, which a person would not:

    timestamp       from 1970 to 2199. JSON: a whole number counts seconds, so milliseconds would be the year 57971
    ... with unit   a number that counts s, ms, us or ns since 1970, and does not look like another unit
    date            of the years 1 to 9999: Spark reads 20260101 as a year
    float, double   finite: Spark reads 1e999 as infinity

The rules are expressions of Spark, so that no row passes through Python. Binary formats are decoded in Python, where
``epoch_reader`` has the rules for times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
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
Outside = tuple[Callable[[Column], Column], Callable[[Column], Column]]
"""Whether a value is below, and whether it is above, what is taken."""


class ValueRules:
    """``units``: by path of a timestamp column: ``sent_at``, ``place.at``; elements of an array have the path of the
    array. ``finite``: whether NaN and infinity are refused. ``read``: the columns as they are decoded, before
    ``column`` makes times of numbers.
    """

    def __init__(self, fields: StructType, units: Mapping[str, str], finite: bool) -> None:
        """Raises OptionError: a unit is unknown, or of a column that is no timestamp."""
        check_units(fields, units)
        self._fields = fields
        self._units = units
        self._finite = finite
        self.read = StructType([self._read_field(field, field.name) for field in fields.fields])

    def broken(self, decoded: Column) -> Column | None:
        """Whether a value of this row of ``read`` is not taken; null counts as no. None: there are no rules."""
        return self._broken(decoded, self._fields, "")

    def problem(self, decoded: Column) -> Column | None:
        """Return the first value that is not taken, and why; null if there is none."""
        return self._problem(decoded, self._fields, "")

    def columns(self, decoded: Column) -> list[Column]:
        """Return the columns. One with a value that is not taken is null."""
        found = []
        for field in self._fields.fields:
            value = decoded.getField(field.name)
            broken = self._broken(value, field.dataType, field.name)
            if self._has_unit(field.dataType, field.name):
                value = self._converted(value, field.dataType, field.name)
            if broken is not None:
                value = F.when(broken, F.lit(None)).otherwise(value)
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
        return NUMBER if path in self._units else type

    def _has_unit(self, type: DataType, path: str) -> bool:
        return self._read(type, path) != type

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
            case FloatType() | DoubleType() if self._finite:  # NaN is the greatest number for Spark
                return lambda value: value <= -INFINITY, lambda value: value >= INFINITY
        return None

    def _broken(self, value: Column, type: DataType, path: str) -> Column | None:
        match type:
            case StructType():
                prefix = f"{path}." if path else ""
                each = [
                    self._broken(value.getField(field.name), field.dataType, prefix + field.name)
                    for field in type.fields
                ]
                found = [broken for broken in each if broken is not None]
                return reduce(or_, found) if found else None
            case ArrayType():
                return self._element_broken(value, type.elementType, path)
            case MapType():
                return self._element_broken(F.map_values(value), type.valueType, path)
        outside = self._outside(type, path)
        return None if outside is None else outside[0](value) | outside[1](value)

    def _element_broken(self, values: Column, type: DataType, path: str) -> Column | None:
        if not self._has_rules(type, path):
            return None
        outside = self._outside(type, path)
        if outside is not None:
            return outside[0](F.array_min(values)) | outside[1](F.array_max(values))
        return F.exists(values, lambda value: self._broken(value, type, path))  # type: ignore[arg-type, return-value]

    def _has_rules(self, type: DataType, path: str) -> bool:
        return self._broken(F.lit(None), type, path) is not None

    def _problem(self, value: Column, type: DataType, path: str) -> Column | None:
        match type:
            case StructType():
                prefix = f"{path}." if path else ""
                each = [
                    self._problem(value.getField(field.name), field.dataType, prefix + field.name)
                    for field in type.fields
                ]
                found = [problem for problem in each if problem is not None]
                return F.coalesce(*found) if found else None
            case ArrayType():
                return self._element_problem(value, type.elementType, path)
            case MapType():
                return self._element_problem(F.map_values(value), type.valueType, path)
        broken = self._broken(value, type, path)
        if broken is None:
            return None
        shown = F.regexp_replace(value.cast("string"), r"\.0*$", "")
        return F.when(broken, F.concat(F.lit(f"{path} is "), shown, F.lit(self._why(type, path))))

    def _element_problem(self, values: Column, type: DataType, path: str) -> Column | None:
        if not self._has_rules(type, path):
            return None
        told = F.transform(values, lambda value: self._problem(value, type, path))  # type: ignore[arg-type, return-value]
        return F.get(F.filter(told, lambda text: text.isNotNull()), F.lit(0))

    def _why(self, type: DataType, path: str) -> str:
        if path in self._units:
            return f" {self._units[path]}, {OTHER_UNIT}"
        if isinstance(type, TimestampType):
            return f", {RANGE}; a number counts seconds, unless decode.timestamp_unit says otherwise"
        if isinstance(type, TimestampNTZType):
            return f", {RANGE}"
        return ", not in the years 1 to 9999" if isinstance(type, DateType) else ", which is not a finite number"

    def _converted(self, value: Column, type: DataType, path: str) -> Column:
        if not self._has_unit(type, path):
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
        return F.timestamp_micros((value * F.lit(UNITS[self._units[path]])).cast("bigint"))


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
