"""Batches into an Iceberg table, each row once: Spark writes files, and PyIceberg commits them.

    the batch  -> Parquet files below the table's data/, in a directory of this attempt, by Spark's tasks
    one commit -> the files (with ``key``: in place of those whose rows they replace)
                  the property starlingmq.batch.QUERY: the number of the batch

A commit applies to the snapshot it was made from; if another writer was faster, the property is read again, and a batch
that it includes is not committed. So PyIceberg's own repetition of commits is off: it would not look.

A process that dies before the commit leaves the table as it was, and files that no snapshot names: "orphan files",
which Iceberg's maintenance removes. Nothing here deletes files: an attempt that seems dead may still commit.

Rows are replaced by copy on write: files with a row of the same key are rewritten. Rows that another program marked
as deleted are not understood, and refused.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from time import sleep
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pyspark.sql import functions as F

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.config import ICEBERG_PARTITION, SinkConfig, source_column
from starlingmq.pipeline.keyed_rows import EVOLVES, latest_by_key, quoted
from starlingmq.spark.sink import QUERY_ID

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Plan = Callable[[Table, DataFrame, list[str]], tuple[list[str], list[DataFile]]]

BATCH: Final = "starlingmq.batch."
RETRIES: Final = "commit.retry.num-retries"
NAMES: Final = "schema.name-mapping.default"
TRANSFORMS: Final = ("identity", "year", "month", "day", "hour")
PART: Final = "_starlingmq_part"
FILE: Final = "_starlingmq_file"
ATTEMPTS: Final = 20
WAIT_SECONDS_MAX: Final = 5.0
TARGET_BYTES: Final = 128 * 1024 * 1024
MISSING: Final = "sink: iceberg needs PyIceberg: pip install '.[iceberg]'"


class IcebergError(Exception):
    """The table cannot take a batch."""


class CommitConflict(IcebergError):
    """Other writers committed first, again and again."""


class CatalogAway(Exception):
    """The catalog, or the storage of the table, does not answer."""


def into_iceberg(sink: SinkConfig, schema: StructType) -> Callable[[DataFrame, int], None]:
    """Create the table unless it exists, and return what writes batches into it. Raises ConfigError."""
    table = IcebergTable(sink)
    table.prepare(schema)
    return table.write


class IcebergTable:
    """``sink.path``: catalog.namespace.table; ``sink.options``: properties of the catalog, as PyIceberg names them."""

    def __init__(self, sink: SinkConfig) -> None:
        name, _, table = sink.path.partition(".")
        if not name or "." not in table:
            raise ConfigError(f"sink.path: {sink.path} is not a table of Iceberg; write catalog.namespace.table")
        self._sink = sink
        self._name = table
        self._evolves = sink.options.get(EVOLVES, "").lower() == "true"
        self._catalog = _open(name, {key: value for key, value in sink.options.items() if key != EVOLVES})

    def prepare(self, schema: StructType) -> None:
        """Create the table, or compare its columns and partitions. Raises ConfigError."""
        try:
            from starlingmq.pipeline.iceberg_types import iceberg_schema

            columns = iceberg_schema(schema)
            if not self._catalog.table_exists(self._name):
                self._create(columns)
            table = self._load()
            if self._evolves:
                with table.update_schema() as update:
                    update.union_by_name(columns)
                table = self._load()
        except ConfigError:
            raise
        except Exception as error:  # of the catalog's client library, of any kind
            raise ConfigError(f"sink: iceberg: {self._sink.path}: {_line(error)}") from None
        known = {field.name for field in table.schema().fields}
        absent = [field.name for field in schema.fields if field.name not in known]
        if absent:
            raise ConfigError(
                f"sink: the table {self._sink.path} has no column {', '.join(absent)}; leave it out in a step, or set "
                f'options: {{{EVOLVES}: "true"}}'
            )
        _transforms(table)

    def write(self, batch: DataFrame, number: int) -> None:
        """Add a batch, or with a key merge it; a batch that is in the table changes nothing. Raises IcebergError."""
        query = str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID))
        if self._sink.key:
            batch = latest_by_key(batch, self._sink.key, self._sink.order_by)
        try:
            self._commit(self._merged if self._sink.key else self._appended, batch, query, number)
        except Exception as error:
            if _away(error):
                raise CatalogAway(f"the catalog of {self._sink.path} does not answer: {_line(error)}") from error
            raise

    def compact(self, spark: SparkSession, target: int = TARGET_BYTES) -> tuple[int, int]:
        """Rewrite small files as larger ones. Returns the number of files before and after. Raises IcebergError."""
        for wait in _waits():
            table = self._table_to_compact()
            small = [file for file in _files(table) if file.file_size_in_bytes < target // 2]
            if len(small) < 2:
                return len(small), len(small)
            rows = _read(spark, table, small)
            count = max(1, sum(file.file_size_in_bytes for file in small) // target)
            parts = _transforms(table)
            fresh = self._written(table, rows.repartition(count, *([_part(parts)] if parts else [])))
            if _committed(table, fresh, small, {}):
                return len(small), len(fresh)
            sleep(wait)
        raise CommitConflict(f"{self._sink.path}: other writers commit too often; compact it when they pause")

    def _table_to_compact(self) -> Table:
        try:
            return self._load()
        except Exception as error:  # of the catalog's client library, of any kind
            raise IcebergError(f"{self._sink.path}: {_line(error)}") from None

    # Commits

    def _commit(self, plan: Plan, batch: DataFrame, query: str, number: int) -> None:
        fresh: list[str] = []
        for wait in _waits():
            table = self._load()
            if int(table.properties.get(BATCH + query, -1)) >= number:
                return
            fresh, old = plan(table, batch, fresh)
            if _committed(table, fresh, old, {BATCH + query: str(number)}):
                return
            sleep(wait)
        raise CommitConflict(f"{self._sink.path}: other writers commit too often; batch {number} was not written")

    def _appended(self, table: Table, batch: DataFrame, fresh: list[str]) -> tuple[list[str], list[DataFile]]:
        """Files are written once, whatever number of commits they need."""
        if self._sink.mode == "complete":
            return self._written(table, batch), _files(table)
        return fresh or self._written(table, batch), []

    def _merged(self, table: Table, batch: DataFrame, fresh: list[str]) -> tuple[list[str], list[DataFile]]:
        """``fresh``: of an attempt at an earlier snapshot, which does not count."""
        old = _touched(batch, table, _files(table), self._sink.key)
        if not old:
            return self._written(table, batch), []
        both = _read(batch.sparkSession, table, old).withColumn(PART, F.lit(0))
        both = both.unionByName(batch.withColumn(PART, F.lit(1)), allowMissingColumns=True)
        rows = latest_by_key(both, self._sink.key, (*self._sink.order_by, PART)).drop(PART)
        return self._written(table, rows), old

    def _written(self, table: Table, rows: DataFrame) -> list[str]:
        """Write Parquet files, each of one partition of the table. Returns their addresses."""
        spark = rows.sparkSession
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        name = uuid.uuid4().hex
        directory = f"{table.location()}/data/{name}"
        parts = _transforms(table)
        writer = (rows.withColumn(PART, _part(parts)) if parts else rows).write
        (writer.partitionBy(PART) if parts else writer).parquet(_of_spark(directory))
        found = spark.read.schema(rows.schema).parquet(_of_spark(directory)).inputFiles()
        return [f"{directory}/{unquote(each).partition(name + '/')[2]}" for each in found]

    def _create(self, columns: Schema) -> None:
        from pyiceberg.transforms import parse_transform

        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        creating = self._catalog.create_table_transaction(self._name, columns)
        with creating as creation, creation.update_spec() as spec:
            for each in self._sink.partition_by:
                found = ICEBERG_PARTITION.fullmatch(each)
                spec.add_field(source_column(each), parse_transform(found["transform"] if found else "identity"))

    def _load(self) -> Table:
        return self._catalog.load_table(self._name)


def _open(name: str, properties: dict[str, str]) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise ConfigError(MISSING) from None
    try:
        return load_catalog(name, **properties)
    except Exception as error:  # of the catalog's client library, of any kind
        raise ConfigError(f"sink.options: the catalog {name} cannot be opened: {_line(error)}") from None


def _committed(table: Table, fresh: list[str], old: list[DataFile], properties: dict[str, str]) -> bool:
    """Commit; False if the table has changed since it was loaded."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    table.metadata.properties[RETRIES] = "0"  # here only, not in the table
    try:
        with table.transaction() as commit:
            names = commit.table_metadata.schema().name_mapping.model_dump_json()  # the files have no ids of columns
            commit.set_properties({**properties, NAMES: names})
            found = parquet_files_to_data_files(table.io, commit.table_metadata, iter(fresh))
            new = [file for file in found if file.record_count]
            if not old and not new:
                return True
            update = commit.update_snapshot(snapshot_properties=properties)
            with update.overwrite() if old else update.fast_append() as files:
                for file in old:
                    files.delete_data_file(file)
                for file in new:
                    files.append_data_file(file)
    except CommitFailedException:
        return False
    except ValueError as error:
        raise IcebergError(f"{'.'.join(table.name())}: {_line(error)}") from None
    return True


