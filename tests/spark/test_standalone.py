"""Each row once on a standalone cluster of Spark, whose executors, driver and brokers are killed at random moments."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.spark.brokers import StreamBroker, rows_of
from tests.spark.standalone import Standalone
from tests.spark.test_exactly_once import Driver
from tests.spark.test_pipeline import command, tree, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = "streams.define=[{name: in, topics: ['in/#']}, {name: out, topics: ['out/#']}]"
EACH = 15  # rows of a node and round: some batches of seven, the last of which are under way when something dies
EXECUTOR, DRIVER, BROKER = "an executor", "the driver", "a broker"


def kill_executor(cluster: Standalone) -> None:
    """One of those that run; there is one at least soon after the driver has done a batch."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for found in cluster.executors():
            with suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile
                found.kill()
                return
        time.sleep(0.1)
    raise AssertionError("there is no executor")


def in_files(directory: Path) -> list[int]:
    """The content of the files that Spark counts as written: those that its log names."""
    lines = [line for log in (directory / "_spark_metadata").glob("[0-9]*") for line in log.read_text().splitlines()]
    paths = {unquote(urlsplit(json.loads(line)["path"]).path) for line in lines if line.startswith("{")}
    return [int(value) for path in paths for value in pq.read_table(path)["payload"].to_pylist()]


@pytest.mark.long(
    kept="tests/spark/test_source.py::test_a_streaming_query_goes_on_from_its_checkpoint_in_bounded_batches"
)
def test_every_row_once_whoever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    victims = [EXECUTOR, BROKER, EXECUTOR, DRIVER, BROKER]
    chance.shuffle(victims)
    print("killed:", ", ".join(victims))
    brokers = [StreamBroker(tmp_path / name, name, STREAMS) for name in ("n1", "n2")]
    servers = ",".join(broker.address for broker in brokers)
    urls = ",".join(broker.url for broker in brokers)
    published = 0

    def publish() -> None:
        nonlocal published
        for broker in brokers:
            broker.publish([b"%d" % number for number in range(published, published + EACH)], "in/a")
            published += EACH

    driver = None
    try:
        with Standalone(tmp_path / "spark", 2) as cluster:
            words = ["--to", urls, "--both", "--master", cluster.master]
            publish()
            driver = Driver(servers, tmp_path, *words)
            for victim in victims:
                publish()
                driver.batches(1)
                time.sleep(chance.random())  # no event to be waited for: any moment will do
                if victim == EXECUTOR:
                    kill_executor(cluster)
                elif victim == BROKER:
                    broker = chance.choice(brokers)
                    broker.kill()
                    broker.start()
                else:
                    driver.kill()
                    driver = Driver(servers, tmp_path, *words)
            driver.kill()
            driver = Driver(servers, tmp_path, *words, "--once")
            driver.finish()
            driver = None
        wanted = list(range(published))
        assert sorted(in_files(tmp_path / "rows")) == wanted, "the source, into files"
        options = brokers[0].options | {"servers": servers, "stream": "out"}
        assert sorted(int(payload) for _, payload in rows_of(options)) == wanted, "the sink"
    finally:
        if driver is not None:
            driver.kill()
        for broker in brokers:
            broker.stop()


class Terminal:
    """The screen of a command, read as it comes."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._shown = ""
        self._over = False
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):  # no process has it open any more
            while True:
                more = os.read(self._ours, 65536).decode(errors="replace")
                with self._changed:
                    self._shown += more
                    self._changed.notify_all()
        os.close(self._ours)
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def until(self, words: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: words in self._shown or self._over, 300)
            assert words in self._shown, self._shown[-3000:]


@pytest.mark.long(kept="tests/spark/test_pipeline.py::test_a_pipeline_with_tables_steps_and_dead_letters")
def test_a_pipeline_on_the_cluster_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, in a terminal: ``pipeline run --master``, until Ctrl-C."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "120")
    broker = StreamBroker(tmp_path / "n1", "n1")
    steps = [{"sql": "SELECT string(payload) AS number FROM rows"}]
    file = written(tmp_path, tree(tmp_path, broker.address, steps=steps, trigger={"every": "1s"}))
    terminal = Terminal()
    running = None
    try:
        with Standalone(tmp_path / "spark", 1) as cluster:
            broker.publish([b"%d" % number for number in range(1234)])
            words = [sys.executable, "-m", "starlingmq", "pipeline", "run", str(file), "--master", cluster.master]
            running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=terminal.theirs, text=True)
            os.close(terminal.theirs)
            terminal.until("1,234")
            assert list(cluster.executors()), "it runs there, and not here"
            broker.publish([b"%d" % number for number in range(1234, 1300)])
            terminal.until("1,300")
            (status,) = json.loads(command(tmp_path, "list", "--json").stdout)
            assert (status["state"], status["rows"], status["lag"]) == ("running", 1300, 0) and status["batch"] > 0
            running.send_signal(signal.SIGINT)
            said, _ = running.communicate(timeout=120)
            assert (running.returncode, said) == (0, "hot has finished: 1,300 rows read\n")
            assert "ended" in command(tmp_path, "status", "hot").stdout
    finally:
        if running is not None and running.poll() is None:
            running.kill()
            running.communicate()
        broker.stop()
    table = pq.read_table(tmp_path / "hot.parquet", columns=["number"])
    assert sorted(map(int, table["number"].to_pylist())) == list(range(1300))
