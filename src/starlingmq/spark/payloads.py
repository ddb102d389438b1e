"""Decodes payloads into columns."""

from __future__ import annotations

from typing import Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

MALFORMED: Final = "_malformed"
REASON: Final = "reason"  # column of a dead letter
WHOLE: Final = "_whole"  # column with the source row, next to the decoded columns


def decode_json(rows: DataFrame, schema: StructType | str, into: str = "") -> DataFrame:
    """Return rows with a column for each field of the JSON in ``payload``, by schema (a StructType, or DDL such as
    ``"id string, value double"``), in place of ``payload``; with ``into`` one column of that name with all of them.

    A payload that is not such JSON is kept as text in the column ``_malformed``, which is null for all others.
    """
    fields = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    whole = StructType([*fields.fields, StructField(MALFORMED, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
    text = F.col("payload").cast("string")
    decoded = rows.withColumn("_decoded", F.from_json(text, whole, options))
    strange = F.col("_decoded").isNull() | ~F.is_valid_utf8(text) | _has_more(text)  # Spark replaces invalid bytes
    malformed = F.when(strange, text).otherwise(F.col(f"_decoded.{MALFORMED}"))
    decoded = decoded.withColumn(MALFORMED, malformed)
    if into:
        return decoded.withColumn(into, F.col("_decoded").dropFields(MALFORMED)).drop("_decoded", "payload")
    columns = [F.col(f"_decoded.`{field.name}`").alias(field.name) for field in fields.fields]
    kept = [F.col(name) for name in rows.columns if name != "payload" and name not in fields.fieldNames()]
    return decoded.select(*columns, *kept, F.col(MALFORMED))


def _has_more(text: Column) -> Column:
    """Whether something follows the first JSON value, which ``from_json`` leaves out without an error.

    One value is one of two in an array with another one; whatever follows it makes them more, fewer, or no array. NaN
    and infinity, which ``from_json`` accepts, are numbers for this.
    """

    def count(value: Column) -> Column:
        return F.json_array_length(F.concat(F.lit("["), value, F.lit(",0]")))

    plain = F.regexp_replace(text, "[+-]?(NaN|Infinity|INF)", "0")
    return F.coalesce(count(text), count(plain), F.lit(0)) != 2


def malformed_because(format: str, schema: str) -> Column:
    """Return why the column ``payload`` of a malformed row is not JSON or CSV of this schema."""
    text = F.col("payload").cast("string")
    found = F.when(~F.is_valid_utf8(text), "the payload is not UTF-8").when(F.trim(text) == "", "the payload is empty")
    if format == "json":
        found = found.when(
            _has_more(text) & F.try_parse_json(text).isNotNull(), "the payload has more than one JSON value"
        )
        found = found.when(F.try_parse_json(text).isNull(), "the payload is not JSON")
    return found.otherwise(F.lit(f"the payload does not fit the schema {schema}"))
