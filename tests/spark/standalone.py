"""A standalone cluster of Spark on loopback: a master and workers, each a process, out of the PySpark package itself.

They end by their numbers, with what they began; whatever ends this process ends them as well.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
import pyspark

from starlingmq.net.process import ending_with_us
from tests.spark.session import JAVA

START_SECONDS = 300.0  # a machine with much else to do; seconds are usual
POLL_SECONDS = 0.1
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent


class Daemon:
    """A master or a worker, which has begun when its log says so."""

    def __init__(self, directory: Path, name: str, kind: str, *words: str, with_our_paths: bool = True) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        environment = os.environ | {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA,
            "PYSPARK_PYTHON": sys.executable,
        }
        environment.pop("PYTHONPATH", None)
        if with_our_paths:
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # of the executors, too
        command = ["/bin/bash", str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += ["--host", HOST, "--port", "0", "--webui-port", "0", *words]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ending_with_us(command, signal.SIGKILL),
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def said(self, pattern: str) -> str:
        """Wait until its log has this, and give back the first group."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            if found is not None:
                return found[1]
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"{self.name} never said {pattern!r}:\n{self.log.read_text(errors='replace')[-3000:]}")

    def children(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        for child in self.children():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.kill()
        self.process.wait(30)


class Standalone:
    """``with Standalone(directory, 2) as cluster``: all workers are known to the master at ``cluster.master``."""

    def __init__(self, directory: Path, workers: int, with_our_paths: bool = True) -> None:
        """``with_our_paths``: executors have the packages of this process."""
        directory.mkdir()
        self._with_our_paths = with_our_paths
        self.daemons: list[Daemon] = []
        try:
            head = self._begin(directory, "master", "master.Master")
            self.master = head.said(r"Starting Spark master at (spark://\S+)")
            of_each = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / "work"), self.master]
            for number in range(workers):
                self._begin(directory, f"worker{number}", "worker.Worker", *of_each)
            for worker in self.daemons[1:]:
                worker.said(r"(Successfully registered with master)")
        except BaseException:
            self.stop()
            raise

    def _begin(self, directory: Path, name: str, kind: str, *words: str) -> Daemon:
        daemon = Daemon(directory, name, kind, *words, with_our_paths=self._with_our_paths)
        self.daemons.append(daemon)
        return daemon

    def __enter__(self) -> Standalone:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.kill()

    def executors(self) -> Iterator[psutil.Process]:
        """Those that run now."""
        for worker in self.daemons[1:]:
            for child in worker.children():
                with suppress(psutil.NoSuchProcess):
                    if EXECUTOR in child.cmdline():
                        yield child
