"""Pipeline files of examples with the places of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from starlingmq.pipeline.restarts import transient
from starlingmq.pipeline.run import Pipeline
from tests.docs.blocks import ROOT
from tests.spark.brokers import TOKEN, StreamBroker

EXAMPLES: Final = ROOT / "examples"
RECIPES: Final = EXAMPLES / "recipes"
ATTEMPTS: Final = 5
PNG: Final = b"\x89PNG\r\n"


def recipe(file: Path, broker: StreamBroker, tmp_path: Path, **more: Any) -> Path:
    """Return a copy of the pipeline file that reads the stream of the broker and writes to ``out`` and ``dead``."""
    tree = yaml.safe_load(file.read_text())
    for part in (tree, *tree.get("streams", [])):
        part["source"] |= {"servers": [broker.address], "stream": "all", "token": TOKEN}
        del part["source"]["token_file"]
    for step in tree["steps"]:
        if "stateful" in step:
            step["stateful"]["processor"] = f"{file.parent}/{step['stateful']['processor']}"
    for table in tree.get("tables", []):
        table["path"] = str(file.parent / table["path"])
    tree["sink"]["path"] = str(tmp_path / "out")
    tree["dead_letter"]["path"] = str(tmp_path / "dead")
    tree |= {"checkpoint": str(tmp_path / "checkpoint"), "trigger": {"available_now": True}, **more}
    copy = tmp_path / file.name
    copy.write_text(yaml.safe_dump(tree))
    return copy


def run_all(pipeline: Pipeline) -> list[StreamingQuery]:
    """Run the queries to their ends; as pipeline run does, start them again after a transient failure."""
    for attempt in range(ATTEMPTS):
        queries = pipeline.start()
        try:
            for query in queries:
                query.awaitTermination()
        except PySparkException as error:
            for query in queries:
                query.stop()
            if attempt == ATTEMPTS - 1 or not transient(str(error)):
                raise
        else:
            return queries
    raise AssertionError("not reached")
