"""Users that an operator makes at one node of a real cluster: at all nodes, without etcd, and after all were killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.real import AwayError, Cluster, Node
from tests.peer import Peer

from starlingmq.wire.mqtt import Connack, Connect, Disconnect
from starlingmq.wire.reasons import Reason

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_shared_value.py"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


def with_logins(settings: dict[str, Any]) -> None:
    settings["auth"] = {"methods": ["scram", "password"], "failures": {"delay": 0, "limit": 0}}


async def login(node: Node, password: bytes) -> int:
    peer = await Peer.open(node.url)
    peer.send(Connect(5, f"c-{node.name}", username="ann", password=password))
    reason = (await peer.expect(Connack)).reason
    await peer.close()
    return reason


def refusal(node: Node, action: str, **arguments: str) -> str:
    try:
        node.ask(action, **arguments)
    except AwayError as error:
        return str(error)
    return ""


async def test_a_change_holds_at_all_nodes_and_survives_etcd_and_kills(tmp_path: Path) -> None:
    """Long because three processes start once for all of it, and each part finds what the one before has left."""
    cluster = Cluster(tmp_path, 3, proxies=False)
    for node in cluster.nodes:
        node.configure(with_logins)
    with cluster:
        await cluster.whole()
        one, two, three = cluster.nodes

        def agree(revision: int) -> bool:
            return {node.ask("users")["revision"] for node in cluster.nodes} == {revision}

        assert one.ask("user.add", name="ann", password="right") == {"revision": 1}
        await cluster.until(lambda: agree(1), "all nodes have the user")
        assert [await login(node, b"right") for node in cluster.nodes] == [0, 0, 0]
        ann = await Peer.connect(three.url, "ann", 5, username="ann", password=b"right")
        assert "exists" in refusal(two, "user.add", name="ann", password="again")

        # No etcd answers: the nodes keep what they know.
        etcds = [found for node in (two, three) if (found := node.etcd()) is not None]
        for each in etcds:
            each.suspend()
        assert "etcd" in refusal(one, "user.change", name="ann", api="viewer", revision="1")
        assert await login(two, b"right") == 0
        for each in etcds:
            each.resume()

        # The change may have been done when etcd was back, as the refusal said; so the next one is for any revision.
        await cluster.until(lambda: not refusal(two, "user.change", name="ann", password="other"), "etcd is back")
        assert (await ann.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
        await ann.close()
        revision = two.ask("users")["revision"]
        await cluster.until(lambda: agree(revision), "all nodes have the password")
        refused = Reason.BAD_USER_NAME_OR_PASSWORD
        assert [await login(node, b"right") for node in cluster.nodes] == 3 * [refused]

        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        await cluster.whole()
        assert [await login(node, b"other") for node in cluster.nodes] == [0, 0, 0]
        assert three.ask("user.delete", name="ann") == {"revision": revision + 1}
        await cluster.until(lambda: agree(revision + 1), "no node has the user")
        assert [await login(node, b"other") for node in cluster.nodes] == 3 * [refused]
        assert not any(secret in node.said() for node in cluster.nodes for secret in ("argon2", "scram-sha"))
