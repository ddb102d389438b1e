"""Tables with one row for each key: Delta, by MERGE.

A row replaces the row of its key unless it is older by ``order_by``. So a batch that is written again changes nothing,
and the order of batches does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from starlingmq.pipeline.config import SinkConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

RANK: Final = "_rank"
BATCH: Final = "_starlingmq_batch"
EVOLVES: Final = "mergeSchema"


def latest_by_key(batch: DataFrame, key: Sequence[str], order_by: Sequence[str]) -> DataFrame:
    """Return the latest row of each key."""
    window = Window.partitionBy(*key).orderBy(*[F.col(name).desc_nulls_last() for name in order_by])
    return batch.withColumn(RANK, F.row_number().over(window)).where(F.col(RANK) == 1).drop(RANK)


def table_name(sink: SinkConfig) -> str:
    """Return the table in SQL."""
    return f"delta.`{sink.path}`"


def create_table(spark: SparkSession, sink: SinkConfig, schema: StructType) -> None:
    """Create the table with the columns of the result, unless it exists."""
    columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)
    parted = f"PARTITIONED BY ({_names(sink.partition_by)})" if sink.partition_by else ""
    clustered = f"CLUSTER BY ({_names(sink.cluster_by)})" if sink.cluster_by else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table_name(sink)} ({columns}) USING delta {parted} {clustered}")


def merging(sink: SinkConfig) -> Callable[[DataFrame, int], None]:
    """Merge batches into the table."""
    statement = merge_statement(sink)

    def write(batch: DataFrame, number: int) -> None:
        latest_by_key(batch, sink.key, sink.order_by).createOrReplaceTempView(BATCH)
        batch.sparkSession.sql(statement)

    return write


def merge_statement(sink: SinkConfig) -> str:
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in sink.key)
    order = [quoted(name) for name in sink.order_by]
    newer = f"struct({', '.join(f's.{name}' for name in order)}) >= struct({', '.join(f't.{name}' for name in order)})"
    evolves = "WITH SCHEMA EVOLUTION " if sink.options.get(EVOLVES, "").lower() == "true" else ""
    return (
        f"MERGE {evolves}INTO {table_name(sink)} t USING {BATCH} s ON {same} "
        f"WHEN MATCHED AND {newer} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def compact_statement(sink: SinkConfig) -> str:
    """Return the SQL that rewrites the small files of a table as large ones."""
    return f"OPTIMIZE {table_name(sink)}"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
