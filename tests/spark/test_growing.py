"""A query whose cluster grows from one node to three while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.real import Node
from tests.cluster.test_streams import StreamCluster, publish
from tests.spark.brokers import TOKEN
from tests.spark.test_source import stream, until_written, written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(
        kept="tests/bulk/test_planning.py::test_a_node_that_comes_is_read_from_its_beginning_and_shares_are_fair"
    ),
    pytest.mark.timeout(600),
]


def test_a_cluster_that_grows_from_one_node_to_three(spark: SparkSession, tmp_path: Path) -> None:
    wanted: list[tuple[str, int, bytes]] = []
    query = None

    def more(nodes: list[Node]) -> None:
        for node in nodes:
            first = sum(name == node.name for name, _, _ in wanted)
            rows = [(node.name, first + number, b"%d" % number) for number in range(10)]
            asyncio.run(publish(node, *(payload for _, _, payload in rows)))
            wanted.extend(rows)

    with StreamCluster(tmp_path / "cluster", 1) as cluster:
        asyncio.run(cluster.whole())
        first = cluster.nodes[0]
        more([first])
        (place,) = first.ask("stream.nodes")["nodes"]
        options = {"servers": place["address"], "stream": "all", "token": TOKEN, "startingOffsets": "earliest"}
        query = stream(spark, options, tmp_path, available=False)
        try:
            until_written(query, spark, tmp_path, len(wanted))
            for name in ("node2", "node3"):
                cluster.add(name)
                asyncio.run(cluster.whole())
                more(cluster.nodes)
                until_written(query, spark, tmp_path, len(wanted))
        finally:
            query.stop()
    assert written(spark, tmp_path) == sorted(wanted)
