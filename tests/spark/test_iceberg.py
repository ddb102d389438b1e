"""Iceberg tables, with the catalog that PyIceberg brings: SQLite and files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline import iceberg
from starlingmq.pipeline.config import SinkConfig
from starlingmq.pipeline.iceberg import BATCH, CommitConflict, IcebergError, IcebergTable
from starlingmq.pipeline.run import PipelineError
from starlingmq.spark.sink import QUERY_ID
from tests.spark.brokers import StreamBroker
from tests.spark.test_pipeline import plan, run, tree, written

if TYPE_CHECKING:  # half a second, which every run of any test would take
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "lake.plant.readings"
SCHEMA = {"format": "json", "schema": "id string, value int"}


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.fixture
def catalog(properties: dict[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    return load_catalog("lake", **properties)


@pytest.fixture
def query(spark: SparkSession) -> Iterator[None]:
    spark.sparkContext.setLocalProperty(QUERY_ID, "one")
    yield
    spark.sparkContext.setLocalProperty(QUERY_ID, "")


def ready(spark: SparkSession, properties: dict[str, str], schema: str, **more: Any) -> IcebergTable:
    options = properties | more.pop("options", {})
    table = IcebergTable(SinkConfig(format="iceberg", path=NAME, options=options, **more))
    table.prepare(spark.createDataFrame([], schema).schema)
    return table


def rows(catalog: Catalog) -> list[tuple[Any, ...]]:
    found = catalog.load_table("plant.readings").scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=str)


def reading(device: str, value: int) -> bytes:
    return json.dumps({"id": device, "value": value}).encode()


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
def test_a_pipeline_appends_each_row_once(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path, properties: dict[str, str], catalog: Catalog
) -> None:
    sink = {"format": "iceberg", "path": NAME, "options": properties, "partition_by": ["id", "day(timestamp)"]}
    steps = [{"sql": "SELECT id, value, timestamp, offset FROM rows"}]
    pipeline = tree(tmp_path, broker.address, decode=SCHEMA, steps=steps, sink=sink)
    broker.publish([reading("a b/ü%", 1), reading("b", 2), b'{"value": 7}'])
    run(spark, tmp_path, pipeline)
    broker.publish([reading("a b/ü%", 3)])
    run(spark, tmp_path, pipeline)
    assert [(row[0], row[1], row[3]) for row in rows(catalog)] == [
        ("a b/ü%", 1, 0),
        ("a b/ü%", 3, 3),
        ("b", 2, 1),
        (None, 7, 2),
    ]
    table = catalog.load_table("plant.readings")
    assert [str(field.transform) for field in table.spec().fields] == ["identity", "day"]
    assert table.scan(row_filter="id = 'b'").to_arrow().num_rows == 1
    files = table.inspect.files().to_pylist()
    assert len(files) == 4, "a file for each partition and batch"


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
def test_every_type_of_column_comes_back(spark: SparkSession, properties: dict[str, str], query: None) -> None:
    batch = spark.sql(
        "SELECT 1Y AS t, 2S AS s, 3 AS i, 4L AS l, cast(1.5 AS float) AS f, 2.5D AS d, true AS b, "
        "cast(3.125 AS decimal(12,3)) AS dec, 'é' AS text, X'00FF' AS raw, date'2026-01-02' AS day, "
        "timestamp'2026-01-02T03:04:05.123456Z' AS at, timestamp_ntz'2026-01-02T03:04:05.654321' AS local, "
        "array('a', null) AS many, map('k', 1) AS named, "
        "named_struct('x', 1, 'y', array(named_struct('z', 'q'))) AS deep"
    )
    columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in batch.schema)
    nulls = spark.createDataFrame([tuple([None] * len(batch.columns))], columns)
    table = IcebergTable(SinkConfig(format="iceberg", path=NAME, options=properties))
    table.prepare(batch.schema)
    table.write(batch, 0)
    table.write(nulls, 1)
    table.write(batch.where("false"), 2)
    found = iceberg._read(spark, table._load(), iceberg._files(table._load())).collect()
    assert sorted(map(str, found)) == sorted(map(str, [*batch.collect(), *nulls.collect()]))
    assert table._load().properties[BATCH + "one"] == "2"


def test_a_batch_that_is_written_again_changes_nothing(
    spark: SparkSession, properties: dict[str, str], catalog: Catalog, query: None
) -> None:
    table = ready(spark, properties, "id long")
    for number, first in ((0, 0), (0, 0), (1, 10), (0, 0), (1, 10)):
        table.write(spark.range(first, first + 3), number)
    spark.sparkContext.setLocalProperty(QUERY_ID, "another")
    table.write(spark.range(20, 21), 0)
    assert rows(catalog) == [(number,) for number in (0, 1, 10, 11, 12, 2, 20)]
    assert len(list(catalog.load_table("plant.readings").snapshots())) == 3


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
def test_an_attempt_that_seemed_dead_commits_first(
    spark: SparkSession, properties: dict[str, str], catalog: Catalog, query: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of the second attempt is made from a snapshot that is no longer the last one."""
    table, other = (ready(spark, properties, "id long") for _ in range(2))
    commit = iceberg._committed
    late = iter([True])

    def overtaken(*given: Any) -> bool:
        if next(late, False):
            other.write(spark.range(3), 0)
        return commit(*given)

    monkeypatch.setattr(iceberg, "_committed", overtaken)
    table.write(spark.range(3), 0)
    assert rows(catalog) == [(0,), (1,), (2,)]


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
@pytest.mark.parametrize("key", [(), ("id",)])
def test_other_writers_cost_another_commit(
    spark: SparkSession,
    properties: dict[str, str],
    catalog: Catalog,
    query: None,
    monkeypatch: pytest.MonkeyPatch,
    key: tuple[str, ...],
) -> None:
    table = ready(spark, properties, "id long", key=key, order_by=key)
    table.write(spark.range(3), 0)
    commit = iceberg._committed
    faster = iter(range(10, 13))

    def overtaken(mine: Table, *given: Any) -> bool:
        number = next(faster, None)
        if number is not None:
            other = catalog.load_table("plant.readings")
            other.append(spark.range(number, number + 1).toArrow())
        return commit(mine, *given)

    monkeypatch.setattr(iceberg, "_committed", overtaken)
    table.write(spark.range(2, 5), 1)
    wanted = [0, 1, 2, 3, 4, 10, 11, 12] + ([] if key else [2])
    assert rows(catalog) == sorted(((number,) for number in wanted), key=str)
    monkeypatch.setattr(iceberg, "_committed", lambda *given: False)
    monkeypatch.setattr(iceberg, "sleep", lambda seconds: None)
    with pytest.raises(CommitConflict, match="batch 2 was not written"):
        table.write(spark.range(1), 2)


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
def test_the_latest_row_of_each_key_stays(
    spark: SparkSession, properties: dict[str, str], catalog: Catalog, query: None
) -> None:
    schema = "id string, at int, part int, text string"
    table = ready(spark, properties, schema, key=("id",), order_by=("at", "part"), partition_by=("id",))
    batches = (
        [("a", None, None, "old"), (None, 1, 1, "old"), ("b", 5, None, "old"), ("c", 5, 5, "old"), ("d", 1, 1, "left")],
        [
            ("a", None, None, "equal"),
            (None, 2, 0, "new"),
            ("b", 5, 0, "new"),
            ("c", 5, None, "older"),
            ("e", 1, 1, "x"),
        ],
        [("a", 1, None, "new"), ("b", None, 9, "older"), ("c", 4, 9, "older"), ("e", 1, 2, "y"), ("e", 1, 3, "z")],
    )
    for number, batch in enumerate(batches):
        untouched = {file.file_path for file in iceberg._files(table._load())} if number else set()
        table.write(spark.createDataFrame(batch, schema), number)
        kept = untouched & {file.file_path for file in iceberg._files(table._load())}
        assert not number or kept, "the file of d (and others) is not written anew"
    found = [(row[0], row[3]) for row in rows(catalog)]
    assert found == [("a", "new"), ("b", "new"), ("c", "old"), ("d", "left"), ("e", "z"), (None, "new")]


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
def test_columns_come_with_mergeschema_only(
    spark: SparkSession, properties: dict[str, str], catalog: Catalog, query: None
) -> None:
    ready(spark, properties, "id string, value int").write(spark.createDataFrame([("a", 1)], "id string, value int"), 0)
    schema = "id string, value long, unit string"
    with pytest.raises(ConfigError, match=r"has no column unit; leave it out in a step, or set options: {mergeSchema"):
        ready(spark, properties, schema)
    evolves = {"mergeSchema": "true"}
    table = ready(spark, properties, schema, options=evolves, key=("id",), order_by=("value",))
    table.write(spark.createDataFrame([("a", 2**40, "C"), ("b", 1, None)], schema), 1)
    assert rows(catalog) == [("a", 2**40, "C"), ("b", 1, None)]
    wrong = ready(spark, properties, "id string")
    with pytest.raises(IcebergError, match="readings") as told:
        wrong.write(spark.createDataFrame([("a", "text")], "id string, value string"), 2)
    assert "\n" not in str(told.value)


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
def test_small_files_become_large_ones(
    spark: SparkSession, properties: dict[str, str], catalog: Catalog, query: None
) -> None:
    table = ready(spark, properties, "id long, part long", partition_by=("part",))
    for number in range(4):
        table.write(spark.range(10).select("id", (F.col("id") % 2).alias("part")), number)
    before = rows(catalog)
    assert table.compact(spark) == (16, 2)
    assert rows(catalog) == before
    assert table.compact(spark)[1] == 2
    table.write(spark.range(1).select("id", "id").toDF("id", "part"), 3)
    assert rows(catalog) == before, "the property of the last batch survives"


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
def test_the_command_compacts_a_table(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], catalog: Catalog, query: None
) -> None:
    table = ready(spark, properties, "id long")
    for number in range(3):
        table.write(spark.range(number, number + 1), number)
    pipeline = tree(tmp_path, sink={"format": "iceberg", "path": NAME, "options": properties})
    done = compacted(written(tmp_path, pipeline))
    assert (done.returncode, done.stdout) == (0, f"{NAME}: 3 small files are 1 now\n"), done.stderr
    assert rows(catalog) == [(0,), (1,), (2,)]
    pipeline["sink"]["path"] = "lake.plant.absent"
    done = compacted(written(tmp_path, pipeline))
    assert done.returncode == 2
    assert "lake.plant.absent: Table does not exist" in done.stderr.splitlines()[-1]


