"""Published once, written once: though the driver is killed between any two steps, and the broker too."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.brokers import TOKEN, StreamBroker
from tests.spark.test_source import finish, stream, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EACH = 60  # rows, nine batches: the last of the driver's are under way when it is killed


class Driver:
    """``words``: more for its command line."""

    def __init__(self, servers: str, directory: Path, *words: str) -> None:
        command = [sys.executable, "-m", "tests.spark.driver", servers, TOKEN, str(directory), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def batches(self, count: int) -> None:
        """Wait until so many more are done."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            assert not line.startswith("ended"), line
            count -= 1
            if not count:
                return
        raise AssertionError("the driver ended by itself")

    def finish(self) -> None:
        """Wait until it has ended by itself, as it does with ``--once``."""
        said, _ = self.process.communicate(timeout=300)
        ends = [line for line in said.splitlines() if line.startswith("ended")]
        assert ends and all(line == "ended None" for line in ends), said

    def kill(self) -> None:
        """With everything that it began: the JVM, and the Python workers."""
        children: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):  # it has ended by itself
            children = psutil.Process(self.process.pid).children(recursive=True)
        for number in [self.process.pid, *(child.pid for child in children)]:
            with suppress(ProcessLookupError):  # workers of Spark come and go
                os.kill(number, signal.SIGKILL)
        self.process.communicate()


@pytest.mark.long(
    kept="tests/spark/test_source.py::test_a_streaming_query_goes_on_from_its_checkpoint_in_bounded_batches"
)
def test_every_row_once_whoever_is_killed(spark: SparkSession, mortal_broker: StreamBroker, tmp_path: Path) -> None:
    broker = mortal_broker
    chance = random.Random()
    payloads = [b"%d" % number for number in range(3 * EACH)]
    broker.publish(payloads[:EACH])
    driver = Driver(broker.address, tmp_path)
    try:
        driver.batches(2)
        time.sleep(chance.random() / 2)  # no event to be waited for: any moment will do
        broker.kill()
        broker.start()
        broker.publish(payloads[EACH : 2 * EACH])
        driver.batches(2)
        time.sleep(chance.random() / 2)
    finally:
        driver.kill()
    broker.publish(payloads[2 * EACH :])
    finish(lambda: stream(spark, broker.options, tmp_path, startingOffsets="earliest"))
    assert written(spark, tmp_path) == [("n1", offset, payload) for offset, payload in enumerate(payloads)]


@pytest.mark.long(kept="tests/spark/test_sink.py::test_a_batch_that_is_tried_again_is_published_once")
def test_every_row_is_published_once_whoever_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """Through the sink of the format, too: the driver goes on from its checkpoint and does its last batch again."""
    chance = random.Random()
    streams = "streams.define=[{name: in, topics: ['in/#']}, {name: out, topics: ['out/#']}]"
    broker = StreamBroker(tmp_path / "n1", "n1", streams)
    payloads = [b"%d" % number for number in range(3 * EACH)]
    try:
        for part in range(3):
            broker.publish(payloads[part * EACH : (part + 1) * EACH], "in/a")
            driver = Driver(broker.address, tmp_path, "--to", broker.url)
            try:
                driver.batches(2)
                time.sleep(chance.random() / 2)  # no event to be waited for: any moment will do
                if part == 1:
                    broker.kill()
                    broker.start()
                    driver.batches(1)
            finally:
                driver.kill()
        more = {"stream": "in", "startingOffsets": "earliest", "rowsPerPartition": "4"}
        rows = spark.readStream.format("starlingmq").options(**broker.options | more).load()
        writer = rows.withColumn("topic", F.lit("out/a")).writeStream.format("starlingmq").options(servers=broker.url)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.trigger(availableNow=True).start)
        found = spark.read.format("starlingmq").options(**broker.options | {"stream": "out"}).load().collect()
        assert sorted(int(row.payload) for row in found) == list(range(3 * EACH))
    finally:
        broker.stop()
