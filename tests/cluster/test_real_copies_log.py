"""The log of a cluster with copies: which node serves the data of a lost one, and to which node a line belongs."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.real import Cluster, Node
from tests.cluster.test_real_copies import copied

SECONDS = 30.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_lost_node_reports.py"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


def says(node: Node, text: str) -> bool:
    return text in node.said()


async def test_the_log_says_whose_data_is_served_where_and_of_which_node_a_line_is(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, _, three = cluster.nodes
        three.kill()

        def serves() -> list[str]:
            """The nodes that serve the data of the third one, as each of the others says."""
            found = [re.findall(r"(n\d) serves the data of node n3 after", node.said()) for node in cluster.nodes[:2]]
            return [name for names in found for name in names]

        await cluster.until(lambda: len(serves()) == 2, "both nodes say who serves the data", SECONDS)
        (host,) = {*serves()}
        server = next(node for node in cluster.nodes if node.name == host)
        for line in ("recovered ", "connected to etcd", "connected to node", "serving"):
            await cluster.until(partial(says, server, f"for n3: {line}"), line, SECONDS)
        three.start()
        await cluster.whole()
        await cluster.until(
            lambda: "node n3 serves its data again after" in one.said(), "the way back is told", SECONDS
        )
        assert len(re.findall("node n3 is gone", one.said())) == 1, "data that goes back is no loss"
        assert not re.search("failed to connect to all addresses|Socket closed|Stream removed", one.said())
