"""Result and dead letters of a pipeline from one query: which pipelines can, and each row once after kills."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.run import Pipeline, PipelineError
from tests.spark.brokers import TOKEN, StreamBroker
from tests.spark.recipes import run_all
from tests.spark.test_exactly_once import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EACH: Final = 60
WINDOW: Final = "SELECT window(timestamp, '1 minute').start AS minute, count(*) AS n FROM rows GROUP BY 1"
PLACES: Final = {"name": "places", "format": "csv", "path": "places.csv", "options": {"header": "true"}}


def tree(tmp_path: Path, address: str = "127.0.0.1:1", **more: Any) -> dict[str, Any]:
    return {
        "name": "both",
        "source": {"servers": [address], "stream": "all", "token": TOKEN, "start": "earliest"},
        "decode": {"format": "json", "schema": "n bigint"},
        "sink": {"path": str(tmp_path / "out")},
        "dead_letter": {"path": str(tmp_path / "dead")},
        "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": {"available_now": True},
    } | more


def written(tmp_path: Path, pipeline: dict[str, Any]) -> Path:
    file = tmp_path / "both.yaml"
    file.write_text(yaml.safe_dump(pipeline))
    return file


def planned(spark: SparkSession, tmp_path: Path, **more: Any) -> Pipeline:
    (tmp_path / "places.csv").write_text("n,place\n1,roof\n")
    places = PLACES | {"path": str(tmp_path / "places.csv")}
    file = written(tmp_path, tree(tmp_path, tables=[places], **more))
    return Pipeline(spark, read_pipeline(file), file)


@pytest.mark.parametrize(
    ("steps", "more", "once"),
    [
        pytest.param([], {}, True, marks=pytest.mark.long),
        pytest.param(["SELECT n + 1 AS n FROM rows WHERE n > 2"], {}, True, marks=pytest.mark.long),
        (["SELECT n, explode(array(1, 2)) AS x FROM rows", "SELECT * FROM a JOIN places USING (n)"], {}, True),
        pytest.param(["SELECT n FROM rows UNION ALL SELECT n FROM rows WHERE n > 5"], {}, True, marks=pytest.mark.long),
        (["SELECT * FROM rows LEFT JOIN (SELECT n, max(place) AS p FROM places GROUP BY n) USING (n)"], {}, True),
        ([WINDOW], {"watermark": {"column": "timestamp", "delay": "1m"}}, False),
        pytest.param(["SELECT DISTINCT n FROM rows"], {}, False, marks=pytest.mark.long),
        pytest.param(["SELECT n FROM rows LIMIT 3"], {}, False, marks=pytest.mark.long),
        (["SELECT a.n FROM rows a JOIN rows b ON a.n = b.n"], {}, False),
        pytest.param(["SELECT n FROM rows WHERE n IN (SELECT n FROM places)"], {}, True, marks=pytest.mark.long),
        (["SELECT 't' AS topic, string(n) AS payload FROM rows"],
         {"sink": {"format": "topic", "options": {"servers": "mqtt://127.0.0.1:1"}}}, False),
    ],
)  # fmt: skip
def test_steps_that_treat_each_row_on_its_own_need_one_query(
    spark: SparkSession, tmp_path: Path, steps: list[str], more: dict[str, Any], once: bool
) -> None:
    named = [{"name": "result" if index == len(steps) - 1 else "a", "sql": sql} for index, sql in enumerate(steps)]
    found = planned(spark, tmp_path, steps=named, **more)
    assert (found.both is not None) == once
    assert (found.malformed is None) == once


def test_a_checkpoint_of_one_query_is_not_continued_by_two(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "result").mkdir(parents=True)
    (tmp_path / "checkpoint" / "result" / "starlingmq-single-read").write_bytes(b"")
    assert planned(spark, tmp_path).both is not None
    with pytest.raises(PipelineError, match=r"steps: .* use another checkpoint and another dead_letter\.path"):
        planned(spark, tmp_path, steps=[{"sql": "SELECT n FROM rows LIMIT 3"}])


def test_a_checkpoint_of_two_queries_is_continued_by_two(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "dead_letter" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "dead_letter" / "offsets" / "0").write_bytes(b"")
    assert planned(spark, tmp_path).malformed is not None


@pytest.mark.parametrize("dead_letter", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_directory_of_another_query_is_refused_before_a_row_is_left_out(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path, dead_letter: bool
) -> None:
    pipeline = tree(tmp_path, broker.address)
    if not dead_letter:
        del pipeline["dead_letter"]

    def run(checkpoint: str) -> None:
        file = written(tmp_path, pipeline | {"checkpoint": str(tmp_path / checkpoint)})
        run_all(Pipeline(spark, read_pipeline(file), file))

    def found() -> list[int]:
        return sorted(row.n for row in spark.read.parquet(str(tmp_path / "out")).collect())

    broker.publish([b'{"n": 1}', b'{"n": 2}'])
    run("checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    broker.publish([b'{"n": 3}'])
    run("checkpoint")
    broker.publish([b'{"n": 4}'])
    with pytest.raises(PipelineError, match=r"sink\.path: .*has files of query .* and the checkpoint is new"):
        run("deleted")
    with pytest.raises(PipelineError, match=r"sink\.path: .*batches up to 1, and the checkpoint has begun 1 of them"):
        run("older")
    for marker in tmp_path.glob("*/_starlingmq_query"):  # as in a directory of an earlier release
        marker.unlink()
    with pytest.raises(PipelineError, match=r"batches up to 1, and the checkpoint has begun none of them"):
        run("deleted")
    assert found() == [1, 2, 3]
    run("checkpoint")
    assert found() == [1, 2, 3, 4]


@pytest.mark.long(
    kept="tests/spark/test_single_read.py::test_a_directory_of_another_query_is_refused_before_a_row_is_left_out"
)
def test_a_directory_that_begins_later_has_a_whole_log(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    pipeline = tree(tmp_path, broker.address)
    pipeline["source"]["max_rows"] = 2
    letters = pipeline.pop("dead_letter")

    def run(first: int, end: int) -> None:
        """In as many batches as numbers: Spark merges the log of a directory after ten."""
        broker.publish([each % number for number in range(first, end) for each in (b'{"n": %d}', b"bad %d")])
        file = written(tmp_path, pipeline)
        run_all(Pipeline(spark, read_pipeline(file), file))

    run(0, 3)
    pipeline["sink"] = {"path": str(tmp_path / "out2")}
    run(3, 5)
    pipeline["sink"] = {"path": str(tmp_path / "out4")}
    run(5, 12)
    pipeline["dead_letter"] = letters
    run(12, 22)
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "out4")).where("n >= 0").collect()) == [
        *range(5, 22)
    ]
    found = spark.read.parquet(str(tmp_path / "dead")).collect()
    assert sorted(bytes(row.payload) for row in found) == [b"bad %d" % number for number in range(12, 22)]


def test_foreign_files_are_not_hidden(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "out"))
    with pytest.raises(PipelineError, match=r"sink\.path: .*which no query wrote"):
        planned(spark, tmp_path).start()


def test_settings_of_a_batch_under_way_are_not_changed(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    broker.publish([b'{"n": "1"}', b'{"n": 2}', b"bad"])
    stops = tree(tmp_path, broker.address, steps=[{"sql": "SELECT raise_error('stop') FROM rows"}])
    file = written(tmp_path, stops)
    query = Pipeline(spark, read_pipeline(file), file).start()[0]
    with pytest.raises(PySparkException, match="stop"):
        query.awaitTermination()
    changed = tree(tmp_path, broker.address, decode={"format": "json", "schema": "n string"})
    with pytest.raises(PipelineError, match="decode, dead_letter: batch 0 was not completed with the earlier settings"):
        file = written(tmp_path, changed)
        Pipeline(spark, read_pipeline(file), file).start()
    for settings, repeated in ((tree(tmp_path, broker.address), [("both", 0)]), (changed, [])):
        file = written(tmp_path, settings)
        pipeline = Pipeline(spark, read_pipeline(file), file)
        run_all(pipeline)
        assert pipeline.repeated == repeated
    assert [row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [2]
    letters = spark.read.parquet(str(tmp_path / "dead")).orderBy("offset").collect()
    assert [bytes(row.payload) for row in letters] == [b'{"n": "1"}', b"bad"]


@pytest.mark.long(kept="tests/spark/test_pipeline.py::test_a_pipeline_with_tables_steps_and_dead_letters")
def test_result_and_dead_letters_have_every_row_once_whoever_is_killed(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    chance = random.Random()
    payloads = [b'{"n": %d}' % number if number % 3 else b"bad %d" % number for number in range(3 * EACH)]
    pipeline = tree(tmp_path, broker.address, trigger={"every": "0s"})
    pipeline["source"]["max_rows"] = 7
    pipeline["steps"] = [{"sql": "SELECT n, offset, offset % 2 AS odd FROM rows"}]
    pipeline["sink"]["partition_by"] = ["odd"]
    for part in range(3):
        broker.publish(payloads[part * EACH : (part + 1) * EACH])
        if part == 2:
            break
        driver = Driver(broker.address, tmp_path, "--pipeline", str(written(tmp_path, pipeline)))
        try:
            driver.batches(2)
            time.sleep(chance.random())  # no event to be waited for: any moment will do
        finally:
            driver.kill()
    file = written(tmp_path, pipeline | {"trigger": {"available_now": True}})
    (query,) = run_all(Pipeline(spark, read_pipeline(file), file))
    assert max(progress["numInputRows"] for progress in query.recentProgress) == 7, "the stream is read once"
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [(row.n, row.offset, row.odd) for row in rows] == [(n, n, n % 2) for n in range(3 * EACH) if n % 3]
    letters = spark.read.parquet(str(tmp_path / "dead")).orderBy("offset").collect()
    assert [(row.offset, bytes(row.payload)) for row in letters] == [
        (n, payload) for n, payload in enumerate(payloads) if n % 3 == 0
    ]
    assert {row.reason for row in letters} == {"the payload is not JSON"}
