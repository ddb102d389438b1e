"""Sparkplug B with a state for each edge node, in Spark: across restarts, beside payloads that cannot be decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pyspark.sql import SparkSession

from starlingmq.client import Client
from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.run import Pipeline
from tests.spark.brokers import TOKEN, StreamBroker
from tests.spark.recipes import run_all
from tests.spark.sparkplug_payloads import bd_seq, sparkplug

LINE: Final = "spBv1.0/plant/{}/line"
PRESS: Final = "spBv1.0/plant/{}/line/press"
TEMPERATURE: Final = {"name": "temperature", "alias": 1, "datatype": 9, "float_value": 20.0}
COUNT: Final = {"name": "count", "alias": 2, "datatype": 3, "int_value": 0}
Message = tuple[str, bytes]

BEGIN: Final[list[Message]] = [
    (LINE.format("NDATA"), sparkplug(9, {"alias": 1, "float_value": 1.0}, {"alias": 2, "float_value": 2.0})),
    (LINE.format("NBIRTH"), sparkplug(0, bd_seq(4), TEMPERATURE)),
    (PRESS.format("DBIRTH"), sparkplug(1, COUNT)),
    ("spBv1.0/STATE/scada", b'{"online": true, "timestamp": 1}'),
    ("other", b"x"),
]
AFTER_A_RESTART: Final[list[Message]] = [
    (LINE.format("NDATA"), sparkplug(2, {"alias": 1, "float_value": 21.0})),
    (PRESS.format("DDATA"), sparkplug(5, {"alias": 2, "int_value": (1 << 32) - 7})),
    (LINE.format("NDATA"), b"\xff\xff"),
    (LINE.format("NDEATH"), sparkplug(None, bd_seq(3))),
]
END: Final[list[Message]] = [(LINE.format("NDEATH"), sparkplug(None, bd_seq(4)))]


async def publish(broker: StreamBroker, messages: Sequence[Message]) -> None:
    async with Client(broker.url) as client:
        for topic, payload in messages:
            await client.publish(topic, payload, qos=1)


def pipeline_file(tmp_path: Path, broker: StreamBroker, state: str) -> Path:
    tree = {
        "name": f"sparkplug_{state}",
        "source": {"servers": [broker.address], "stream": "all", "token": TOKEN, "start": "earliest"},
        "decode": {"format": "sparkplug", "state": state},
        "sink": {"path": str(tmp_path / "out")},
        "dead_letter": {"path": str(tmp_path / "dead")},
        "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": {"available_now": True},
    }
    file = tmp_path / "sparkplug.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def run(spark: SparkSession, file: Path) -> None:
    run_all(Pipeline(spark, read_pipeline(file), file))


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_sparkplug_sessions.py::test_an_alias_has_the_name_and_datatype_of_its_birth")
@pytest.mark.timeout(300)
def test_names_of_aliases_last_across_restarts_and_unknown_ones_are_dead_letters(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    file = pipeline_file(tmp_path, broker, "aliases")
    for part in (BEGIN, AFTER_A_RESTART):
        asyncio.run(publish(broker, part))
        run(spark, file)
    rows = spark.read.parquet(str(tmp_path / "out")).where("message_type LIKE '_DATA'").orderBy("offset").collect()
    shown = [(row.device, row.metric, row.datatype, row.number, row.integer, row.gap) for row in rows]
    assert shown == [
        (None, "temperature", "Float", 21.0, None, 0),
        ("press", "count", "Int32", -7.0, -7, 2),
    ]
    hosts = spark.read.parquet(str(tmp_path / "out")).where("message_type = 'STATE'").collect()
    assert [(row.host, row.metric, row.flag) for row in hosts] == [("scada", "online", True)]
    letters = spark.read.parquet(str(tmp_path / "dead")).orderBy("offset").collect()
    assert [(row.topic, bytes(row.payload)) for row in letters] == [BEGIN[0], BEGIN[4], AFTER_A_RESTART[2]]
    assert letters[0].reason == (
        "alias 1 is unknown: no birth of the edge node was read before it on this node of the cluster "
        "(2 such metrics in this message)"
    )


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_sparkplug_sessions.py::test_a_device_is_online_from_its_birth_to_its_death")
@pytest.mark.timeout(300)
def test_the_state_of_edge_nodes_and_devices_is_a_table(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    file = pipeline_file(tmp_path, broker, "nodes")

    def after(part: Sequence[Message]) -> dict[str, Any]:
        asyncio.run(publish(broker, part))
        run(spark, file)
        rows = spark.read.parquet(str(tmp_path / "out")).orderBy("seen", "messages").collect()
        assert {(row["group"], row.edge_node) for row in rows} == {("plant", "line")}
        return {row.device: row for row in rows}  # the latest of each

    first = after(BEGIN)
    assert {device: (row.online, row.metrics, row.unresolved) for device, row in first.items()} == {
        "": (True, 2, 2),
        "press": (True, 1, 0),
    }
    second = after(AFTER_A_RESTART)
    assert (second[""].online, second[""].gaps, second[""].missing, second[""].bd_seq) == (True, 1, 2, 4)
    assert second[""].since == first[""].since and second["press"].born == first["press"].born
    third = after(END)
    assert {device: (row.online, row.since > first[""].since) for device, row in third.items()} == {
        "": (False, True),
        "press": (False, True),
    }
    assert third[""].messages == 7
    letters = spark.read.parquet(str(tmp_path / "dead")).orderBy("offset").collect()
    assert [(row.topic, bytes(row.payload)) for row in letters] == [BEGIN[4], AFTER_A_RESTART[2]]


def test_only_sparkplug_has_a_state(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    tree = {
        "name": "a",
        "source": {"servers": ["127.0.0.1:1"], "stream": "s"},
        "decode": {"format": "json", "schema": "a int", "state": "aliases"},
        "sink": {"path": "x"},
        "checkpoint": "c",
    }
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=r"decode\.state: only for sparkplug, not for json"):
        read_pipeline(file)