# Files of a table


def _files(table: Table) -> list[DataFile]:
    """Return the table's files. Raises IcebergError for those of which other files delete rows."""
    tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise IcebergError(
            f"{'.'.join(table.name())}: another program marks rows as deleted (merge-on-read); set its "
            "write.delete.mode, write.update.mode and write.merge.mode to copy-on-write, and compact the table there"
        )
    return [task.file for task in tasks]


def _read(spark: SparkSession, table: Table, files: Sequence[DataFile]) -> DataFrame:
    from starlingmq.pipeline.iceberg_types import spark_schema

    return spark.read.schema(spark_schema(table.schema())).parquet(*[_of_spark(file.file_path) for file in files])


def _touched(rows: DataFrame, table: Table, files: list[DataFile], key: Sequence[str]) -> list[DataFile]:
    """Return the files with a row of a key in ``rows``."""
    if not files:
        return []
    by_name = {_plain(file.file_path): file for file in files}
    old = _read(rows.sparkSession, table, files).select(*key, F.col("_metadata.file_path").alias(FILE)).alias("old")
    wanted = rows.select(*key).alias("new")
    same = [F.col(f"old.{name}").eqNullSafe(F.col(f"new.{name}")) for name in map(quoted, key)]
    condition = same[0]
    for each in same[1:]:
        condition = condition & each
    found = old.join(wanted, condition, "left_semi").select(FILE).distinct().collect()
    return [by_name[_plain(row[0])] for row in found]


