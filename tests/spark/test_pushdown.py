"""Why predicates of Spark do not reach the nodes, and how much less is read with the options that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType

from starlingmq.bulk.protocol import Ticket
from starlingmq.spark.nodes import NodeConnection, StreamError
from starlingmq.spark.read_options import read_options
from starlingmq.spark.source import BatchReader
from tests.spark.brokers import StreamBroker, batches_of

ENABLED: Final = "spark.sql.python.filterPushdown.enabled"


class PushedReader(DataSourceReader):
    def __init__(self) -> None:
        self.wanted: object = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            if isinstance(each, EqualTo):
                self.wanted = each.value
            yield each  # Spark applies it again

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(n,) for n in range(10) if self.wanted in (None, n)])


class PushedSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pushed"

    def schema(self) -> StructType:
        return StructType([StructField("n", IntegerType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushedReader()


@pytest.mark.long(alone="it is about Spark, and fails once another version of it is installed")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_spark_keeps_the_filters_of_one_query_for_another(spark: SparkSession) -> None:
    """If this fails, Spark has been mended, and ``BatchReader`` can have ``pushFilters``."""
    before = spark.conf.get(ENABLED)
    spark.conf.set(ENABLED, "true")
    try:
        spark.dataSource.register(PushedSource)
        rows = spark.read.format("pushed").load()
        assert (rows.count(), rows.where("n = 1").count()) == (10, 1)
        assert rows.count() == 1, "10 rows are right"
        both = rows.where("n = 1").union(rows.where("n = 2"))
        assert both.count() == 1, "2 rows are right"
    finally:
        spark.conf.set(ENABLED, str(before))
    assert BatchReader.pushFilters is DataSourceReader.pushFilters


def test_the_options_of_the_source_are_applied_at_the_nodes(broker: StreamBroker) -> None:
    for topic in ("a", "b", "b", "b"):
        broker.publish([b"x" * 5000] * 10, topic)

    def bytes_read(**options: str) -> int:
        return sum(batch.get_total_buffer_size() for _, batch in batches_of(broker.options | options))

    everything = bytes_read()
    assert bytes_read(topicFilter="a") < everything * 0.3
    assert bytes_read(startingOffsets='{"n1": 30}') < everything * 0.3
    assert bytes_read(columns="offset, topic") < everything * 0.05


def test_a_node_sends_the_wanted_columns_only(broker: StreamBroker) -> None:
    broker.publish([b"x"] * 3, "a")
    connection = NodeConnection(broker.address, read_options(broker.options, streaming=False))
    ticket = Ticket(stream="all", start=0, end=3, columns=["offset", "topic"])
    ((batch, progress),) = connection.rows(ticket, "n1")
    assert batch.to_pydict() == {"offset": [0, 1, 2], "topic": ["a"] * 3} and progress.next == 3
    with pytest.raises(StreamError, match="a ticket: Invalid enum value 'size'"):
        list(connection.rows(msgspec.structs.replace(ticket, columns=["size"]), "n1"))
    connection.close()


@pytest.mark.long(kept="tests/spark/test_pushdown.py::test_a_node_sends_the_wanted_columns_only")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_query_has_the_columns_of_the_option(spark: SparkSession, broker: StreamBroker) -> None:
    broker.publish([b"x", b"y"], "a")
    rows = spark.read.format("starlingmq").options(**broker.options, columns="payload,offset").load()
    assert rows.columns == ["payload", "offset"]
    assert sorted((bytes(row.payload), row.offset) for row in rows.collect()) == [(b"x", 0), (b"y", 1)]
    assert rows.count() == 2
    with pytest.raises(PySparkException, match="columns: there is no size; the columns are topic, payload"):
        spark.read.format("starlingmq").options(**broker.options, columns="size").load()
