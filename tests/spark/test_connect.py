"""The data source by Spark Connect: a program without Java, and a server of its own that has starlingmq."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from starlingmq.cli.local_cluster import free_port
from starlingmq.net.process import ending_with_us
from tests.spark.brokers import StreamBroker
from tests.spark.session import JAVA
from tests.spark.standalone import SPARK_HOME

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/spark/test_source.py::test_a_batch_query_has_every_row_and_column"),
    pytest.mark.timeout(1800),
]

START_SECONDS = 240.0  # of a busy machine; seconds are usual


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server of Spark Connect."""
    port = free_port()
    words = ["--master", "local[2]", "--driver-java-options", JAVA, "--conf", "spark.ui.enabled=false"]
    words += ["--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.driver.host=127.0.0.1"]
    words += ["--conf", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ending_with_us(["/bin/bash", str(SPARK_HOME / "bin" / "spark-submit"), *words], signal.SIGKILL),
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not listens(port):
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_program_without_java_reads_writes_and_is_told_what_is_wrong(
    server: str, broker: StreamBroker, tmp_path: Path
) -> None:
    readings = [(f"d{number}", number / 2) for number in range(20)]
    broker.publish(
        [b'{"id":"%s","value":%s}' % (name.encode(), str(value).encode()) for name, value in readings], "a/json"
    )
    broker.publish([msgspec.msgpack.encode({"id": name, "value": value}) for name, value in readings], "a/msgpack")
    options = {"source": broker.options, "sink": {"servers": broker.url}}
    environment = os.environ | {"JAVA_HOME": str(tmp_path / "no java"), "PATH": str(tmp_path / "no programs")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", server, str(tmp_path)],
        input=json.dumps(options) + "\n",
        env=environment,
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        told |= json.loads(line)
    expected = sorted([name, value] for name, value in readings)
    assert told["json"] == expected
    assert told["msgpack"] == expected
    assert told["files"] == list(range(40)), "each row once, although the query ran twice"
    assert [json.loads(text)["id"] for text in told["topics"]] == [name for name, _ in expected]
    assert f"{broker.address}: the token is missing or wrong; set the option token" in told["error"], told["error"]
