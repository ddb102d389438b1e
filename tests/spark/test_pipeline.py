"""Pipelines from files: run in the suite's Spark, and what is wrong with them said in one line."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import convert
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from starlingmq.cli.pipeline_output import RunOutput
from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.config import SourceConfig, read_pipeline
from starlingmq.pipeline.object_store import arrow_environment
from starlingmq.pipeline.packages import resolve
from starlingmq.pipeline.run import Pipeline, PipelineError, failure, reach, source_options
from starlingmq.pipeline.status import Status, all_statuses, metrics_text, read_status
from starlingmq.spark.read_options import read_options
from tests.spark.brokers import TOKEN, StreamBroker
from tests.spark.recipes import run_all


def tree(tmp_path: Path, address: str = "127.0.0.1:1", **more: Any) -> dict[str, Any]:
    return {
        "name": "hot",
        "source": {"servers": [address], "stream": "all", "token": TOKEN, "node_timeout": 1},
        "sink": {"path": str(tmp_path / "hot.parquet")},
        "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": {"available_now": True},
    } | more


def written(tmp_path: Path, pipeline: dict[str, Any] | str) -> Path:
    file = tmp_path / "hot.yaml"
    file.write_text(pipeline if isinstance(pipeline, str) else yaml.safe_dump(pipeline))
    return file


def plan(spark: SparkSession, tmp_path: Path, pipeline: dict[str, Any] | str) -> Pipeline:
    file = written(tmp_path, pipeline)
    return Pipeline(spark, read_pipeline(file), file)


def run(spark: SparkSession, tmp_path: Path, pipeline: dict[str, Any]) -> Pipeline:
    planned = plan(spark, tmp_path, pipeline)
    reach(planned.config, planned.path)
    run_all(planned)
    return planned


READINGS = [b'{"id": "a", "value": 1}', b'{"id": "b", "value": 20}', b"no json", b'{"id": "a", "value": 30}']
STEPS = [
    {"name": "warm", "sql": "SELECT id, value, offset FROM rows WHERE value > 10"},
    {"sql": "SELECT w.*, d.place FROM warm w JOIN devices d USING (id)"},
]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_pipeline_with_tables_steps_and_dead_letters(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    broker.publish([*READINGS, b"\xff\x00", b"", b'{"id": "c", "value": "x"}'])
    (tmp_path / "devices.csv").write_text("id,place\na,roof\nb,cellar\n")
    pipeline = tree(
        tmp_path,
        broker.address,
        decode={"format": "json", "schema": "id string, value int"},
        tables=[{"name": "devices", "format": "csv", "path": f"{tmp_path}/devices.csv", "options": {"header": "true"}}],
        steps=STEPS,
        sink={"path": str(tmp_path / "hot"), "partition_by": ["place"]},
        dead_letter={"path": str(tmp_path / "dead")},
    )
    for _ in range(2):  # the second time there is nothing new
        planned = run(spark, tmp_path, pipeline)
        assert planned.malformed is None, "one query writes both"
        rows = spark.read.parquet(str(tmp_path / "hot")).orderBy("offset").collect()
        assert [(row.id, row.value, row.place) for row in rows] == [("b", 20, "cellar"), ("a", 30, "roof")]
        letters = spark.read.parquet(str(tmp_path / "dead")).orderBy("offset").collect()
        assert [(row.topic, row.node, row.offset, bytes(row.payload), row.reason) for row in letters] == [
            ("a/b", "n1", 2, b"no json", "the payload is not JSON"),
            ("a/b", "n1", 4, b"\xff\x00", "the payload is not UTF-8"),
            ("a/b", "n1", 5, b"", "the payload is empty"),
            ("a/b", "n1", 6, b'{"id": "c", "value": "x"}', "value does not fit int: x"),
        ]
    assert (tmp_path / "hot" / "place=roof").is_dir()


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_pipeline.py::test_a_pipeline_with_tables_steps_and_dead_letters")
@pytest.mark.timeout(240)
def test_windows_csv_and_back_to_topics(spark: SparkSession, broker: StreamBroker, tmp_path: Path) -> None:
    broker.publish([b"a;1", b"a;2", b"b;x", b"", b"\xff;1"], "in")
    sql = "SELECT concat('out/', id) AS topic, string(value) AS payload FROM rows"
    pipeline = tree(
        tmp_path,
        broker.address,
        decode={"format": "csv", "schema": "id string, value int", "options": {"sep": ";"}},
        steps=[{"sql": sql}],
        sink={"format": "topic", "options": {"servers": broker.url}},
        dead_letter={"path": str(tmp_path / "dead"), "format": "csv"},
    )
    pipeline["source"]["topics"] = ["in"]
    planned = run(spark, tmp_path, pipeline)
    assert planned.malformed is not None
    options = broker.options | {"topicFilter": "out/#"}
    found = spark.read.format("starlingmq").options(**options).load().orderBy("offset").collect()
    assert [(row.topic, bytes(row.payload)) for row in found] == [("out/a", b"1"), ("out/a", b"2")]
    schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in planned.malformed.schema.fields)
    letters = spark.read.csv(str(tmp_path / "dead"), schema=schema).orderBy("offset").collect()
    assert [(base64.b64decode(row.payload or ""), row.reason, row.properties) for row in letters] == [
        (b"b;x", "value does not fit int: x", "[]"),
        (b"", "the payload is empty", "[]"),
        (b"\xff;1", "the payload is not UTF-8", "[]"),
    ]
    counts = plan(
        spark,
        tmp_path,
        tree(
            tmp_path,
            watermark={"delay": "10s"},
            steps=[{"sql": "SELECT window(timestamp, '1 minute') AS minute, count(*) AS n FROM rows GROUP BY 1"}],
        ),
    )
    assert counts.result.columns == ["minute", "n"] and counts.result.isStreaming


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_pipeline.py::test_a_pipeline_with_tables_steps_and_dead_letters")
@pytest.mark.timeout(240)
def test_errors_name_their_place_in_the_file(spark: SparkSession, broker: StreamBroker, tmp_path: Path) -> None:
    text = yaml.safe_dump(tree(tmp_path, broker.address))
    lines = len(text.splitlines())
    for sql, line, words in (
        ("  - sql: SELECT nothing FROM rows", lines + 2, "step result: .*nothing"),
        ("  - name: one\n    sql: |\n      SELECT topic\n      FORM rows x", lines + 5, "step one: .*[Ss]yntax"),
        ("  - sql: SELECT * FROM row", lines + 2, "step result: .*`row`"),
    ):
        with pytest.raises(PipelineError, match=rf"hot.yaml:{line}: {words}"):
            plan(spark, tmp_path, f"{text}steps:\n{sql}\n")
    for more, words in (
        ({"decode": {"format": "json", "schema": "id strange"}}, "decode.schema: .*STRANGE"),
        ({"sink": {"path": "x", "partition_by": ["day"]}}, "sink.partition_by: the result has no column day"),
        ({"sink": {"format": "topic", "options": {"servers": broker.url}}, "steps": [{"sql": "SELECT 1 AS payload"}]},
         "sink: column payload is int, but must be binary or string"),
        ({"tables": [{"name": "devices", "path": f"{tmp_path}/none"}]}, r"tables\[0\]: .*none"),
        ({"sink": {"format": "csv", "path": "a"}, "steps": [{"sql": "SELECT topic, properties FROM rows"}]},
         "sink: csv cannot hold column properties .*convert it there"),
        ({"sink": {"format": "archive", "path": "a"}, "steps": [{"sql": "SELECT topic, node FROM rows"}]},
         "sink: an archive needs column timestamp, offset"),
        ({"sink": {"format": "archive", "path": "a"}, "steps": [{"sql": "SELECT *, topic AS root FROM rows"}]},
         "sink: an archive has its own column root; rename yours"),
    ):  # fmt: skip
        with pytest.raises(PipelineError, match=words):
            plan(spark, tmp_path, tree(tmp_path, broker.address, **more))
    for source, words in (({"servers": ["127.0.0.1:1"]}, "does not answer"), ({"stream": "x"}, "there is no stream x")):
        pipeline = tree(tmp_path, broker.address)
        pipeline["source"] |= source
        with pytest.raises(PipelineError, match=rf"hot.yaml: source: .*{words}"):
            reach(read_pipeline(written(tmp_path, pipeline)), tmp_path / "hot.yaml")


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_pipeline.py::test_a_pipeline_with_tables_steps_and_dead_letters")
@pytest.mark.timeout(240)
def test_the_status_has_the_state_and_the_failure_of_a_query(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    broker.publish(READINGS)
    steps = [{"sql": "SELECT topic, payload, raise_error('no good') AS x FROM rows"}]
    planned = plan(spark, tmp_path, tree(tmp_path, broker.address, steps=steps))
    (query,) = planned.start()
    with pytest.raises(Exception, match="no good"):
        query.awaitTermination()
    assert "hot.yaml: hot: " in str(failure(planned.path, query)) and "no good" in str(failure(planned.path, query))
    other = {"checkpoint": str(tmp_path / "other"), "sink": {"path": str(tmp_path / "other.parquet")}}
    planned = plan(spark, tmp_path, tree(tmp_path, broker.address, **other))
    (query,) = planned.start()
    query.awaitTermination()
    status = Status(name="hot", file="hot.yaml", pid=2**22 + 1, began=1.0, heard=1.0)
    for progress in query.recentProgress:
        status.take(progress)
    status.write()
    found = read_status("hot")
    assert found is not None and (found.rows, found.lag, found.state, found.problem) == (
        len(READINGS),
        0,
        "ended",
        "its process no longer exists",
    )
    assert [one.name for one in all_statuses()] == ["hot"] and read_status("none") is None


def command(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    line = [sys.executable, "-m", "starlingmq", "pipeline", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_pipeline.py::test_a_pipeline_with_tables_steps_and_dead_letters")
@pytest.mark.timeout(400)
def test_the_commands(broker: StreamBroker, tmp_path: Path) -> None:
    broker.publish(READINGS)
    file = written(tmp_path, tree(tmp_path, broker.address, steps=[{"sql": "SELECT offset, payload FROM rows"}]))
    validated = command(tmp_path, "validate", str(file))
    assert validated.stdout == f"{file}: hot is valid; into parquet: offset bigint, payload binary\n", validated.stderr
    as_json = json.loads(command(tmp_path, "validate", str(file), "--json").stdout)
    assert as_json == {"name": "hot", "sink": "parquet", "columns": {"offset": "bigint", "payload": "binary"}}
    done = command(tmp_path, "run", "--once", str(file))
    assert done.stdout == "hot has finished: 4 rows read\n" and list((tmp_path / "hot.parquet").glob("*.parquet"))
    (status,) = json.loads(command(tmp_path, "list", "--json").stdout)
    assert (status["name"], status["state"], status["rows"], status["problem"]) == ("hot", "ended", 4, "")
    broker.stop()
    refused = command(tmp_path, "run", str(file))
    assert refused.returncode == 2 and "source: " in refused.stderr and "does not answer" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    unknown = command(tmp_path, "status", "other")
    assert unknown.returncode == 2 and "no pipeline other has run on this machine; known are: hot" in unknown.stderr


@pytest.mark.parametrize(
    "end",
    [
        '{"n1": 100, "(lost)": 23}',
        '{"version": 2, "offsets": {"n1": 100}, "streams": {}, "waiting": {"n2": 1.0}, "lost": 23, "again": 1}',
    ],
)
def test_lost_messages_are_in_the_status(end: str) -> None:
    found = Status(name="hot", file="hot.yaml", pid=1, began=1.0, heard=1.0)
    latest = '{"version": 2, "offsets": {"n1": 107, "n2": 5}, "streams": {"n1": "a", "n2": "b"}}'
    offsets = {"endOffset": end, "latestOffset": latest}
    progress = {"batchId": 0, "numInputRows": 5, "processedRowsPerSecond": 1.0, "durationMs": {}, "sources": [offsets]}
    found.take(progress)
    assert (found.lost, found.again, found.lag) == (23, end.count("again"), 7)


def test_a_watermark_far_ahead_of_the_clock_and_repeated_batches_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    status = Status(name="hot", file="hot.yaml", pid=1, began=1.0, heard=1.0)
    output = RunOutput(status)
    output.repeated("hot", 3)
    progress = {"numInputRows": 5, "processedRowsPerSecond": 1.0, "durationMs": {}, "sources": []}
    early, late = "2026-03-02T11:59:59.000Z", "2026-03-02T12:00:00.000Z"  # of the batch: 2026-03-01T12:00:00
    for batch, times in enumerate(({}, {"max": early}, {"max": late}, {"watermark": late}, {"max": early}), 3):
        status.take(progress | {"batchId": batch, "timestamp": "2026-03-01T12:00:00.000Z", "eventTime": times})
        output.look()
    lines = [line for line in capsys.readouterr().err.splitlines() if "rows/s" not in line]
    assert lines == [
        "hot: batch 3 had begun and was not completed; it is run again with the same rows",
        "hot: the watermark follows an event time that is 1.0 days ahead of the clock; rows before it count as late, "
        "and are left out",
    ]
    assert (status.repeats, status.ahead) == (1, 86_399.0)


def test_the_status_is_exposed_as_metrics() -> None:
    text = metrics_text(Status(name="hot", file="f", pid=1, began=1.0, heard=5.0, rows=10, lag=3, batch=2))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = {one.name: (one.labels, one.value) for family in families.values() for one in family.samples}
    assert samples["starlingmq_pipeline_rows_total"] == ({"pipeline": "hot"}, 10)
    assert samples["starlingmq_pipeline_lag_rows"] == ({"pipeline": "hot"}, 3)
    assert families["starlingmq_pipeline_running"].samples[0].value == 1
    assert samples["starlingmq_pipeline_heard_timestamp_seconds"] == ({"pipeline": "hot"}, 5), (
        "a killed one stays there"
    )
    ended = metrics_text(Status(name="hot", file="f", pid=1, began=1.0, heard=5.0, state="ended"))
    assert 'starlingmq_pipeline_running{pipeline="hot"} 0' in ended.splitlines()


JSON = {"decode": {"format": "json", "schema": "a int"}}
KEY = {"key": ["a"], "order_by": ["b"]}
SOURCE = {"servers": ["127.0.0.1:1"], "stream": "all"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sinks": {}}, "hot.yaml: sinks: unknown key; the nearest is sink"),
        ({"sink": {"format": "parket", "path": "x"}}, "sink.format: 'parket' is not one of archive, csv, delta"),
        ({"sink": {}}, "sink.path: required for parquet"),
        ({"sink": {"format": "topic"}}, "sink.options.servers: required for topic"),
        ({"decode": {"format": "json"}}, "decode.schema: required for all formats but raw and sparkplug"),
        ({"decode": {"format": "avro", "schema": "a int"}}, "decode.schema_file: required for avro, unless"),
        ({"decode": {"format": "cbor", "schema": "a int", "message": "m"}}, "decode.message: has no meaning for cbor"),
        ({"sink": {"format": "kafka"}}, r"sink.options.kafka.bootstrap.servers: required for kafka"),
        (
            {
                "sink": {"format": "kafka", "options": {"kafka.bootstrap.servers": "x"}},
                "spark": {"spark.speculation": "true"},
            },
            "spark.speculation: must be false with kafka",
        ),
        ({"sink": {"path": "x", "key": ["a"]}}, "sink.key: parquet cannot replace rows"),
        ({"sink": {"format": "delta", "path": "x", "key": ["a"]}}, "sink.key, sink.order_by: each needs the other"),
        ({"sink": {"path": "x", "cluster_by": ["a"]}}, "sink.cluster_by: only for delta"),
        (
            {"sink": {"format": "jdbc", "options": {"url": "jdbc:h2:x", "dbtable": "t"}, **KEY}},
            "sink.key: with jdbc only PostgreSQL",
        ),
        ({"dead_letter": {"path": "x"}}, "dead_letter: has no effect with raw payloads"),
        ({"steps": [{"sql": "SELECT 1", "name": "rows"}]}, r"steps\[0\].name: rows is used twice"),
        ({"trigger": {"every": "soon"}}, "trigger.every: .*a duration such as"),
        (
            {"sink": {"format": "iceberg", "path": "a.b.c", "mode": "update"}},
            "sink.mode: iceberg replaces rows by key only",
        ),
        ({"sink": {"path": "x", "mode": "complete"}}, "sink.mode: parquet supports append only"),
        ({"sink": {"path": "x"}, "dead_letter": {"path": "./x/"}, **JSON}, "dead_letter.path: is in sink.path"),
        ({"sink": {"path": "x/y"}, "dead_letter": {"path": "x"}, **JSON}, "sink.path: is in dead_letter.path"),
        (
            {"sink": {"path": "s3a://b/x"}, "dead_letter": {"path": "s3a://b/x/dead"}, **JSON},
            "dead_letter.path: is in sink.path",
        ),
        ({"sink": {"format": "delta", "path": "x"}, "checkpoint": "x/c"}, "checkpoint: is in sink.path, where"),
        ({"sink": {"path": "x"}, "checkpoint": "x"}, "checkpoint: is sink.path"),
        ({"sink": {"path": "x/result"}, "checkpoint": "x"}, "sink.path: is in checkpoint"),
        (
            {"sink": {"path": "file:/t/x"}, "dead_letter": {"path": "//t/x"}, **JSON},
            "dead_letter.path: is in sink.path",
        ),
        (
            {"sink": {"path": "FILE:///t/x"}, "dead_letter": {"path": "file://localhost/t/x"}, **JSON},
            "dead_letter.path: is in sink.path",
        ),
        (
            {"sink": {"path": "s3a://b//x"}, "dead_letter": {"path": "S3A://b/y/../x"}, **JSON},
            "dead_letter.path: is in sink.path",
        ),
        ({"sink": {"path": "/proc/self/x"}, "checkpoint": f"/proc/{os.getpid()}/x"}, "checkpoint: is sink.path"),
        (
            {"decode": {"format": "csv", "schema": "n int", "options": {"Mode": "DROPMALFORMED"}}},
            "decode.options.Mode: not allowed",
        ),
        (
            {"decode": {"format": "json", "schema": "a int", "options": {"allowComment": "true"}}},
            "decode.options.allowComment: has no effect on payloads in json; the nearest is allowComments",
        ),
        (
            {"decode": {"format": "csv", "schema": "a int", "options": {"allowComments": "true"}}},
            "decode.options.allowComments: has no effect on payloads in csv; the nearest is",
        ),
        (
            {"decode": {"format": "json", "schema": "a int", "options": {"ALLOWCOMMENTS": "yes"}}},
            "decode.options.ALLOWCOMMENTS: 'yes' is neither true nor false",
        ),
        ({"decode": {"format": "json", "schema": "a int", "options": {"maxNumLen": "big"}}}, "is not a whole number"),
        ({"decode": {"format": "cbor", "schema": "a int", "options": {"sep": ";"}}}, "options: have no effect on cbor"),
        ({"decode": {"options": {"sep": ";"}}}, "decode.options: have no effect on raw"),
        (
            {"decode": {"format": "json", "schema": "at timestamp", "timestamp_unit": {"at": "hours"}}},
            "decode.timestamp_unit.*hours",
        ),
        ({"decode": {"timestamp_unit": {"at": "s"}}}, "decode.timestamp_unit: has no meaning for raw"),
        (
            {"source": SOURCE | {"start": "yesterday"}},
            "source.start: 'yesterday' is not earliest, latest, or a time such",
        ),
        ({"sink": None}, "hot.yaml: sink: required"),
        ({"dead_letter": {}, **JSON}, "hot.yaml: dead_letter.path: required"),
    ],
)
def test_settings_that_can_not_be(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_pipeline(written(tmp_path, tree(tmp_path, **more)))


def test_a_source_starts_at_a_time() -> None:
    at = "2026-01-31T12:00:00+00:00"
    options = {when: source_options(convert(SOURCE | {"start": when}, SourceConfig)) for when in ("latest", at)}
    assert options["latest"]["startingOffsets"] == "latest" and options[at]["startingTimestamp"] == at
    assert "startingTimestamp" not in options["latest"] and "startingOffsets" not in options[at]
    assert read_options(options[at], streaming=True).since == datetime.fromisoformat(at).timestamp()


def test_places_that_are_apart(tmp_path: Path) -> None:
    places: dict[str, Any] = {
        "sink": {"path": "x"},
        "dead_letter": {"path": "x.dead"},
        "checkpoint": "x/checkpoint",
        **JSON,
    }
    assert read_pipeline(written(tmp_path, tree(tmp_path, **places))).checkpoint == "x/checkpoint"
    places = {"sink": {"format": "delta", "path": "x"}, "checkpoint": "x/_checkpoint"}
    assert read_pipeline(written(tmp_path, tree(tmp_path, **places))).checkpoint == "x/_checkpoint"
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"empty\.yaml: name: required"):
        read_pipeline(tmp_path / "empty.yaml")


def test_packages_have_short_names_that_fit_the_installed_spark() -> None:
    found = resolve(("delta", "kafka", "org.example:own:1"), "delta", "4.2.0")
    assert found.coordinates == (
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.example:own:1",
    )
    assert found.settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert resolve((), "parquet", "4.2.0").settings == {}
    with pytest.raises(ConfigError, match=r"packages: delta: with Spark 4.3.0 only kafka, postgresql and s3 have"):
        resolve(("delta",), "delta", "4.3.0")


def test_the_package_for_s3_is_of_the_version_of_sparks_hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"does not tell the version .* write org\.apache\.hadoop:hadoop-aws:VERSION"):
        resolve(("s3",), "parquet")
    (tmp_path / "jars" / "hadoop-client-api-3.4.1.jar").touch()
    assert resolve(("s3",), "parquet").coordinates == ("org.apache.hadoop:hadoop-aws:3.4.1",)
    monkeypatch.delenv("SPARK_HOME")
    (found,) = resolve(("s3",), "parquet").coordinates
    assert found.rpartition(":")[2][0].isdecimal(), "the installed Spark tells it"


def test_settings_of_s3a_are_those_of_arrow_too() -> None:
    given = {"endpoint": "minio:9000", "connection.ssl.enabled": "false", "access.key": "k", "secret.key": "s"}
    settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in given.items()} | {"spark.master": "local"}
    expected = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": "http://minio:9000"}
    expected |= {"AWS_DEFAULT_REGION": "us-east-1"}
    assert arrow_environment(settings) == expected
    named = {"spark.hadoop.fs.s3a.endpoint": "https://a:1", "spark.hadoop.fs.s3a.endpoint.region": "eu"}
    assert arrow_environment(named) == {"AWS_ENDPOINT_URL": "https://a:1", "AWS_DEFAULT_REGION": "eu"}
    assert arrow_environment({}) == {}
