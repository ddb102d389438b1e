"""``spark-submit`` to a standalone cluster that has no starlingmq: the program brings it as a zip file, or with a whole
environment as an archive. With Python 3.11, 3.12 and 3.13, in environments of ``scripts/lake``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import starlingmq
from tests.lake.session import LAKE, SPARK_HOME
from tests.spark.brokers import TOKEN, StreamBroker, rows_of
from tests.spark.session import JAVA
from tests.spark.standalone import HOST, Standalone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SOURCES: Final = Path(starlingmq.__file__).parent
PROGRAM: Final = Path(__file__).parent / "submitted.py"
PYTHONS: Final = sorted(path.name.removeprefix("python") for path in LAKE.glob("python3.*"))
STREAMS: Final = "streams.define=[{name: all, topics: ['in/#']}, {name: out, topics: ['out/#']}]"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cluster") / "spark", 1, with_our_paths=False) as running:
        yield running


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StreamBroker]:
    running = StreamBroker(tmp_path / "n1", "n1", STREAMS)
    yield running
    running.stop()


def submit(cluster: Standalone, broker: StreamBroker, directory: Path, driver: Path, task: str, *words: str) -> Any:
    """Submit the program, and return what it told. ``driver``, ``task``: their Pythons."""
    broker.publish([msgspec.msgpack.encode({"id": f"d{number}"}) for number in range(10)], "in/a")
    options = {"source": broker.options, "sink": {"servers": broker.url}}
    (directory / "options.json").write_text(json.dumps(options))
    settings = {"spark.driver.host": HOST, "spark.ui.enabled": "false", "spark.executor.memory": "512m"}
    settings |= {"spark.executor.extraJavaOptions": JAVA, "spark.sql.warehouse.dir": str(directory / "warehouse")}
    command = ["/bin/bash", str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master]
    command += ["--driver-java-options", JAVA, *words]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    ours = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST}
    ours |= {"PYSPARK_DRIVER_PYTHON": str(driver), "PYSPARK_PYTHON": task}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ours
    command += [str(PROGRAM), str(directory)]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = json.loads((directory / "told.json").read_text())
    assert told["files"] == [[f"d{number}", number] for number in range(10)]
    answers = rows_of(broker.options | {"stream": "out", "token": TOKEN})
    assert sorted(payload for _, payload in answers) == [b"d%d" % number for number in range(10)]
    return told


def zipped(to: Path) -> Path:
    with zipfile.ZipFile(to, "w") as file:
        for path in sorted(SOURCES.rglob("*.py")):
            file.write(path, path.relative_to(SOURCES.parent))
    return to


@pytest.mark.parametrize("version", PYTHONS)
def test_a_program_brings_the_package_as_a_zip_file(
    version: str, cluster: Standalone, broker: StreamBroker, tmp_path: Path
) -> None:
    python = LAKE / f"python{version}" / "bin" / "python"
    file = zipped(tmp_path / "starlingmq.zip")
    told = submit(cluster, broker, tmp_path, python, str(python), "--py-files", str(file))
    assert told["driver"].startswith(f"{file}/")
    found, path = told["task"].split()
    assert found == version
    assert "starlingmq.zip/starlingmq/" in path and not path.startswith(str(tmp_path)), "the copy of the executor"


def test_a_program_brings_a_whole_environment(cluster: Standalone, broker: StreamBroker, tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    environment = tmp_path / "environment"
    shutil.copytree(LAKE / f"python{version}", environment, symlinks=True)
    packages = environment / "lib" / f"python{version}" / "site-packages"
    shutil.copytree(SOURCES, packages / "starlingmq", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as file:
        file.add(environment, ".")  # a file named .tar would lose its modes, and be refused for the link to Python
    driver = environment / "bin" / "python"
    archive = f"{tmp_path / 'environment.tar.gz'}#environment"
    told = submit(cluster, broker, tmp_path, driver, "./environment/bin/python", "--archives", archive)
    found, path = told["task"].split()
    assert found == version
    assert path.endswith(f"/environment/lib/python{version}/site-packages/starlingmq/__init__.py")
    assert not path.startswith(str(tmp_path)), "the copy of the executor"
