"""``make chaos-pipeline``: one stream into eight sinks, while processes are killed at random moments, ROUNDS times.

    sinks    Parquet, Delta, Iceberg, each of these two also by key, Kafka, PostgreSQL, topics of the broker
    killed   the driver with its executor, the executor alone, the broker, Kafka (all with SIGKILL),
             PostgreSQL (SIGQUIT)

Spark is a standalone cluster with one executor, a process of its own, that begins and ends with the driver
(``local-cluster``). With ``--copies`` the broker is a cluster of three nodes (see ``brokers``), otherwise one node.

At the end a last driver reads the rest, and each sink must have each row once. Prints the counts, and exits with 1 if
one is wrong. ``--seed`` draws the same victims again; the moments depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
from pyiceberg.catalog import load_catalog

from tests.lake.brokers import OneNode, ThreeNodes
from tests.lake.services import Kafka, Postgresql
from tests.lake.session import LAKE, pipeline, settings
from tests.spark.session import JAVA
from tests.spark.standalone import EXECUTOR

ROWS_EACH: Final = 40
BATCH_ROWS: Final = 25
WAIT_SECONDS: Final = 300.0
VICTIMS: Final = ("driver", "executor", "broker", "kafka", "postgresql")
CLUSTER: Final = {
    "spark.master": "local-cluster[1,2,1024]",  # workers, cores of each, MiB of each
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.task.maxFailures": "1",  # which the Kafka sink needs
    "spark.deploy.maxExecutorRetries": "-1",
}
NUMBER: Final = "SELECT CAST(CAST(payload AS string) AS int) AS number, offset FROM rows"


class Driver:
    """Its output is read by a thread, so that waiting for a batch has a limit."""

    def __init__(self, directory: Path, *words: str) -> None:
        command = [sys.executable, "-m", "tests.lake.driver", str(directory), *words]
        with (directory / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._lines.put(line)
        self._lines.put("")

    def line(self) -> str:
        """Return its next line; "" when it has ended."""
        line = self._lines.get(timeout=WAIT_SECONDS)
        if line.startswith(("failed", "again")):
            print("   ", line.strip()[:3000], flush=True)
        assert not line.startswith("failed"), line
        return line

    def batches(self, count: int) -> None:
        while count:
            line = self.line()
            assert line, "the driver has ended by itself"
            count -= line.startswith("batch")

    def finish(self) -> None:
        """Wait until it has ended by itself, as it does with ``--once``; kill it if it fails."""
        ended = False
        try:
            while line := self.line():
                ended |= line.startswith("ended")
            self.process.wait()
        finally:
            if self.process.poll() is None:
                self.kill()
        assert ended, "the last driver did not finish"

    def kill(self) -> None:
        """With everything that it started: the JVM, and the Python workers."""
        kill_all(self.process.pid)
        self.process.wait()

    def kill_executor(self) -> str:
        """With its Python workers. Spark may still be starting it, after an earlier kill."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # another child may have ended, or be a zombie
                    if EXECUTOR in child.cmdline():
                        kill_all(child.pid)
                        return "killed"
            time.sleep(0.1)
        raise AssertionError("there is no executor")


