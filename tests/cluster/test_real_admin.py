"""Operators ask one node of a real cluster about all of them: also while a node is down, and after it is back."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.real import Cluster, Node
from tests.patience import slowness

from starlingmq.client import Client
from starlingmq.client.errors import ClientError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_operator_rpc_worlds.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


def with_http(settings: dict[str, Any]) -> None:
    port = int(settings["listeners"][0].rpartition(":")[2])
    settings["listeners"].append(f"http://127.0.0.1:{port + 50}")


class Operator:
    """Asks one node over HTTP."""

    def __init__(self, node: Node) -> None:
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{node.port + 50}/api/v1", trust_env=False, timeout=30.0 * slowness()
        )

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        answer = await self.http.request(method, path, **options)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def every(self, path: str, what: str, **params: Any) -> tuple[list[Any], set[str]]:
        """All pages of a list, and who was missing."""
        found: list[Any] = []
        missing: set[str] = set()
        cursor: str | None = ""
        while cursor is not None:
            page = await self.ask("GET", path, params={**params, **({"cursor": cursor} if cursor else {})})
            found += page[what]
            missing |= {one["node"] for one in page["missing"]}
            cursor = page["next"]
        return found, missing


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path, 3)
    for node in cluster.nodes:
        node.configure(with_http)
    with cluster:
        await cluster.whole()
        yield cluster


async def connected(node: Node, client_id: str) -> Client:
    client = Client(node.url, client_id=client_id, clean_start=False, session_expiry=600)
    await client.connect()
    return client


async def is_banned(node: Node, client_id: str) -> bool:
    try:
        client = await connected(node, client_id)
    except ClientError:
        return True
    await client.disconnect()
    return False


async def test_any_node_answers_for_all_and_lists_missing_nodes(three: Cluster) -> None:
    """Long because three processes start once for all of it, and each part finds what the one before has left."""
    one, two, last = three.nodes
    operator, other = Operator(one), Operator(two)
    clients = [await connected(node, f"{node.name}-{number}") for node in three.nodes for number in range(3)]
    await clients[-2].subscribe("a/#", qos=1)
    names = {f"{node.name}-{number}": node.name for node in three.nodes for number in range(3)}

    # Lists, in pages that end in the middle of nodes.
    for limit in (2, 100):
        found, missing = await operator.every("/clients", "clients", limit=limit)
        assert {each["client_id"]: each["node"] for each in found} == names and len(found) == 9 and not missing
    found, _ = await operator.every("/sessions", "sessions", node=two.name)
    assert {each["client_id"] for each in found} == {name for name, node in names.items() if node == two.name}
    found, _ = await operator.every("/subscriptions", "subscriptions")
    assert [(each["filter"], each["node"]) for each in found] == [("a/#", last.name)]
    assert (await operator.ask("GET", "/session", params={"client_id": f"{two.name}-1"}))["node"] == two.name
    answer = await operator.ask("GET", "/cluster/overview")
    assert [each["node"] for each in answer["nodes"]] == [node.name for node in three.nodes]
    assert [each["holds"]["clients"] for each in answer["nodes"]] == [3, 3, 3]

    # Actions on another node.
    done = await operator.ask("DELETE", "/client", params={"client_id": f"{last.name}-2"})
    assert (done["done"], done["nodes"], done["missing"]) == ("disconnected", [last.name], [])
    done = await operator.ask("DELETE", "/session", params={"client_id": f"{two.name}-2"})
    assert done["done"] == "ended" and done["nodes"] == [two.name]
    body = {"name": "kept", "topics": ["k/#"]}
    made = await operator.ask("POST", "/streams", json=body)
    assert sorted(made["nodes"]) == sorted(node.name for node in three.nodes)
    listed = await other.ask("GET", "/streams")
    assert [(each["name"], each["node"]) for each in listed["streams"]] == [("kept", node.name) for node in three.nodes]
    assert (await operator.ask("GET", "/config", params={"node": last.name}))["node"]["name"] == last.name
    found = await operator.ask("POST", "/reload", params={"node": "*"})
    assert set(found["nodes"]) == {node.name for node in three.nodes}
    nothing = {"reloaded": True, "restart": [], "warnings": [], "before": {}, "after": {}, "certificates": []}
    assert list(found["nodes"].values()) == 3 * [nothing]
    await three.until(
        lambda: all(each["round_trip_ms"] for each in last.ask("peers")["peers"]), "round trips are known"
    )
    lines = await operator.ask("GET", "/log", params={"node": last.name, "limit": 1000})
    assert any("closed the connection of client" in each["message"] for each in lines["lines"])

    # The way of a message, seen from a node that it does not come to.
    begun = two.ask("trace.begin", topic="a/#")
    await clients[0].publish("a/b", b"x", qos=1)
    steps: list[tuple[str, str]] = []

    def delivered() -> bool:
        told = two.ask("trace.next", trace=begun["trace"])["events"]
        steps.extend((each["node"], each["kind"]) for each in told)
        return (last.name, "delivered") in steps

    await three.until(delivered, "it was delivered")
    assert steps[0] == (one.name, "accepted")
    assert {(one.name, "forwarded"), (last.name, "arrived"), (last.name, "matched")} <= set(steps)
    two.ask("trace.end", trace=begun["trace"])

    # A node dies.
    last.kill()
    await three.until(lambda: not one.sees(last), f"{one.name} misses {last.name}")
    found, missing = await operator.every("/clients", "clients", limit=2)
    assert {each["node"] for each in found} == {one.name, two.name} and missing == {last.name}
    answer = await operator.ask("GET", "/cluster/overview")
    assert [each["node"] for each in answer["missing"]] == [last.name]
    refused = await operator.http.delete("/client", params={"client_id": f"{last.name}-2"})
    assert refused.status_code == 503 and last.name in refused.json()["error"]

    # It hears of a ban when it is back.
    banned = await operator.ask("POST", "/bans", json={"kind": "client", "name": "evil", "seconds": 600})
    assert sorted(banned["nodes"]) == [one.name, two.name] and [each["node"] for each in banned["missing"]] == [
        last.name
    ]
    assert await is_banned(two, "evil")
    last.start()
    bans: dict[str, Any] = {}

    def everywhere() -> bool:
        bans.update(one.ask("bans"))
        return sorted(each["node"] for each in bans["bans"]) == sorted(node.name for node in three.nodes)

    await three.until(everywhere, "all nodes have the ban")
    assert await is_banned(last, "evil")
    lifted = await operator.ask("DELETE", "/bans", params={"kind": "client", "name": "evil"})
    assert sorted(lifted["nodes"]) == sorted(node.name for node in three.nodes)
    assert not await is_banned(last, "evil")

    # Draining, from elsewhere.
    await operator.ask("POST", "/drain", params={"node": last.name})
    assert (await other.ask("GET", "/drain", params={"node": last.name}))["draining"]
    await operator.ask("DELETE", "/drain", params={"node": last.name})
    assert not (await other.ask("GET", "/drain", params={"node": last.name}))["draining"]
    for client in clients:
        await client.disconnect()
    await operator.http.aclose()
    await other.http.aclose()
