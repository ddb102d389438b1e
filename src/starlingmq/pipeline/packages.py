"""Spark packages by short name: the coordinates that fit the installed Spark, and the settings that they need.

Anything else in ``packages`` is passed to Spark as it is: ``group:name:version``. Spark downloads packages once, into
``~/.ivy2.5.2``. A machine without network needs ``spark.jars`` with the files in place of ``packages``.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
from pyspark import __version__ as spark_version

from starlingmq.config.section_types import ConfigError

SCALA: Final = "2.13"
DELTA: Final = {"4.2": "4.4.0"}  # Spark -> Delta; other versions are named in full
KAFKA_GROUP: Final = f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}"
POSTGRESQL: Final = "org.postgresql:postgresql:42.7.7"
S3: Final = "org.apache.hadoop:hadoop-aws"
HADOOP: Final = "hadoop-client-api-"  # Spark's own file of Hadoop, named by its version
EXTENSIONS: Final = "spark.sql.extensions"
DELTA_SETTINGS: Final = {
    EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
SETTINGS: Final = {"delta": DELTA_SETTINGS}
"""Of short names, and of sinks of these formats."""


class Packages(msgspec.Struct, frozen=True):
    coordinates: tuple[str, ...]
    settings: dict[str, str]


def resolve(names: tuple[str, ...], sink: str, version: str = spark_version) -> Packages:
    """``sink``: the format of the sink, whose settings are added too. Raises ConfigError."""
    coordinates = tuple(_coordinates(name, version) for name in names)
    settings: dict[str, str] = {}
    for each in dict.fromkeys([*names, sink]):
        for key, value in SETTINGS.get(each, {}).items():
            settings[key] = f"{settings[key]},{value}" if key == EXTENSIONS and key in settings else value
    return Packages(coordinates, settings)


def _coordinates(name: str, version: str) -> str:
    if ":" in name:
        return name
    minor = ".".join(version.split(".")[:2])
    if name == "kafka":
        return f"{KAFKA_GROUP}:{version}"
    if name == "postgresql":
        return POSTGRESQL
    if name == "s3":
        return f"{S3}:{hadoop_version()}"
    if name == "delta" and minor in DELTA:
        return f"io.delta:delta-spark_{minor}_{SCALA}:{DELTA[minor]}"
    known = "delta, kafka, postgresql and s3" if minor in DELTA else "kafka, postgresql and s3"
    raise ConfigError(
        f"packages: {name}: with Spark {version} only {known} have a short name; write group:name:version"
    )


def hadoop_version() -> str:
    """Raises ConfigError."""
    jars = Path(os.environ.get("SPARK_HOME") or str(files("pyspark"))) / "jars"
    found = [path.stem.removeprefix(HADOOP) for path in jars.glob(f"{HADOOP}*.jar")]
    if len(found) != 1:
        raise ConfigError(f"packages: s3: {jars} does not tell the version of Spark's Hadoop; write {S3}:VERSION")
    return found[0]
