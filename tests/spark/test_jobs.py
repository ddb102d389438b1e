"""The jobs in real Spark: an archive is made, merged, published again and reported on."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from starlingmq.config.tree_builder import build
from starlingmq.pipeline import archive as archiving
from starlingmq.pipeline.archive import Archive, ArchiveError
from starlingmq.pipeline.config import PipelineConfig
from starlingmq.pipeline.replay import Replay, Target, in_order
from starlingmq.pipeline.run import Pipeline, error_line
from starlingmq.pipeline.traffic import OTHERS, look_at
from starlingmq.pipeline.traffic_page import page
from starlingmq.spark.row_publishing import PublishError
from tests.api.browser import BROWSER, browser
from tests.spark.brokers import TOKEN, StreamBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COLUMNS = (
    "topic string, payload binary, qos tinyint, retain boolean, client_id string, "
    "properties array<struct<name: string, value: string>>, timestamp timestamp, node string, offset bigint"
)
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


QUERY = "7d7d2c4e"


def rows(spark: SparkSession, made: list[tuple[str, bytes, int, float]], first: int = 0) -> DataFrame:
    """Topic, payload, QoS and seconds after noon."""
    told = [
        (
            topic,
            payload,
            qos,
            False,
            "author",
            [("k", "v")],
            NOON + datetime.timedelta(seconds=after),
            "n1",
            first + place,
        )
        for place, (topic, payload, qos, after) in enumerate(made)
    ]
    return spark.createDataFrame(told, COLUMNS)


def many(count: int, day: int = 0) -> list[tuple[str, bytes, int, float]]:
    return [(f"r{number % 3}/a", b"%d" % number, number % 2, day * 86400 + number * 0.001) for number in range(count)]


def quietly(done: int, of: int = 0) -> None:
    pass


def offsets(spark: SparkSession, archive: Archive) -> list[int]:
    return sorted(row.offset for row in archive.read(spark).select("offset").collect())


def test_an_archive_is_made_of_batches_and_merged_whoever_dies(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(tmp_path / "a")
    with pytest.raises(ArchiveError, match="the archive is still empty"):
        archive.read(spark)
    batches = [rows(spark, many(30), 0), rows(spark, many(30, 1), 30), rows(spark, many(30), 60)]
    move, moved = archiving._move, 0

    def dying(file: Path, to: Path) -> None:
        nonlocal moved
        moved += 1
        if moved == 2:
            raise OSError("the driver died")
        move(file, to)

    monkeypatch.setattr(archiving, "_move", dying)
    with pytest.raises(OSError, match="the driver died"):
        archive.write(batches[0], 0, QUERY)
    assert list(archive.path.glob("date=*/root=*/*.parquet")) and not archive.files()
    assert archive.compact(spark, quietly) == 0  # rewritten files are not merged before
    for number, batch in enumerate(batches):
        archive.write(batch, number, QUERY)
        archive.write(batch, number, QUERY)  # Spark tries it again
    assert offsets(spark, archive) == list(range(90))
    before = archive.files()
    assert {file.parent.relative_to(archive.path).as_posix() for file in before} == {
        f"date={date}/root=r{root}" for date in ("2026-01-31", "2026-02-01") for root in range(3)
    }
    moved = 1  # dies when it is noted that files take the place of others, and those are gone
    with pytest.raises(OSError, match="the driver died"):
        archive.compact(spark, quietly)
    monkeypatch.undo()
    again = Archive(tmp_path / "a", must_exist=True)
    assert offsets(spark, again) == list(range(90))
    again.compact(spark, quietly)
    assert len(again.files()) == 6 < len(before) and again.compact(spark, quietly) == 0
    assert offsets(spark, again) == list(range(90))
    again.write(batches[0], 0, QUERY)  # its files are merged: it is there all the same
    row = again.read(spark).where("offset = 31").collect()[0]
    assert (row.topic, bytes(row.payload), row.qos, row.client_id) == ("r1/a", b"1", 1, "author")
    assert offsets(spark, again) == list(range(90)) and row.properties[0].name == "k"


@pytest.mark.long(kept="tests/spark/test_jobs.py::test_an_archive_is_made_of_batches_and_merged_whoever_dies")
def test_a_stream_goes_into_an_archive_and_on_from_where_it_was(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    archive = Archive(tmp_path / "a")
    tree: dict[str, Any] = {
        "name": "archive",
        "source": {"servers": [broker.address], "stream": "all", "token": TOKEN},
        "sink": {"format": "archive", "path": str(archive.path)},
        "checkpoint": archive.checkpoint,
        "trigger": {"available_now": True},
    }
    for part in range(2):
        broker.publish([b"%d" % number for number in range(20)], f"r{part}/x")
        (query,) = Pipeline(spark, build(PipelineConfig, tree), "archive").start()
        query.awaitTermination()
        assert offsets(spark, archive) == list(range(20 * (part + 1)))


@pytest.mark.long(
    kept="tests/spark/test_jobs.py::test_an_archive_of_an_earlier_release_is_taken_over_by_the_query_that_goes_on"
)
def test_an_archive_refuses_batches_of_another_query(spark: SparkSession, broker: StreamBroker, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "a")

    def run(checkpoint: str) -> str:
        tree: dict[str, Any] = {
            "name": "archive",
            "source": {"servers": [broker.address], "stream": "all", "token": TOKEN},
            "sink": {"format": "archive", "path": str(archive.path)},
            "checkpoint": str(tmp_path / checkpoint),
            "trigger": {"available_now": True},
        }
        (query,) = Pipeline(spark, build(PipelineConfig, tree), "archive").start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            return error_line(error)
        return ""

    broker.publish([b"%d" % number for number in range(20)])
    assert run("one") == ""
    broker.publish([b"%d" % number for number in range(10)])
    for _ in range(2):
        assert "belongs to query" in (told := run("two")) and "use another directory" in told
    assert len(told.splitlines()) == 1
    shutil.rmtree(tmp_path / "one")
    assert "checkpoint was deleted; restore the checkpoint" in run("one")
    assert offsets(spark, archive) == list(range(20)), "nothing was taken for another batch, and nothing added"


def test_an_archive_of_an_earlier_release_is_taken_over_by_the_query_that_goes_on(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "a")
    done = archive.path / "_starlingmq" / "batches"
    done.mkdir(parents=True)
    for number in range(3):
        (done / str(number)).touch()
    for number in (0, 2):
        with pytest.raises(
            ArchiveError, match=r"if it is query q, now at batch \d, write its id into .*_starlingmq/query"
        ):
            archive.claim("q", number)
    archive.claim("q", 3)
    archive.claim("q", 0)
    with pytest.raises(ArchiveError, match="belongs to query q, not r"):
        archive.claim("r", 4)


@pytest.mark.long(kept="tests/spark/test_jobs.py::test_an_archive_is_made_of_batches_and_merged_whoever_dies")
def test_an_archive_is_published_again_in_order_at_its_pace(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    made = [(f"t/{number % 2}", b"%d" % number, (number // 10) % 3, number * 0.1) for number in range(60)]
    archive = Archive(tmp_path / "a")
    archive.write(rows(spark, made), 0, QUERY)
    told: list[int] = []

    def publish(target: Target) -> float:
        began = time.monotonic()
        asyncio.run(Replay(target, told.append).run(in_order(archive.read(spark)).toLocalIterator()))
        return time.monotonic() - began

    publish(Target(url=broker.url, speed=0.0, prefix="fast/"))
    assert told[-1] == 60
    assert publish(Target(url=broker.url, speed=10.0, prefix="slow/")) >= 0.58
    found = spark.read.format("starlingmq").options(**broker.options).load().orderBy("offset").collect()
    for prefix in ("fast", "slow"):
        for topic in ("t/0", "t/1"):
            mine = [(bytes(row.payload), row.qos) for row in found if row.topic == f"{prefix}/{topic}"]
            assert mine == [(payload, qos) for name, payload, qos, _ in made if name == topic]
    assert found[0].properties[0].value == "v"
    slow = [row.timestamp.timestamp() for row in found if row.topic.startswith("slow/")]
    assert 0.5 < slow[-1] - slow[0] < 10.0
    with pytest.raises(PublishError, match="'a/#/t/0' is not a valid topic to publish to"):
        publish(Target(url=broker.url, prefix="a/#/"))
    with pytest.raises(PublishError, match="no broker listens at mqtt://127"):
        publish(Target(url="mqtt://127.0.0.1:1", node_timeout=0.5))


EVIL = "<img src=x onerror=alert(1)>"


@pytest.mark.long(kept="tests/spark/test_jobs.py::test_an_archive_is_made_of_batches_and_merged_whoever_dies")
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_a_report_is_a_page_that_needs_no_network(spark: SparkSession, tmp_path: Path) -> None:
    made = [(f"r{number % 10}/{EVIL}", b"x" * (number % 500), number % 3, number * 0.5) for number in range(2000)]
    made[1500:1600] = []
    told = rows(spark, made)
    found = look_at(spark, told.where("offset NOT BETWEEN 100 AND 109"), "stream all", False)
    assert (found.count, found.clients, found.topics) == (1890, 1, 10)
    assert list(found.messages)[-1] == OTHERS and len(found.messages) == 8
    assert abs(sum(map(sum, found.messages.values())) * found.step - 1890) < 1e-6
    assert sum(found.sizes.values()) == 1890 and found.qos.keys() == {0, 1, 2}
    assert [(one.node, one.since, one.until) for one in found.missing] == [("n1", 100, 109)]
    assert found.silences[0].until - found.silences[0].since == pytest.approx(55, abs=0.1)
    file = tmp_path / "report.html"
    file.write_text(page(found))
    assert "http" not in file.read_text()

    async def look() -> None:
        async with browser(tmp_path) as tab:
            for width, dark in ((1100, False), (1100, True), (390, True)):
                await tab.look_like(width, 900, dark=dark)
                await tab.go(file.as_uri())
                await tab.until(
                    "document.querySelectorAll('svg').length === 3 && document.querySelectorAll('table').length >= 5"
                )
                paper = await tab.run("getComputedStyle(document.body).backgroundColor")
                assert paper == ("rgb(26, 26, 25)" if dark else "rgb(252, 252, 251)")
                assert await tab.run("document.documentElement.scrollWidth") <= width
                assert await tab.run("document.querySelectorAll('.line').length") == 16
                assert not await tab.run("document.querySelector('img')")
                await tab.screenshot(tmp_path / f"report-{width}-{dark}.png")
            assert not tab.problems

    asyncio.run(look())
