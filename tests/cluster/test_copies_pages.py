"""COPIES.md: the commands for the loss of a machine, a new disk and more nodes are run as they stand on the page."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.chaos_streams import keep_stream, stream_rows
from tests.cluster.real import Cluster, Node
from tests.cluster.test_real_copies import SECONDS, copied, found, subscribe
from tests.patience import slowness, within

from starlingmq.client import Client

PAGE = Path(__file__).parents[2] / "docs" / "COPIES.md"
SAFE = "the loss of any one node would lose nothing that was acknowledged"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_real_copies.py"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


def commands(heading: str) -> list[str]:
    """The lines of the shell blocks below a heading of the page."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^( *)```sh\n(.*?)^\1```", section, re.MULTILINE | re.DOTALL)
    return [line.strip() for _, block in blocks for line in block.splitlines()]


async def run(line: str, node: Node) -> tuple[int, str]:
    """One line of the page, at that node: exit code and output."""
    if line.startswith("starlingmq "):
        command = [sys.executable, "-m", *line.split(), "-c", str(node.settings)]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=SECONDS * slowness()
        )
        return done.returncode, done.stdout + done.stderr
    if line in ("sudo systemctl stop starlingmq", "sudo systemctl restart starlingmq"):
        assert await asyncio.to_thread(node.stop) == 0
    elif line.startswith("# replace the disk"):
        shutil.rmtree(node.data_dir)
    if line in ("sudo systemctl start starlingmq", "sudo systemctl restart starlingmq"):
        node.start()
    return 0, ""


async def until_safe(line: str, node: Node) -> None:
    """The command, until it says that the loss of a node would be survived."""
    async with within(SECONDS):
        while True:
            code, told = await run(line, node)
            assert (code == 0) == (SAFE in told) and code in (0, 3), told
            if code == 0:
                return
            await asyncio.sleep(0.2)  # the command is the operator's; it asks for no event


async def fill(node: Node) -> None:
    """A persistent session with a queue, a retained message, and a stream."""
    await subscribe(node, "to/sleeper", 1)
    async with Client(node.url) as client, within(SECONDS):
        for number in range(50):
            await client.publish("to/sleeper", b"%d" % number, qos=1)
            await client.publish("readings/a", b"%d" % number, qos=1)
        await client.publish("kept", b"yes", qos=1, retain=True)


async def check(cluster: Cluster, at: Node, origin: str) -> None:
    """All of it is there, at a node that serves."""
    assert await found(at, 50) == list(range(50))
    async with Client(at.url) as client, within(SECONDS):
        await client.subscribe("kept", 1)
        async for message in client.messages():
            assert message.retain and message.payload == b"yes"
            break
    _, rows = await asyncio.to_thread(stream_rows, at, origin)
    assert [payload for _, payload in rows] == [b"%d" % number for number in range(50)]


async def test_a_disk_is_replaced_and_a_machine_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cluster = Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3}, proxies=False)
    for node in cluster.nodes:
        node.configure(keep_stream)
    with cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, two, three = cluster.nodes
        await fill(three)
        *lines, look = commands("Replace a disk")
        for line in lines:
            assert await run(line, three) == (0, "")
        await cluster.whole()
        await until_safe(look, three)
        three.kill()
        shutil.rmtree(three.data_dir)
        look, forget, look_again = commands("A machine is lost")
        assert re.search("^n3 ", (await run(look, one))[1], re.MULTILINE)
        await check(cluster, two, "n3")
        async with within(60.0):
            while (result := await run(forget, one))[0]:
                assert "lease expires" in result[1] or "try again" in result[1], result[1]
                await asyncio.sleep(0.2)
        await until_safe(look_again, one)
        assert not re.search("^n3 ", (await run(look_again, one))[1], re.MULTILINE)


async def test_one_node_grows_to_three_and_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cluster = Cluster(tmp_path, 1, {"copies": 1, "lease_ttl": 3}, proxies=False)
    (one,) = cluster.nodes
    one.configure(keep_stream)
    with cluster:
        await cluster.whole()
        await fill(one)
        cluster.more = {"copies": 2, "lease_ttl": 3}
        for name in ("n2", "n3"):
            cluster.add(name)
            await cluster.whole()
        one.configure(lambda settings: settings["cluster"].update(copies=2))
        restart, look = commands("Grow from one node to three")
        assert await run(restart, one) == (0, "")
        await cluster.whole()
        await until_safe(look, one)
        one.kill()
        shutil.rmtree(one.data_dir)
        await check(cluster, cluster["n2"], "n1")
