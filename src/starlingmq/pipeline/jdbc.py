"""Batches into a table of a database. With PostgreSQL each row once:

    the batch        -> starlingmq_HASH beside TABLE, by Spark's tasks, in place of an earlier attempt
    one transaction: the batch is recorded in starlingmq_batches, unless it is there
                     rows move from there into TABLE; with ``key`` they replace older rows of the same key

A process that dies before the transaction ends leaves the table as it was; the batch is then written again. An attempt
after the transaction finds the record and changes nothing. The record is the first statement of the transaction, so an
attempt whose database session outlives its process is waited for.

Other databases get each row at least once, by Spark's own writer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from starlingmq.pipeline.config import SinkConfig
from starlingmq.pipeline.keyed_rows import latest_by_key
from starlingmq.spark.sink import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CREATE: Final = "CREATE TABLE IF NOT EXISTS starlingmq_batches (query varchar(64) PRIMARY KEY, batch bigint NOT NULL)"
RECORDED: Final = "SELECT batch FROM starlingmq_batches WHERE query = ?"
BEGIN: Final = "INSERT INTO starlingmq_batches (query, batch) VALUES (?, -1)"
RECORD: Final = "UPDATE starlingmq_batches SET batch = CAST(? AS bigint) WHERE query = ? AND batch < CAST(? AS bigint)"
POSTGRESQL: Final = "jdbc:postgresql:"
DRIVER: Final = "org.postgresql.Driver"
VALID_SECONDS: Final = 30
IN_SCHEMA: Final = re.compile(r'((?:"(?:[^"]|"")*"|[^".])+\.)(?:"(?:[^"]|"")*"|[^".])+')


class DatabaseAway(Exception):
    """The database ended the connection, or does not answer."""


class PostgresqlTable:
    """The options of the sink are those of Spark's JDBC source."""

    def __init__(self, sink: SinkConfig) -> None:
        self._sink = sink
        self._options = dict(sink.options)
        self._url = self._options["url"]
        self._table = self._options["dbtable"]
        self._options.setdefault("driver", DRIVER)

    def write(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        query = str(spark.sparkContext.getLocalProperty(QUERY_ID))
        stage = beside(self._table, query)
        with self._connection(spark) as connection:
            self._prepare(connection, batch, query)
            if self._recorded(connection, query) >= number:
                return
            if self._sink.key:
                batch = latest_by_key(batch, self._sink.key, self._sink.order_by)
            self._save(connection, batch, "overwrite", stage)
            if _update(connection, RECORD, str(number), query, str(number)):
                _update(connection, self._move(batch.columns, stage))
            connection.commit()
            _update(connection, f"DROP TABLE {stage}")
            connection.commit()

    def _save(self, connection: Any, batch: DataFrame, mode: str, table: str) -> None:
        """Write by Spark's writer. Its errors do not tell whether the database is away; this connection does. Raises
        DatabaseAway.
        """
        try:
            batch.write.format("jdbc").mode(mode).options(**self._options | {"dbtable": table}).save()
        except Exception as error:
            if connection.isValid(VALID_SECONDS):
                raise
            raise DatabaseAway(f"the database of {self._table} does not answer") from error

    def _prepare(self, connection: Any, batch: DataFrame, query: str) -> None:
        """Create the table, its key and the record of the query, unless they exist."""
        self._save(connection, batch.limit(0), "append", self._table)
        statements = [CREATE]
        if self._sink.key:
            key = _names(self._sink.key)
            index = f"starlingmq_key_{_hash(self._table, key)}"
            on = f"{self._table} ({key}) NULLS NOT DISTINCT"
            statements.append(f"CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {on}")
        for statement in statements:
            _update(connection, statement)
        if self._recorded(connection, query) < -1:
            _update(connection, BEGIN, query)
        connection.commit()

    def _recorded(self, connection: Any, query: str) -> int:
        """Return the last batch; -2 if the query has no record."""
        statement = connection.prepareStatement(RECORDED)
        try:
            statement.setString(1, query)
            found = statement.executeQuery()
            return int(found.getLong(1)) if found.next() else -2
        finally:
            statement.close()

    def _move(self, columns: Sequence[str], stage: str) -> str:
        names = _names(columns)
        move = f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {stage}"  # noqa: S608 the operator's own names
        if not self._sink.key:
            return move
        others = [name for name in columns if name not in self._sink.key]
        if not others:
            return f"{move} ON CONFLICT ({_names(self._sink.key)}) DO NOTHING"
        changes = ", ".join(f"{_name(name)} = EXCLUDED.{_name(name)}" for name in others)
        newer = newer_or_equal(self._sink.order_by, self._table)
        return f"{move} ON CONFLICT ({_names(self._sink.key)}) DO UPDATE SET {changes} WHERE {newer}"

    @contextmanager
    def _connection(self, spark: SparkSession) -> Iterator[Any]:
        jvm: Any = spark.sparkContext._jvm
        jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(self._options["driver"])
        properties = jvm.java.util.Properties()
        for name in ("user", "password"):
            if name in self._options:
                properties.setProperty(name, self._options[name])
        connection = jvm.java.sql.DriverManager.getConnection(self._url, properties)
        try:
            connection.setAutoCommit(False)
            yield connection
        finally:
            connection.close()


def into_database(sink: SinkConfig) -> Callable[[DataFrame, int], None]:
    if sink.options["url"].startswith(POSTGRESQL):
        return PostgresqlTable(sink).write

    def append(batch: DataFrame, _: int) -> None:
        batch.write.format("jdbc").mode("append").options(**sink.options).save()

    return append


def _update(connection: Any, text: str, *values: str) -> int:
    """Execute a statement, and return the number of changed rows."""
    statement = connection.prepareStatement(text)
    try:
        for position, value in enumerate(values, 1):
            statement.setString(position, value)
        return int(statement.executeUpdate())
    finally:
        statement.close()


def beside(table: str, query: str) -> str:
    """Return the staging table: in the schema of ``table``, with a name that PostgreSQL does not cut at 63 bytes."""
    schema = IN_SCHEMA.fullmatch(table)
    return f"{schema[1] if schema else ''}starlingmq_{_hash(table, query)}"


def newer_or_equal(order: Sequence[str], table: str) -> str:
    """Return the condition that the new row is not older than the row of the table; null is older than any value."""
    if not order:
        return "TRUE"
    new, old = f"EXCLUDED.{_name(order[0])}", f"{table}.{_name(order[0])}"
    newer = f"({new} IS NOT NULL AND ({old} IS NULL OR {new} > {old}))"
    return f"({newer} OR ({new} IS NOT DISTINCT FROM {old} AND {newer_or_equal(order[1:], table)}))"


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(_name, names))