def kill_all(number: int) -> None:
    """A process with everything that it started."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(number).children(recursive=True)
        for each in [number, *(child.pid for child in children)]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


class World:
    """``copies``: of the cluster; 0: the broker is one node."""

    def __init__(self, directory: Path, copies: int, chance: random.Random) -> None:
        self.directory = directory
        self.files = directory / "pipelines"
        self.files.mkdir()
        self.broker = ThreeNodes(directory / "nodes", copies, chance) if copies else OneNode(directory)
        self.kafka = Kafka(directory / "kafka", LAKE)
        self.postgresql = Postgresql(directory / "postgresql")
        self._catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/lake",
        }
        self.published = 0
        self._write_pipelines()
        self.driver: Driver | None = None

    def _write_pipelines(self) -> None:
        jdbc = {"url": self.postgresql.url, "dbtable": "numbers", "user": "postgres"}
        kafka = {
            "kafka.bootstrap.servers": self.kafka.servers,
            "topic": "numbers",
            "kafka.delivery.timeout.ms": "60000",
        }
        kafka |= {"kafka.request.timeout.ms": "30000"}
        keyed = {"format": "delta", "path": self._path("keyed"), "key": ["number"], "order_by": ["offset"]}
        iceberg = {"format": "iceberg", "path": "lake.plant.latest", "options": self._catalog}
        sinks: list[tuple[str, dict[str, Any], str]] = [
            (
                "delta",
                {"format": "delta", "path": self._path("delta")},
                NUMBER,
            ),  # the first: its Spark has the packages
            ("keyed", keyed, NUMBER),
            ("iceberg", {"format": "iceberg", "path": "lake.plant.numbers", "options": self._catalog}, NUMBER),
            ("iceberg_keyed", iceberg | {"key": ["number"], "order_by": ["offset"]}, NUMBER),
            ("parquet", {"format": "parquet", "path": self._path("parquet")}, NUMBER),
            ("postgresql", {"format": "jdbc", "options": jdbc}, NUMBER),
            ("kafka", {"format": "kafka", "options": kafka}, "SELECT payload AS value FROM rows"),
            (
                "topics",
                {"format": "topic", "options": {"servers": ",".join(self.broker.urls), "nodeTimeout": "120"}},
                "SELECT 'out/a' AS topic, payload FROM rows",
            ),
        ]
        for name, sink, sql in sinks:
            more = {"steps": [{"sql": sql}], "source": {"max_rows": BATCH_ROWS, "node_timeout": 120}}
            spark = settings(self.files) | CLUSTER
            pipeline(self.files, self.broker.servers, name, sink, restarts=50, spark=spark, **more)

    def _path(self, name: str) -> str:
        return str(self.directory / f"{name}.table")

    def publish(self, count: int = ROWS_EACH) -> None:
        numbers = range(self.published, self.published + count)
        self.broker.publish([b"%d" % number for number in numbers])
        self.published += count

    def start(self, *words: str) -> Driver:
        self.driver = Driver(self.files, *words)
        return self.driver

    def kill(self, victim: str) -> str:
        """Returns what was done."""
        assert self.driver is not None
        if victim == "broker":
            return self.broker.kill()
        if victim == "executor":
            return self.driver.kill_executor()
        if victim == "driver":
            self.driver.kill()
            self.start()
        else:
            service = self.kafka if victim == "kafka" else self.postgresql
            service.kill()
            service.start()
        return "killed"

    def stop(self) -> None:
        if self.driver is not None and self.driver.process.poll() is None:
            self.driver.kill()
        self.broker.stop()
        self.kafka.kill()
        self.postgresql.kill()

    def counts(self) -> dict[str, Counter[int]]:
        """By sink, how often it has each number."""
        from starlingmq.pipeline.config import read_pipeline
        from starlingmq.pipeline.run import begin_session

        found: dict[str, Counter[int]] = {}
        spark = begin_session(read_pipeline(self.files / "delta.yaml"), "local[2]")
        for name in ("delta", "keyed"):
            table = spark.read.format("delta").load(self._path(name))
            found[name] = Counter(row.number for row in table.select("number").collect())
        found["parquet"] = Counter(row.number for row in spark.read.parquet(self._path("parquet")).collect())
        options = {"kafka.bootstrap.servers": self.kafka.servers, "subscribe": "numbers"}
        messages = spark.read.format("kafka").options(**options).load().select("value")
        found["kafka"] = Counter(int(bytes(row.value)) for row in messages.collect())
        spark.stop()
        found["postgresql"] = Counter(map(int, self.postgresql.ask("SELECT number FROM numbers")))
        catalog = load_catalog("lake", **self._catalog)
        for name, identifier in (("iceberg", "plant.numbers"), ("iceberg_keyed", "plant.latest")):
            rows = catalog.load_table(identifier).scan().to_arrow()
            found[name] = Counter(rows["number"].to_pylist())
        found["topics"] = self.broker.written()
        return found


def rounds(world: World, count: int, chance: random.Random) -> Counter[str]:
    """Kill ``count`` times, each victim about equally often."""
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(count)]
    chance.shuffle(victims)
    world.publish()
    driver = world.start()
    driver.batches(1)
    for number, victim in enumerate(victims, 1):
        began = time.monotonic()
        world.publish()
        assert world.driver is not None
        world.driver.batches(chance.randrange(1, 6))
        time.sleep(chance.random())  # any moment will do
        done = world.kill(victim)
        print(f"{number:3} of {count}: {victim} {done}, {time.monotonic() - began:.0f} s", flush=True)
    assert world.driver is not None
    world.driver.kill()
    world.start("--once").finish()
    return Counter(victims)


def verdict(counts: dict[str, Counter[int]], published: int) -> list[str]:
    """Return a line for each sink."""
    lines = []
    for name, found in sorted(counts.items()):
        missing = sum(number not in found for number in range(published))
        twice = sum(times > 1 for times in found.values())
        right = "right" if (missing, twice, len(found)) == (0, 0, published) else "WRONG"
        lines.append(
            f"{right}  {name:<13} {sum(found.values()):>6} rows of {published}: {missing} missing, {twice} twice"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lake.killing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--copies", type=int, default=0, help="a cluster of three nodes with so many copies; 0: one node"
    )
    given = parser.parse_args()
    print("seed", given.seed, flush=True)
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="starlingmq-lake-") as directory:
        world = World(Path(directory), given.copies, chance)
        try:
            killed = rounds(world, given.rounds, chance)
            lines = verdict(world.counts(), world.published)
        except BaseException:
            print((world.files / "driver.log").read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            world.stop()
    print("killed:", ", ".join(f"{name} {count} times" for name, count in sorted(killed.items())))
    print("\n".join(lines))
    sys.exit(any(line.startswith("WRONG") for line in lines))


if __name__ == "__main__":
    main()
