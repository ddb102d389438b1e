"""Pipelines and their Spark with the packages of ``scripts/lake``, as files, without a network."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import pyspark
import yaml

from tests.spark.brokers import TOKEN
from tests.spark.session import JAVA

LAKE: Final = Path(os.environ.get("STARLINGMQ_LAKE", "build/lake")).absolute()
SPARK_HOME: Final = Path(pyspark.__file__).parent


def jars() -> str:
    """Those of ``scripts/lake`` that Spark does not have, in any version."""
    own = {_name(path) for path in (SPARK_HOME / "jars").glob("*.jar")}
    found = sorted(str(path) for path in (LAKE / "packages").glob("*.jar") if _name(path) not in own)
    assert found, f"{LAKE} has no packages; run make test-lake"
    return ",".join(found)


def _name(jar: Path) -> str:
    """Without its version."""
    return re.split(r"-\d", jar.name, maxsplit=1)[0]


def settings(directory: Path) -> dict[str, str]:
    return {
        "spark.jars": jars(),
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.default.parallelism": "2",
    }


def pipeline(directory: Path, servers: list[str], name: str, sink: dict[str, Any], **more: Any) -> Path:
    """Write a pipeline file, and return it."""
    source = {"servers": servers, "stream": "all", "token": TOKEN, "node_timeout": 60}
    tree = {
        "name": name,
        "source": source | more.pop("source", {}),
        "sink": sink,
        "checkpoint": str(directory / name / "checkpoint"),
        "trigger": {"available_now": True},
        "spark": settings(directory),
    }
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(tree | more))
    return file
