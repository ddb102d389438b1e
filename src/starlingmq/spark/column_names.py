"""Names of columns as Spark compares them: without case, unless ``spark.sql.caseSensitive`` is true."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from starlingmq.spark.option_error import OptionError

CASE_SENSITIVE: Final = "spark.sql.caseSensitive"
OTHER_CASE: Final = f"is written with other capitals in the payload ({CASE_SENSITIVE})"
Compared = Callable[[str], str]
"""Returns the same text for two names that Spark takes for one."""


def comparison(spark: SparkSession) -> Compared:
    return str if str(spark.conf.get(CASE_SENSITIVE, "false")).lower() == "true" else str.lower


def kept_columns(columns: Iterable[str], decoded: Iterable[str], compared: Compared) -> list[str]:
    """Return the columns of the source that stay beside the decoded ones, which replace columns of the same name."""
    replaced = {"payload", *map(compared, decoded)}
    return [name for name in columns if compared(name) not in replaced]


def check_names(fields: StructType, compared: Compared, reserved: Iterable[str] = ()) -> None:
    """Raises OptionError: two columns, or two fields of one struct, have the same name; or one has a reserved name."""
    twice = same_names(fields, compared)
    if twice:
        raise OptionError(
            f"{' and '.join(twice)} are one name for Spark, which does not distinguish case ({CASE_SENSITIVE}); "
            "leave one out, or rename it"
        )
    taken = {compared(name) for name in reserved}
    strange = [name for name in fields.fieldNames() if compared(name) in taken]
    if strange:
        raise OptionError(f"column {strange[0]}: the name is reserved; leave it out")


def refuse_other_case(value: Any, type: DataType, path: str = "") -> None:
    """Raises ValueError: a map lacks a field, and has a key that differs from its name by case only."""
    match type:
        case ArrayType() if isinstance(value, list | tuple):
            for each in value:
                refuse_other_case(each, type.elementType, path)
        case MapType() if isinstance(value, dict):
            for each in value.values():
                refuse_other_case(each, type.valueType, path)
        case StructType() if isinstance(value, dict):
            for field in type.fields:
                where = f"{path}.{field.name}" if path else field.name
                if field.name in value:
                    refuse_other_case(value[field.name], field.dataType, where)
                elif field.name.lower() in {str(key).lower() for key in value}:
                    raise ValueError(f"{where} {OTHER_CASE}")


def same_names(type: DataType, compared: Compared, path: str = "") -> list[str]:
    """Return the names, as paths, that are the same in one struct; none if there are no two."""
    if isinstance(type, ArrayType):
        return same_names(type.elementType, compared, path)
    if isinstance(type, MapType):
        return same_names(type.keyType, compared, path) or same_names(type.valueType, compared, path)
    if not isinstance(type, StructType):
        return []
    prefix = f"{path}." if path else ""
    first: dict[str, str] = {}
    for field in type.fields:
        name = prefix + field.name
        if compared(field.name) in first:
            return [first[compared(field.name)], name]
        first[compared(field.name)] = name
        found = same_names(field.dataType, compared, name)
        if found:
            return found
    return []
