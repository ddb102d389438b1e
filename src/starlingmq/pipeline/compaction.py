"""Rewrites the small files of a table as larger ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.config import SinkConfig
from starlingmq.pipeline.keyed_rows import compact_statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact_table(spark: SparkSession, sink: SinkConfig) -> tuple[int, int]:
    """Return the number of files that were rewritten, and of those in their place. Raises ConfigError."""
    from pyspark.errors import PySparkException

    try:
        if sink.format == "delta":
            metrics = spark.sql(compact_statement(sink)).collect()[0]["metrics"]
            return metrics["numFilesRemoved"], metrics["numFilesAdded"]
        from starlingmq.pipeline.iceberg import IcebergError, IcebergTable

        try:
            return IcebergTable(sink).compact(spark)
        except IcebergError as error:
            raise ConfigError(str(error)) from None
    except PySparkException as error:
        raise ConfigError(f"{sink.path}: {' '.join(str(error).split())[:300]}") from None
