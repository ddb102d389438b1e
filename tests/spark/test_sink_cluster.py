"""The sink over three nodes: rows wait for the node that knows what it has of them, whatever becomes of the list."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from starlingmq.cli.local_cluster import HOST
from tests.cluster.real import Cluster, Node
from tests.spark.brokers import TOKEN, StreamBroker, rows_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/spark/test_placing.py::test_every_attempt_of_a_batch_goes_to_the_same_nodes"),
    pytest.mark.timeout(900),
]

EACH = 60
WAITING = "rows wait for node n2, which stores their sequence numbers: .*no broker listens"


class OutCluster(Cluster):
    """Nodes that keep what is published below out/."""

    def _connect(self, node: Node) -> None:
        def change(settings: dict[str, Any]) -> None:
            define = [{"name": "out", "topics": ["out/#"]}]
            settings["streams"] = {"listen": f"{HOST}:0", "token": TOKEN, "define": define}

        node.configure(change)
        super()._connect(node)

    def published(self) -> list[tuple[str, int]]:
        """Each row with its node."""
        places = self.nodes[0].ask("stream.nodes")["nodes"]
        servers = ",".join(place["address"] for place in places)
        options = {"servers": servers, "stream": "out", "token": TOKEN}
        return [(node, int(payload)) for node, payload in rows_of(options)]


def test_rows_wait_for_the_node_that_knows_them(spark: SparkSession, broker: StreamBroker, tmp_path: Path) -> None:
    count = 0

    def more() -> None:
        nonlocal count
        broker.publish([b"%d" % number for number in range(count, count + EACH)])
        count += EACH

    def run(servers: list[Node], **options: str) -> None:
        """Everything there is, in one batch, from twelve partitions or so."""
        source = broker.options | {"startingOffsets": "earliest", "rowsPerPartition": "5"}
        rows = spark.readStream.format("starlingmq").options(**source).load().withColumn("topic", F.lit("out/a"))
        urls = ",".join(node.url for node in servers)
        writer = rows.writeStream.format("starlingmq").options(servers=urls, nodeTimeout="8", window="3", **options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    cluster = OutCluster(tmp_path / "cluster", 3)
    with cluster:
        asyncio.run(cluster.whole())
        n1, n2, n3 = cluster.nodes
        more()
        run([n1, n2, n3])
        assert sorted(row for _, row in cluster.published()) == list(range(count))
        assert {node for node, _ in cluster.published()} == {"n1", "n2", "n3"}
        n2.kill()
        more()
        for servers in ([n1, n2, n3], [n3, n1]):  # a batch that has begun waits for it, named or not
            with pytest.raises(PySparkException, match=WAITING):
                run(servers)
        n2.start()
        asyncio.run(cluster.whole())
        run([n3, n1])
        assert sorted(row for _, row in cluster.published()) == list(range(count)), "none lost, none twice"
        began = count
        more()
        run([n3, n1])
        found = cluster.published()
        assert sorted(row for _, row in found) == list(range(count))
        assert {node for node, row in found if row >= began} == {"n1", "n3"}, "the new list, from a new batch on"
        n1.kill()
        more()
        run([n3, n1], excludedNodes="n1")
        n1.start()
        asyncio.run(cluster.whole())
        assert sorted({row for _, row in cluster.published()}) == list(range(count)), "none lost"
