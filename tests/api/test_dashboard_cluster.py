"""The dashboard of three real nodes in a real browser: nodes die while it is open, also the one that it is of."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.real import Cluster, Node

from .browser import BROWSER, Chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(alone="a browser and a cluster of real nodes that die"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

STATE = "document.getElementById('state').textContent"


def http_url(node: Node) -> str:
    return f"http://127.0.0.1:{node.port + 60}"


@contextmanager
def nodes_with_http(directory: Path, **settings: Any) -> Iterator[Cluster]:
    cluster = Cluster(directory, 3, settings, proxies=not settings)
    for node in cluster.nodes:

        def with_http(settings: dict[str, Any], node: Node = node) -> None:
            port = int(settings["listeners"][0].rpartition(":")[2])
            settings["listeners"].append(f"http://127.0.0.1:{port + 60}")

        node.configure(with_http)
    with cluster:
        yield cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with nodes_with_http(tmp_path) as cluster:
        asyncio.run(cluster.whole())
        yield cluster


def row(name: str, online: bool) -> str:
    """Whether the table of nodes says so."""
    cell = f"[...document.querySelectorAll('#view td')].find((cell) => cell.textContent.startsWith('{name}'))"
    return f"{cell}?.parentElement.children[2].textContent === '{'yes' if online else 'no'}'"


async def test_nodes_die_while_the_page_is_open(three: Cluster, chromium: Chromium, pictures: Path) -> None:
    first, _, third = three.nodes
    async with chromium.page() as page:
        await page.look_like(1000, 1100, dark=False)
        await page.go(http_url(first) + "/#nodes")
        await page.until("document.querySelectorAll('svg.map .link.good').length >= 2")
        assert await page.run("document.querySelectorAll('svg.map .node.good').length") == 3
        await page.screenshot(pictures / "cluster.png")
        third.kill()
        await page.until("document.querySelector('svg.map .link.cut')")
        await page.until(row(third.name, online=False))
        gone = f"{third.name} gone since "
        await page.until(f"{STATE}.startsWith('2 of 3 nodes reachable; {gone}')")
        assert await page.run("document.getElementById('state').className") == "bad"
        assert "gone since" in await page.run("document.querySelector('#view table').textContent")
        await page.go(http_url(first) + "/#overview")
        await page.until("document.querySelector('#view').textContent.includes(', 2 of 3 nodes')")
        assert "gone since" in await page.run("document.querySelector('#view table').textContent")
        assert "all 2 nodes" not in await page.run("document.querySelector('#view').textContent")
        await page.go(http_url(first) + "/#nodes")
        await page.until("document.querySelector('svg.map .link.cut')")
        await page.screenshot(pictures / "cluster-without-one.png")
        third.start()
        await page.until(f"{row(third.name, online=True)} && !document.querySelector('svg.map .link.cut')")
        await page.look_like(390, 844, dark=True)
        await page.screenshot(pictures / "cluster-phone.png")
        assert await page.run("document.documentElement.scrollWidth") <= 390
        first.kill()
        await page.until(f"{STATE} === 'the broker does not answer'")
        await page.screenshot(pictures / "cluster-gone.png")
        first.start()
        await page.until(f"{STATE} === 'serving'")
        assert not page.problems


async def test_copies_are_shown_and_which_node_serves_a_lost_one(
    tmp_path: Path, pictures: Path, chromium: Chromium
) -> None:
    with nodes_with_http(tmp_path, copies=2, lease_ttl=3) as cluster:
        await cluster.whole()
        first, _, third = cluster.nodes
        async with chromium.page() as page:
            await page.look_like(1000, 1300, dark=False)
            await page.go(http_url(first) + "/#nodes")
            tables = "[...document.querySelectorAll('#view table')]"
            copies = f"{tables}.find((one) => one.textContent.includes('lost with it now'))"
            await page.until(f"({copies}?.textContent.match(/nothing/g) ?? []).length === 3")
            assert "in step" in await page.run(f"{copies}.textContent")
            await page.screenshot(pictures / "copies.png")
            third.kill()
            rows = f"[...{copies}.querySelectorAll('tbody tr')]"
            of_third = f"{rows}.find((one) => one.children[0].textContent === '{third.name}')"
            await page.until(f"!!{of_third}?.children[1].querySelector('.bad')")
            await page.until(f"{tables}[0].textContent.includes('serves its data')")
            await page.screenshot(pictures / "copies-without-one.png")
            await page.go(http_url(first) + "/#overview")
            await page.until("document.querySelector('#view table').textContent.includes('serves its data')")
            await page.go(http_url(first) + "/#nodes")
            await page.look_like(390, 844, dark=True)
            await page.until(f"{copies}")
            assert await page.run("document.documentElement.scrollWidth") <= 390
            await page.screenshot(pictures / "copies-phone.png")
            assert not page.problems
