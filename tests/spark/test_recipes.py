"""The recipes of examples/recipes: each runs in Spark, and its result is computed a second time here, without Spark."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from examples.recipes import generate
from pyspark.sql import SparkSession

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.run import Pipeline, PipelineError
from tests.spark.brokers import TOKEN, StreamBroker
from tests.spark.recipes import PNG, RECIPES, recipe, run_all

DELAY: Final = timedelta(minutes=2)
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamBroker]:
    broker = StreamBroker(tmp_path_factory.mktemp("plant") / "n1", "n1")
    asyncio.run(generate.publish(broker.url, generate.everything()))
    yield broker
    broker.stop()


def rows_of(name: str, spark: SparkSession, plant: StreamBroker, tmp_path: Path) -> Rows:
    """Run the recipe and return its result, after a look at its picture and its dead letters."""
    from examples.recipes.plot import plot  # matplotlib: each process of pytest-xdist loads this file

    file = recipe(RECIPES / f"{name}.yaml", plant, tmp_path)
    run_all(Pipeline(spark, read_pipeline(file), file))
    assert spark.read.schema("reason string").parquet(str(tmp_path / "dead")).count() == 0
    rows = [row.asDict() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    plot(name, rows, tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    return rows


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=None)


def readings() -> Rows:
    return [payload | {"at": at(payload["at"])} for _, payload in generate.readings()]


def windows(minutes: int) -> dict[tuple[str, datetime], Rows]:
    """The readings of each device and window that is complete."""
    found: dict[tuple[str, datetime], Rows] = defaultdict(list)
    for row in readings():
        begin = row["at"].replace(minute=row["at"].minute // minutes * minutes, second=0)
        found[row["device"], begin].append(row)
    known = max(row["at"] for row in readings()) - DELAY
    return {key: of for key, of in found.items() if key[1] + timedelta(minutes=minutes) <= known}


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_recipes.py::test_every_recipe_can_be_read_and_has_a_picture")
@pytest.mark.timeout(300)
def test_downsampling_gives_each_minute_once_without_readings_that_are_too_late(
    spark: SparkSession, plant: StreamBroker, tmp_path: Path
) -> None:
    expected = {
        key: (len(of), min(values), pytest.approx(statistics.fmean(values)), max(values))
        for key, of in windows(1).items()
        for values in [[row["value"] for row in of]]
    }
    found = rows_of("downsample", spark, plant, tmp_path)
    shown = {(row["device"], row["minute"]): (row["readings"], row["low"], row["mean"], row["high"]) for row in found}
    assert shown == expected and len(found) == len(expected) > 100


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_recipes.py::test_every_recipe_can_be_read_and_has_a_picture")
@pytest.mark.timeout(300)
def test_visits_end_when_a_zone_has_not_seen_the_tag_for_five_minutes(
    spark: SparkSession, plant: StreamBroker, tmp_path: Path
) -> None:
    gap = timedelta(minutes=5)
    seen: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    for _, payload in generate.sightings():
        seen[payload["tag"], payload["zone"]].append(at(payload["at"]))
    known = max(when for times in seen.values() for when in times) - DELAY
    expected = Counter[tuple[str, str, datetime, datetime, int]]()
    for (tag, zone), times in seen.items():
        visits = [[times[0]]]
        for when in times[1:]:
            if when - visits[-1][-1] >= gap:
                visits.append([])
            visits[-1].append(when)
        expected.update(
            (tag, zone, visit[0], visit[-1], int((visit[-1] - visit[0]).total_seconds()))
            for visit in visits
            if visit[-1] + gap <= known
        )
    found = rows_of("dwell", spark, plant, tmp_path)
    shown = Counter((row["tag"], row["zone"], row["arrived"], row["left"], row["seconds"]) for row in found)
    assert shown == expected and len(found) > 10


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_recipes.py::test_every_recipe_can_be_read_and_has_a_picture")
@pytest.mark.timeout(300)
def test_a_join_gives_the_readings_of_each_job(spark: SparkSession, plant: StreamBroker, tmp_path: Path) -> None:
    expected = Counter[tuple[str, str, int, float]]()
    for _, job in generate.jobs():
        begin = at(job["at"])
        expected.update(
            (job["job"], row["device"], int((row["at"] - begin).total_seconds()), row["value"])
            for row in readings()
            if row["device"] == job["device"] and begin <= row["at"] < begin + timedelta(minutes=10)
        )
    found = rows_of("join", spark, plant, tmp_path)
    assert Counter((row["job"], row["device"], row["second"], row["value"]) for row in found) == expected
    assert len(found) > 100


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_recipes.py::test_every_recipe_can_be_read_and_has_a_picture")
@pytest.mark.timeout(300)
def test_anomalies_are_far_from_the_mean_of_their_window(
    spark: SparkSession, plant: StreamBroker, tmp_path: Path
) -> None:
    expected = {}
    for (device, _), of in windows(10).items():
        values = [row["value"] for row in of]
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        for row in of:
            if abs(row["value"] - mean) > 4 * deviation:
                expected[device, row["at"]] = pytest.approx((row["value"] - mean) / deviation)
    found = rows_of("anomalies", spark, plant, tmp_path)
    assert {(row["device"], row["at"]): row["z"] for row in found} == expected and len(found) == len(expected) >= 2


@pytest.mark.slow
@pytest.mark.long(kept="tests/spark/test_recipes.py::test_every_recipe_can_be_read_and_has_a_picture")
@pytest.mark.timeout(300)
def test_a_class_keeps_the_state_of_each_meter_from_batch_to_batch(
    spark: SparkSession, plant: StreamBroker, tmp_path: Path
) -> None:
    pytest.importorskip("pandas")
    more = [
        ("meters/meter-1", {"meter": "meter-1", "at": generate.after(3600 + 60 * n), "counter": 2.0}) for n in (0, 1)
    ]
    expected: dict[tuple[str, datetime], tuple[Any, bool]] = {}
    last: dict[str, tuple[datetime, float]] = {}
    for _, payload in [*generate.meters(), *more]:
        when, counter = at(payload["at"]), payload["counter"]
        before = last.get(payload["meter"])
        if before is not None and when > before[0]:
            again = counter < before[1]
            used = counter if again else counter - before[1]
            expected[payload["meter"], when] = (pytest.approx(used), again)
        last[payload["meter"]] = (when, counter)
    rows_of("consumption", spark, plant, tmp_path)
    asyncio.run(generate.publish(plant.url, more))
    found = rows_of("consumption", spark, plant, tmp_path)
    assert {(row["meter"], row["at"]): (row["used"], row["restarted"]) for row in found} == expected
    assert len(found) == len(expected) and any(again for _, again in expected.values())


def test_every_recipe_can_be_read_and_has_a_picture(tmp_path: Path) -> None:
    from examples.recipes.plot import PLOTS

    (tmp_path / "token").write_text(TOKEN)
    names = sorted(file.stem for file in RECIPES.glob("*.yaml"))
    assert names == sorted(PLOTS)
    for name in names:
        text = (RECIPES / f"{name}.yaml").read_text().replace("/etc/starlingmq/token", str(tmp_path / "token"))
        (tmp_path / f"{name}.yaml").write_text(text)
        read_pipeline(tmp_path / f"{name}.yaml")


STEP: Final = {"processor": "own.py:Own", "key": ["topic"], "schema": "n bigint"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"steps": [{"name": "a"}]}, r"steps\[0\]: needs either sql or stateful"),
        ({"steps": [{"sql": "SELECT 1", "stateful": STEP}]}, r"steps\[0\]: needs either sql or stateful"),
        ({"steps": [{"stateful": STEP | {"processor": "own"}}]}, r"steps\[0\].stateful.processor"),
        ({"steps": [{"stateful": STEP | {"key": []}}]}, r"steps\[0\].stateful.key"),
        ({"streams": [{"name": "rows", "source": {"servers": ["a:1"], "stream": "s"}}]},
         r"streams\[0\].name: rows is used twice"),
        ({"streams": [{"name": "b", "source": {"servers": ["a:1"], "stream": "s"}, "decode": {"format": "json"}}]},
         r"streams\[0\].decode.schema: required"),
    ],
)  # fmt: skip
def test_settings_of_recipes_that_contradict_each_other(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    tree = {
        "name": "own", "source": {"servers": ["127.0.0.1:1"], "stream": "s"}, "sink": {"path": "a"}, "checkpoint": "c",
    }  # fmt: skip
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(tree | more))
    with pytest.raises(ConfigError, match=words):
        read_pipeline(tmp_path / "own.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "cannot be imported: FileNotFoundError"),
        ("import nothing_of_this_name", "own.py cannot be imported: ModuleNotFoundError"),
        ("Own = 1", "own.py has no class Own derived from pyspark's StatefulProcessor"),
    ],
)
def test_a_processor_that_cannot_be_used_is_one_line(
    spark: SparkSession, tmp_path: Path, code: str | None, words: str
) -> None:
    tree = {
        "name": "own", "source": {"servers": ["127.0.0.1:1"], "stream": "s"}, "sink": {"path": "a"}, "checkpoint": "c",
        "steps": [{"stateful": STEP | {"input": "rows"}}],
    }  # fmt: skip
    if code is not None:
        (tmp_path / "own.py").write_text(code)
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(PipelineError, match=rf"own.yaml: steps\[0\].stateful.processor: .*{words}") as caught:
        Pipeline(spark, read_pipeline(file), file)
    assert len(str(caught.value).splitlines()) == 1
