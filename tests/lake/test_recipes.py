"""The recipe whose sink is a Delta table."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from examples.recipes import generate
from examples.recipes.plot import plot
from pyspark.sql import SparkSession

from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.run import Pipeline
from tests.lake.session import settings
from tests.spark.brokers import StreamBroker
from tests.spark.recipes import PNG, RECIPES, recipe, run_all


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_last_value_of_each_device(spark: SparkSession, broker: StreamBroker, tmp_path: Path) -> None:
    messages = generate.readings(minutes=10)
    file = recipe(RECIPES / "latest.yaml", broker, tmp_path, packages=[], spark=settings(tmp_path))
    for part in (messages[:100], messages[100:], messages[:20]):  # the last ones come again, late
        asyncio.run(generate.publish(broker.url, part))
        run_all(Pipeline(spark, read_pipeline(file), file))
    expected = {
        device: max((p["at"], p["value"]) for _, p in messages if p["device"] == device) for device in generate.DEVICES
    }
    rows = [row.asDict() for row in spark.read.format("delta").load(str(tmp_path / "out")).collect()]
    assert {row["device"]: (f"{row['at'].isoformat()}+00:00", row["value"]) for row in rows} == expected
    assert len(rows) == len(generate.DEVICES)
    plot("latest", rows, tmp_path / "latest.png")
    assert (tmp_path / "latest.png").read_bytes().startswith(PNG)
