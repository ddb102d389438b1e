"""A Kafka broker, a PostgreSQL server and a stand-in for S3 on loopback, each a process that can be killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlingmq.cli.local_cluster import free_port
from starlingmq.net.process import ending_with_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS: Final = 240.0  # of a busy machine; seconds are usual
NOBODY: Final = "65534"  # PostgreSQL refuses to run as root
CLUSTER_ID: Final = "c3RhcmxpbmdtcS10ZXN0cw"


class Service:
    """``command`` listens at ``port`` on loopback once it serves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        directory.mkdir(parents=True)
        self.prepare()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def prepare(self) -> None:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ending_with_us(self.command(), signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait(self._listens)

    def _wait(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while not ready():
            assert self.process is not None and self.process.poll() is None, (self.directory / "log").read_text()[
                -3000:
            ]
            assert time.monotonic() < end, "it does not listen"
            time.sleep(0.1)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def program(name: str) -> str:
    path = shutil.which(name)
    assert path, f"{name} is missing"
    return path


def ran(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Kafka(Service):
    """One node, broker and controller, of the jars in ``lake``/kafka."""

    def __init__(self, directory: Path, lake: Path) -> None:
        self._java = [
            program("java"),
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{lake}/kafka/*",
        ]
        super().__init__(directory)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        controller = free_port()
        self._settings = self.directory / "server.properties"
        self._settings.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}\n"
            "controller.listener.names=CONTROLLER\nnum.partitions=2\noffsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
            f"log.dirs={self.directory / 'data'}\n"
        )
        tool = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._settings)]
        ran(*tool)

    def command(self) -> list[str]:
        return [*self._java, "kafka.Kafka", str(self._settings)]

    def delete_before(self, spark: SparkSession, topic: str, ends: dict[str, int]) -> None:
        """Delete the messages of each partition before its offset, as retention does."""
        jvm: Any = spark.sparkContext._jvm
        properties = jvm.java.util.Properties()
        properties.setProperty("bootstrap.servers", self.servers)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        kind = loader.loadClass("org.apache.kafka.clients.admin.RecordsToDelete")
        # by reflection, since py4j does not call a static method that has the name of another
        before = next(each for each in kind.getMethods() if each.toString().endswith("beforeOffset(long)"))
        until = jvm.java.util.HashMap()
        for part, end in ends.items():
            offsets = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 1)  # type: ignore[union-attr]
            offsets[0] = end
            named = jvm.org.apache.kafka.common.TopicPartition(topic, int(part))
            until.put(named, before.invoke(None, offsets))
        admin.deleteRecords(until).all().get()
        admin.close()


class ObjectStore(Service):
    """Moto's server, which answers as S3 does. It keeps objects in memory, until it ends."""

    KEY: Final = "key"
    SECRET: Final = "no secret"
    BUCKET: Final = "lake"

    def __init__(self, directory: Path, lake: Path) -> None:
        self._packages = lake / "moto"
        super().__init__(directory)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """Those of Spark."""
        s3a = {
            "endpoint": self.url,
            "endpoint.region": "us-east-1",
            "access.key": self.KEY,
            "secret.key": self.SECRET,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "change.detection.mode": "none",
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        program = f"import sys; sys.path.append({str(self._packages)!r}); from moto.server import main; main()"
        return [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(self.port)]

    def start(self) -> None:
        super().start()
        bucket = urllib.request.Request(f"{self.url}/{self.BUCKET}", method="PUT")
        with urllib.request.urlopen(bucket, timeout=60) as answer:
            assert answer.status == 200

    def names(self, prefix: str) -> list[str]:
        """The names of the objects that begin with this."""
        with urllib.request.urlopen(f"{self.url}/{self.BUCKET}?list-type=2&prefix={prefix}", timeout=60) as answer:
            return re.findall(r"<Key>(.*?)</Key>", answer.read().decode())


class Postgresql(Service):
    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def _tool(self, name: str) -> list[str]:
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        path = str(found[-1]) if found else program(name)
        return (
            [program("setpriv"), "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", path]
            if not os.getuid()
            else [path]
        )

    def prepare(self) -> None:
        data = self.directory / "data"
        if not os.getuid():
            data.mkdir()
            os.chown(data, int(NOBODY), int(NOBODY))
            for above in (self.directory, *self.directory.parents):
                if above.owner() == "root" and above.stat().st_mode & 0o001 == 0:
                    above.chmod(above.stat().st_mode | 0o011)
        ran(*self._tool("initdb"), "--pgdata", str(data), "--username", "postgres", "--auth", "trust", "--no-sync")

    def command(self) -> list[str]:
        words = ["-D", str(self.directory / "data"), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        return [*self._tool("postgres"), *words, "-c", "unix_socket_directories="]

    def start(self) -> None:
        super().start()
        self._wait(self._answers)

    def kill(self) -> None:
        """An immediate shutdown, after which the log is recovered as after SIGKILL. SIGKILL itself would leave
        processes behind that use the directory for a while.
        """
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        return subprocess.run(self._psql("SELECT 1"), capture_output=True).returncode == 0

    def _psql(self, sql: str) -> list[str]:
        words = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-At", "-c", sql]
        return [*self._tool("psql"), *words]

    def ask(self, sql: str) -> list[str]:
        done = subprocess.run(self._psql(sql), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()
