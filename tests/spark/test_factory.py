"""The example of a day of a factory: from its messages to the picture, with a second computation without Spark."""

from __future__ import annotations

import asyncio
import csv
import statistics
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from examples.factory import day
from pyspark.sql import SparkSession

from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.run import Pipeline
from tests.spark.brokers import StreamBroker
from tests.spark.recipes import EXAMPLES, PNG, recipe, run_all

FACTORY = EXAMPLES / "factory"


def test_the_day_has_its_flaws() -> None:
    messages = day.day()
    assert messages == day.day(), "the same each time"
    payloads = [payload for _, payload in messages]
    assert {len(payloads) > 4 * day.MINUTES * 0.97, len(payloads) < 4 * day.MINUTES * 1.03} == {True}
    assert sum(count - 1 for count in Counter(tuple(payload.values()) for payload in payloads).values()) > 50
    latest, late = payloads[0]["at"], timedelta()
    for payload in payloads:
        latest = max(latest, payload["at"])
        late = max(late, datetime.fromisoformat(latest) - datetime.fromisoformat(payload["at"]))
    assert timedelta(minutes=9) <= late < timedelta(minutes=15)
    assert sum(abs(payload["celsius"]) > 900 for payload in payloads) > 5
    assert not [each for each in payloads if each["machine"] == "press" and "T10:30" in each["at"]]


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_factory.py::test_the_day_has_its_flaws")
@pytest.mark.timeout(400)
def test_the_pipeline_makes_clean_quarters_of_the_day(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    asyncio.run(day.publish(broker.url, day.day()))
    with (FACTORY / "limits.csv").open() as file:
        limits = {row["machine"]: (float(row["low"]), float(row["high"])) for row in csv.DictReader(file)}
    quarters: dict[tuple[str, datetime], list[float]] = defaultdict(list)
    unique = {tuple(payload.values()) for _, payload in day.day()}
    for machine, text, celsius in sorted(unique):
        at = datetime.fromisoformat(text).replace(tzinfo=None)
        quarters[machine, at.replace(minute=at.minute // 15 * 15)].append(celsius)
    end = max(datetime.fromisoformat(at).replace(tzinfo=None) for _, at, _ in unique) - timedelta(minutes=15)
    expected: dict[tuple[str, datetime], tuple[Any, ...]] = {}
    for (machine, begin), values in quarters.items():
        if begin + timedelta(minutes=15) <= end:
            low, high = limits[machine]
            good = [value for value in values if low <= value <= high]
            mean = pytest.approx(statistics.fmean(good))
            expected[machine, begin] = (
                len(good),
                len(values) - len(good),
                15 - len(values),
                mean,
                min(good),
                max(good),
            )
    path = recipe(FACTORY / "factory.yaml", broker, tmp_path)
    query, _ = run_all(Pipeline(spark, read_pipeline(path), path))
    progress = query.lastProgress
    assert progress is not None and progress["batchId"] >= 2, "several batches"
    rows = [row.asDict() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    figures = ("readings", "out_of_range", "missing", "mean", "low", "high")
    assert {(row["machine"], row["quarter"]): tuple(row[name] for name in figures) for row in rows} == expected
    assert len(rows) == len(expected) > 350 and sum(row["out_of_range"] for row in rows) > 5
    from examples.factory import chart  # it needs matplotlib, which takes a second to load

    chart.chart(rows, tmp_path / "factory.png")
    assert (tmp_path / "factory.png").read_bytes().startswith(PNG)