def _plain(address: str) -> str:
    """Return what Spark's and Iceberg's spelling of an address have in common."""
    return unquote(address.partition("://")[2] or address.removeprefix("file:")).lstrip("/")


def _of_spark(address: str) -> str:
    return "s3a://" + address.removeprefix("s3://") if address.startswith("s3://") else address


# Partitions


def _transforms(table: Table) -> list[tuple[str, str]]:
    """Return the partition fields as (transform, column). Raises ConfigError for those that cannot be written."""
    found = []
    for field in table.spec().fields:
        column, transform = table.schema().find_column_name(field.source_id), str(field.transform)
        if transform not in TRANSFORMS or column is None:
            raise ConfigError(
                f"sink: the table {'.'.join(table.name())} is partitioned by {transform}({column}), which cannot be "
                f"written here; {', '.join(TRANSFORMS)} can"
            )
        found.append((transform, column))
    return found


def _part(parts: list[tuple[str, str]]) -> Column:
    """Return a name for a row's partition, which needs no escapes in a path."""
    values = [
        F.col(quoted(column)) if transform == "identity" else F.date_trunc(transform, F.col(quoted(column)))
        for transform, column in parts
    ]
    return F.md5(F.to_json(F.array(*[value.cast("string") for value in values]), {"ignoreNullFields": "false"}))


# The rest


def _waits() -> Iterator[float]:
    """Yield the seconds to wait after each attempt at a commit."""
    for attempt in range(ATTEMPTS):
        yield min(WAIT_SECONDS_MAX, 0.05 * 2**attempt) * random.SystemRandom().uniform(0.5, 1.0)


def _away(error: Exception) -> bool:
    """Whether a repetition may help. The outcome of a commit may be unknown: the repetition reads it first."""
    from pyiceberg.exceptions import CommitStateUnknownException, ServerError, ServiceUnavailableError

    passing = (CommitStateUnknownException, ServerError, ServiceUnavailableError)
    return isinstance(error, (OSError, *passing)) or type(error).__name__ == "OperationalError"  # of SQLAlchemy


def _line(error: Exception) -> str:
    """Return the first line of an error."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
