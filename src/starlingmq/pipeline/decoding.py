"""Payloads of a pipeline as columns, by its ``decode`` settings, and dead letters of those that cannot be decoded."""

from __future__ import annotations

import os
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from starlingmq.pipeline.config import DeadLetterConfig, DecodeConfig, RegistryConfig
from starlingmq.spark.binary_payloads import FORMATS as BINARY_FORMATS
from starlingmq.spark.binary_payloads import decode_binary, read_format
from starlingmq.spark.payloads import MALFORMED, REASON, WHOLE, decode_csv, decode_json, with_reasons
from starlingmq.spark.schema_registry import RegistryOptions
from starlingmq.spark.secret_reference import SecretReference
from starlingmq.spark.sparkplug import decode_sparkplug
from starlingmq.spark.sparkplug_state import decode_sparkplug_with_state


def decoded(rows: DataFrame, decode: DecodeConfig, mode: str = "append") -> DataFrame:
    """Add columns of decoded payloads, and ``_malformed`` for those that cannot be decoded. Raises OptionError."""
    if decode.format == "raw":
        return rows
    if decode.format == "sparkplug":
        return (
            decode_sparkplug(rows) if decode.state == "none" else decode_sparkplug_with_state(rows, decode.state, mode)
        )
    fields = cast(StructType, StructType.fromDDL(decode.schema))
    if decode.format in BINARY_FORMATS:
        registry = registry_options(decode.registry)
        form = read_format(
            decode.format, fields, decode.schema_file, decode.message, decode.framing, registry, decode.timestamp_unit
        )
        return decode_binary(rows, form)
    if decode.format == "json":
        return decode_json(rows, fields, options=decode.options, timestamp_unit=decode.timestamp_unit)
    return decode_csv(rows, fields, decode.options, decode.timestamp_unit)


def registry_options(registry: RegistryConfig | None) -> RegistryOptions | None:
    if registry is None:
        return None
    file = os.path.abspath(registry.password_file) if registry.password_file else ""
    password = SecretReference("decode.registry.password", file, registry.password_env)
    return RegistryOptions(
        url=registry.url, user=registry.user, password=password, ca=registry.tls_ca, timeout=registry.timeout
    )


def with_whole(rows: DataFrame, decode: DecodeConfig, mode: str = "append") -> DataFrame:
    """Return decoded rows; those that cannot be decoded have the row of the source in ``WHOLE``."""
    whole = F.struct(*[F.col(name) for name in rows.columns])
    found = decoded(rows.withColumn(WHOLE, whole), decode, mode)
    return found.withColumn(WHOLE, F.when(F.col(MALFORMED).isNotNull(), F.col(WHOLE)))


def dead_letters(rows: DataFrame, decode: DecodeConfig, letter: DeadLetterConfig) -> DataFrame:
    """Return, of the rows of ``with_whole``, those whose payload cannot be decoded, with all columns of the source and
    the reason. CSV has no binary and array types: there the payload is base64, and properties are JSON.
    """
    found = rows.where(F.col(MALFORMED).isNotNull() & F.col(WHOLE).isNotNull())
    if decode.format in (*BINARY_FORMATS, "sparkplug"):
        found = found.select(f"{WHOLE}.*", F.col(MALFORMED).alias(REASON))
    else:
        found = with_reasons(
            found.select(f"{WHOLE}.*"), decode.format, decode.schema, decode.options, decode.timestamp_unit
        )
    if letter.format != "csv":
        return found
    in_one_line = F.translate(F.base64("payload"), "\r\n", "")
    return found.withColumns({"payload": in_one_line, "properties": F.to_json("properties")})