def compacted(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "starlingmq", "pipeline", "compact", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long(kept="tests/spark/test_iceberg.py::test_a_batch_that_is_written_again_changes_nothing")
def test_what_cannot_be_written_is_told_in_a_line(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path, properties: dict[str, str], catalog: Catalog, query: None
) -> None:
    for sink, words in (
        ({"path": "readings"}, r"sink.path: readings is not a table of Iceberg; write catalog.namespace.table"),
        ({"path": NAME, "options": {"type": "nonsense"}}, "the catalog lake cannot be opened: .*nonsense"),
        ({"path": NAME, "options": {"type": "rest", "uri": "http://127.0.0.1:1"}}, "the catalog lake cannot be opened"),
        ({"path": NAME, "partition_by": ["day(absent)"], "options": properties}, "the result has no column absent"),
    ):
        with pytest.raises(PipelineError, match=f"hot.yaml: sink.*{words}" if "sink" not in words else words) as told:
            plan(spark, tmp_path, tree(tmp_path, broker.address, sink={"format": "iceberg", **sink})).start()
        assert "\n" not in str(told.value)
    with pytest.raises(ConfigError, match=r"sink.mode: iceberg replaces rows by key only"):
        plan(spark, tmp_path, tree(tmp_path, sink={"format": "iceberg", "path": NAME, "mode": "update"}))
    table = ready(spark, properties, "id long")
    with catalog.load_table("plant.readings").update_spec() as spec:
        spec.add_field("id", "bucket[4]")
    with pytest.raises(ConfigError, match=r"partitioned by bucket\[4\]\(id\), which cannot be written here"):
        table.prepare(spark.range(1).schema)
