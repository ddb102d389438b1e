"""The requirements of the demo, and the files of its nodes and pipelines.

All files are in one directory: ``n1`` to ``n3`` as ``cluster up`` creates them, with listeners for NATS and HTTP and
two streams, the pipelines ``positions.yaml`` and ``alerts.yaml``, and their output.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from starlingmq.cli.declare import CommandError
from starlingmq.cli.local_cluster import HOST, TOKEN_FILE, free_ports, prepare, write_secret
from starlingmq.config.section_types import ConfigError
from starlingmq.demo.device import HOT

NODES: Final = 3
SHUTDOWN_SECONDS: Final = 2.0  # all nodes stop together: no node can take over sessions
NODE_TIMEOUT: Final = 120  # seconds that pipelines wait for an unreachable node
BATCH_SECONDS: Final = 5
TELEMETRY: Final = "telemetry"
EVENTS: Final = "events"
PIPELINES: Final = ("positions", "alerts")
POSITIONS: Final = "positions.parquet"
POSITIONS_DELTA: Final = "positions.delta"
POSITIONS_SQL: Final = (
    "SELECT id, n, lat, lon, temperature, battery, qos, timestamp, split(topic, '/')[1] AS region FROM rows"
)
ALERTS_SQL: Final = (
    "SELECT concat('alerts/', split(topic, '/')[1], '/', id) AS topic, "  # noqa: S608 a constant
    "to_json(struct(id, n, temperature)) AS payload "
    f"FROM rows WHERE temperature > {HOT}"
)


@dataclass(frozen=True)
class Equipment:
    """The optional components installed here; ``missing`` has a line for each absent one. ``delta``: positions go into
    a Delta table.
    """

    dashboard: bool
    nats: bool
    spark: bool
    missing: tuple[str, ...]
    delta: bool = False


def equipment(spark_wanted: bool, delta_wanted: bool = False) -> Equipment:
    """Detect the components. Raises CommandError if a cluster cannot run, or Delta has no package for this Spark."""
    lacking = _lacking("grpc", "google.protobuf")
    if lacking:
        raise CommandError(f"the demo needs {', '.join(lacking)}; run pip install '.[demo]' in the sources")
    if shutil.which("etcd") is None:
        raise CommandError("the demo needs etcd; run apt-get install etcd-server")
    missing = []
    dashboard = not (lacking := _lacking("litestar", "uvicorn", "prometheus_client"))
    if lacking:
        missing.append(f"no dashboard: it needs {', '.join(lacking)} (pip install '.[http]' in the sources)")
    nats = not (lacking := _lacking("nats"))
    if lacking:
        missing.append("no NATS workers: they need nats-py (pip install nats-py)")
    lacking = _lacking("pyspark", "pyarrow")
    if not spark_wanted:
        missing.append("no Spark, as requested: no pipelines and no delivery audit")
    elif lacking:
        missing.append(
            f"no Spark, so no pipelines and no audit: {', '.join(lacking)} (pip install '.[spark]' in the sources)"
        )
    elif not _java():
        missing.append("no Spark, so no pipelines and no audit: Java 17 (apt-get install openjdk-17-jre-headless)")
    spark = spark_wanted and not lacking and _java()
    if spark and delta_wanted:
        from starlingmq.pipeline.packages import resolve

        try:
            resolve(("delta",), "delta")
        except ConfigError as error:
            raise CommandError(f"--delta: {error}") from None
    return Equipment(dashboard, nats, spark, tuple(missing), delta_wanted)


def _lacking(*modules: str) -> list[str]:
    return [module for module in modules if not _there(module)]


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def _java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or (home is not None and Path(home, "bin", "java").exists())


@dataclass(frozen=True)
class Stage:
    """Files and addresses. ``settings`` by node name; addresses in the order of the nodes."""

    directory: Path
    settings: dict[str, Path]
    mqtt: list[str]
    nats: list[str]
    http: list[str]
    streams: list[str]

    @property
    def token(self) -> Path:
        """The token for readers of streams."""
        return self.directory / TOKEN_FILE

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all processes: their caches and status files are in the demo's directory too."""
        return {"TMPDIR": str(self.directory / "tmp"), "XDG_STATE_HOME": str(self.directory / "state")}


def build(directory: Path, equipment: Equipment, reached_at: Callable[[str, int], str]) -> Stage:
    """Write the files. ``reached_at`` (name, port) returns the address at which the other nodes reach a node that
    listens on that port. Raises CommandError, OSError.
    """
    if any(directory.glob("n*/")):
        raise CommandError(f"{directory} contains a cluster already; give another directory")
    paths = prepare(directory, NODES, 0)
    (directory / "tmp").mkdir()
    nats, http, streams = ([f"{HOST}:{port}" for port in free_ports(NODES)] for _ in range(3))
    stage = Stage(
        directory,
        {path.parent.name: path for path in paths},
        [yaml.safe_load(path.read_text(encoding="utf-8"))["listeners"][0] for path in paths],
        [f"nats://{address}" for address in nats],
        [f"http://{address}" for address in http] if equipment.dashboard else [],
        streams if equipment.spark else [],
    )
    for index, path in enumerate(paths):
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        _add(settings, stage, index)
        settings["cluster"]["advertise"] = reached_at(path.parent.name, _port(settings["cluster"]["listen"]))
        _write(path, settings)
    if equipment.spark:
        write_secret(stage.token)
        _write_pipelines(stage, equipment.delta)
    return stage


def _add(settings: dict[str, Any], stage: Stage, index: int) -> None:
    settings["listeners"].append(stage.nats[index])
    settings["listeners"] += stage.http[index : index + 1]
    settings["node"]["shutdown_timeout"] = SHUTDOWN_SECONDS
    if stage.streams:
        settings["streams"] = {
            "listen": stage.streams[index],
            "token_file": str(stage.token),
            "define": [
                {"name": TELEMETRY, "topics": ["fleet/#"], "retention_time": "1d"},
                {"name": EVENTS, "topics": ["$events/#"], "retention_time": "1d"},
            ],
        }


def _write_pipelines(stage: Stage, delta: bool) -> None:
    directory = stage.directory
    source = {
        "servers": stage.streams,
        "stream": TELEMETRY,
        "token_file": str(stage.token),
        "topics": ["fleet/+/+/telemetry"],
        "node_timeout": NODE_TIMEOUT,
    }
    decode = {
        "format": "json",
        "schema": "id string, n bigint, lat double, lon double, temperature double, battery double",
    }
    to_files: dict[str, Any] = {"format": "parquet", "path": str(directory / POSITIONS), "partition_by": ["region"]}
    if delta:
        to_files |= {"format": "delta", "path": str(directory / POSITIONS_DELTA)}
    to_topics = {
        "format": "topic",
        "options": {"servers": ",".join(stage.mqtt), "qos": "2", "nodeTimeout": str(NODE_TIMEOUT)},
    }
    for name, sql, sink in ((PIPELINES[0], POSITIONS_SQL, to_files), (PIPELINES[1], ALERTS_SQL, to_topics)):
        pipeline = {
            "name": name,
            "source": source,
            "decode": decode,
            "steps": [{"sql": sql}],
            "sink": sink,
            "trigger": {"every": f"{BATCH_SECONDS}s"},
            "checkpoint": str(directory / f"{name}.checkpoint"),
            "spark": {"spark.local.dir": str(directory / "tmp"), "spark.driver.memory": "512m"},
        }
        if sink is to_files and delta:
            pipeline |= {"packages": ["delta"]}
        _write(directory / f"{name}.yaml", pipeline)


def _write(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
