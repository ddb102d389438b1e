"""Requests to $SYS.REQ.> on real nodes: each node answers, whichever is asked, with the tools of nats-server too."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.cluster.real import Cluster
from tests.cluster.test_real_nats import address
from tests.patience import slowness, within

import nats
from starlingmq.auth import password_file
from starlingmq.auth.password_file import PasswordFile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/nats/test_system_requests.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

PING = "$SYS.REQ.SERVER.PING"
RULES = """
rules:
  - {allow: publish, users: [ops], topics: ["$SYS/REQ/#"]}
  - {allow: all}
"""
CLI_SECONDS = 30


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(password_file, "HASHER", PasswordHasher(1, 1024, 1))
    users = PasswordFile()
    users.set("ops", "right")
    users.set("ann", "right")
    users.write(tmp_path / "passwords")
    (tmp_path / "acl").write_text(RULES)

    def protect(settings: dict[str, Any]) -> None:
        settings["listeners"].append("nats://127.0.0.1:0")
        settings["auth"] = {
            "password": {"file": str(tmp_path / "passwords")},
            "acl": {"file": str(tmp_path / "acl")},
            "allow_anonymous": True,
        }

    cluster = Cluster(tmp_path / "nodes", 3)
    for node in cluster.nodes:
        node.configure(protect)
    with cluster:
        asyncio.run(cluster.whole())
        yield cluster


async def gather(client: Client, subject: str, count: int) -> list[Any]:
    """``count`` answers."""
    answers: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = client.new_inbox()

    async def note(message: Msg) -> None:
        answers.put_nowait(message)

    subscription = await client.subscribe(inbox, cb=note)
    await client.publish(subject, b"", reply=inbox)
    async with within(20):
        found = [json.loads((await answers.get()).data) for _ in range(count)]
    await subscription.unsubscribe()
    return found


def by_tool(url: str, user: str, *command: str) -> subprocess.CompletedProcess[str]:
    """The output of the nats-io command line."""
    return subprocess.run(
        ["nats", "-s", url, "--user", user, "--password", "right", "--timeout", "20s", *command],
        capture_output=True,
        text=True,
        timeout=CLI_SECONDS * slowness(),
        check=False,
    )


async def test_every_node_answers_and_one_that_is_gone_does_not(three: Cluster) -> None:
    names = {node.name for node in three.nodes}
    urls = [f"nats://{address(node)}" for node in three.nodes]
    ops = [await nats.connect(url, user="ops", password="right") for url in urls]
    for client in ops:
        found = await gather(client, PING, 3)
        assert {one["server"]["name"] for one in found} == names
        assert all(one["statsz"]["active_servers"] == 3 and len(one["statsz"]["routes"]) == 2 for one in found)
    ids = {one["server"]["name"]: one["server"]["id"] for one in await gather(ops[0], f"{PING}.VARZ", 3)}
    assert len(set(ids.values())) == 3
    for name, id in ids.items():
        answer = await ops[0].request(f"$SYS.REQ.SERVER.{id}.CONNZ", b"", timeout=20 * slowness())
        data = json.loads(answer.data)
        assert data["server"]["name"] == name and data["data"]["server_id"] == id and data["data"]["total"] == 1
    if shutil.which("nats"):
        for user, answered in (("ops", True), ("ann", False)):
            done = await asyncio.to_thread(by_tool, urls[0], user, "server", "ping", "3")
            assert all((name in done.stdout) == answered for name in names), done.stdout + done.stderr
        done = await asyncio.to_thread(by_tool, urls[1], "ops", "server", "list", "--json", "3")
        assert {one["server"]["name"] for one in json.loads(done.stdout)} == names, done.stderr
        done = await asyncio.to_thread(by_tool, urls[1], "ops", "server", "info", ids[three.nodes[2].name])
        assert f"Server information for {three.nodes[2].name}" in done.stdout, done.stderr
    await ops[2].close()
    three.nodes[2].kill()
    left = names - {three.nodes[2].name}
    async with within(60):
        while True:
            found = await gather(ops[0], PING, 2)
            assert {one["server"]["name"] for one in found} == left
            if all(one["statsz"]["active_servers"] == 2 for one in found):
                break
            await asyncio.sleep(0.5)  # a request stays open while a node may still answer
    for client in ops[:2]:
        await client.close()
