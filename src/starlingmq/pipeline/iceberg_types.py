"""Types of columns: Spark's as Iceberg's, and back. Columns may be null.

Bytes and shorts become int. Other types of one of the two have no counterpart in the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

from pyiceberg import types as of_iceberg
from pyiceberg.schema import Schema
from pyspark.sql import types as of_spark

from starlingmq.config.section_types import ConfigError

PLAIN: Final[tuple[tuple[of_spark.DataType, of_iceberg.IcebergType], ...]] = (
    (of_spark.BooleanType(), of_iceberg.BooleanType()),
    (of_spark.IntegerType(), of_iceberg.IntegerType()),
    (of_spark.LongType(), of_iceberg.LongType()),
    (of_spark.FloatType(), of_iceberg.FloatType()),
    (of_spark.DoubleType(), of_iceberg.DoubleType()),
    (of_spark.StringType(), of_iceberg.StringType()),
    (of_spark.BinaryType(), of_iceberg.BinaryType()),
    (of_spark.DateType(), of_iceberg.DateType()),
    (of_spark.TimestampType(), of_iceberg.TimestamptzType()),
    (of_spark.TimestampNTZType(), of_iceberg.TimestampType()),
)
TO_ICEBERG: Final = dict(PLAIN) | dict.fromkeys((of_spark.ByteType(), of_spark.ShortType()), of_iceberg.IntegerType())
TO_SPARK: Final = {iceberg: spark for spark, iceberg in PLAIN}


def iceberg_schema(schema: of_spark.StructType) -> Schema:
    """Return the columns of a new table. Raises ConfigError."""
    return Schema(*_fields(schema, count(1)))


def spark_schema(schema: Schema) -> of_spark.StructType:
    """Return the columns of a table as Spark reads its files. Raises ConfigError."""
    return of_spark.StructType([of_spark.StructField(each.name, _to_spark(each.field_type)) for each in schema.fields])


def _fields(schema: of_spark.StructType, ids: Iterator[int]) -> list[of_iceberg.NestedField]:
    return [
        of_iceberg.NestedField(next(ids), each.name, _to_iceberg(each.dataType, ids), required=False)
        for each in schema.fields
    ]


def _to_iceberg(kind: of_spark.DataType, ids: Iterator[int]) -> of_iceberg.IcebergType:
    if isinstance(kind, of_spark.StructType):
        return of_iceberg.StructType(*_fields(kind, ids))
    if isinstance(kind, of_spark.ArrayType):
        return of_iceberg.ListType(next(ids), _to_iceberg(kind.elementType, ids), element_required=False)
    if isinstance(kind, of_spark.MapType):
        key, value = _to_iceberg(kind.keyType, ids), _to_iceberg(kind.valueType, ids)
        return of_iceberg.MapType(next(ids), key, next(ids), value, value_required=False)
    if isinstance(kind, of_spark.DecimalType):
        return of_iceberg.DecimalType(kind.precision, kind.scale)
    if kind not in TO_ICEBERG:
        raise ConfigError(f"sink: iceberg cannot hold a column of type {kind.simpleString()}; convert it in a step")
    return TO_ICEBERG[kind]


def _to_spark(kind: of_iceberg.IcebergType) -> of_spark.DataType:
    if isinstance(kind, of_iceberg.StructType):
        return of_spark.StructType(
            [of_spark.StructField(each.name, _to_spark(each.field_type)) for each in kind.fields]
        )
    if isinstance(kind, of_iceberg.ListType):
        return of_spark.ArrayType(_to_spark(kind.element_type))
    if isinstance(kind, of_iceberg.MapType):
        return of_spark.MapType(_to_spark(kind.key_type), _to_spark(kind.value_type))
    if isinstance(kind, of_iceberg.DecimalType):
        return of_spark.DecimalType(kind.precision, kind.scale)
    if kind not in TO_SPARK:
        raise ConfigError(f"sink: the table has a column of type {kind}, which Spark does not read from files")
    return TO_SPARK[kind]
