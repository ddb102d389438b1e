"""The work of an operator in the dashboard of three real nodes while one is dead, and when it is back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from starlingmq.client import Client, ConnectRefused, Subscription
from tests.cluster.real import Cluster, Node
from tests.patience import within

from .browser import BROWSER, PATIENCE, Chromium, Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(alone="a browser and a cluster of real nodes, one of which dies"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

SHOWN = "document.getElementById('view')?.textContent"
STATE = "document.getElementById('state')?.textContent"
AWAY = "nightly/report-of-the-north-building"


def dashboard(port: int) -> str:
    return f"http://127.0.0.1:{port + 60}"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    rules = tmp_path / "acl.yaml"
    rules.write_text("rules:\n- deny: publish\n  topics: [plant/secret]\n- allow: all\n", encoding="utf-8")
    cluster = Cluster(tmp_path, 3, {"copies": 2}, proxies=False)
    for node in cluster.nodes:

        def change(settings: dict[str, Any]) -> None:
            port = int(settings["listeners"][0].rpartition(":")[2])
            settings["listeners"] += [dashboard(port), f"ws://127.0.0.1:{port + 70}/mqtt"]
            settings["auth"] = {"acl": {"file": str(rules)}}
            settings["streams"] = {"define": [{"name": "telemetry", "topics": ["plant/#"]}]}

        node.configure(change)
    with cluster:
        asyncio.run(cluster.whole())
        yield cluster


async def connected(stack: AsyncExitStack, node: Node, client_id: str, *filters: str) -> Client:
    client = await stack.enter_async_context(Client(node.url, client_id=client_id, session_expiry=600))
    if filters:
        await client.subscribe([Subscription(filter=one, qos=1) for one in filters])
    return client


async def at(page: Page, address: str, *texts: str) -> None:
    """Open a view, and wait until it shows all of these."""
    await page.run(f"location.hash = '#{address}'")
    seen = " && ".join(f"{SHOWN}?.includes({text!r})" for text in texts)
    await page.until(f"document.body?.dataset.shown === '{address.partition('?')[0]}' && {seen}")


def button(text: str) -> str:
    return f"[...document.querySelectorAll('#view button')].find((one) => one.textContent === '{text}')"


async def look_at_clients(page: Page, second: Node) -> None:
    """Filter, a session at another node with a message that waits, disconnect, ban, lift."""
    await at(page, "clients?q=pump", "pump-2", "n2")
    assert "meter" not in await page.run("document.querySelector('#view tbody').textContent")
    await at(page, f"session?client_id={AWAY}", f"Session of {AWAY}")
    waiting = "document.querySelector('#view a[href^=\"#waiting\"]')"
    await page.until(waiting)
    await page.run(f"{waiting}.click()")
    await page.until("document.getElementById('payload')?.textContent === '{\"rpm\": 17}'")
    await at(page, "session?client_id=pump-2", "Disconnect", "connected at")
    await page.run(f"window.confirm = () => true; {button('Disconnect')}.click()")
    await page.until(f"!{button('Disconnect')}")
    await at(page, "bans?kind=client&name=pump-2", "Ban")
    await page.until("document.querySelector('#view form input').value === 'pump-2'")
    await page.run(f"{button('Ban')}.click()")
    await page.until(f"{button('Lift')}")
    with pytest.raises(ConnectRefused):
        await Client(second.url, client_id="pump-2").connect()
    await page.run(f"{button('Lift')}.click()")
    await page.until(f"!{button('Lift')}")


async def look_at_messages(page: Page, second: Node, publisher: Client) -> None:
    """Retained messages, groups, streams, and a WebSocket client that gets what is published at another node."""
    await at(page, "retained?filter=office%2F%23", "office/light")
    await page.run("document.querySelector('#view td a').click()")
    await page.until(f"document.querySelector('#view pre')?.textContent === 'on' && {button('Delete')}")
    await page.run(f"{button('Delete')}.click()")
    await page.until("location.hash === '#retained'")
    await at(page, "retained?filter=office%2F%23", "Nothing found: topic filter 'office/#'")
    await at(page, "groups", "workers", "n1: 1, n2: 1")
    await at(page, "streams", "telemetry", "next offset")
    await at(page, "hand", "WebSocket client")
    await page.until("document.getElementById('hand-url').value.startsWith('ws://')")
    await page.run("document.getElementById('hand-connect').click()")
    await page.until("document.getElementById('hand-state').className === 'ok'")
    await page.run("document.getElementById('hand-filter').focus()")
    await page.type("office/#\r")
    await page.until("document.getElementById('hand-told').textContent.startsWith('subscribed')")
    await publisher.publish("office/door", f"open, says {second.name}".encode(), qos=1)
    await page.until("document.getElementById('hand-messages').textContent.includes('open, says n2')")
    await page.run("document.getElementById('hand-connect').click()")


async def change_settings(page: Page) -> None:
    """Test a rule, change a setting at all nodes (the dead one is named), and read the log of another node."""
    await at(page, "rules?client_id=meter", "plant/secret", "Users of this node")
    await page.run("document.querySelectorAll('#view form input')[3].value = 'plant/secret'")
    await page.run("document.querySelector('#view form button').click()")
    await page.until("document.getElementById('rules-answer').textContent.startsWith('Denied: rule 1')")
    await at(page, "settings", "mqtt.max_inflight")
    named = "(one) => one.textContent.startsWith('mqtt.max_inflight')"
    await page.run(f"[...document.querySelectorAll('#view tr')].find({named}).querySelector('button').click()")
    await page.run("document.querySelector('#view form input').value = 'many'")
    await page.run("document.querySelector('#view form select').value = '*'")
    await page.run(f"{button('Check')}.click()")
    told = "document.getElementById('setting-told')"
    await page.until(f"{told}.className === 'bad'")
    await page.run(f"document.querySelector('#view form input').value = '77'; {button('Check')}.click()")
    await page.until(f"{told}.textContent.includes('n2: 0 77') && !{button('Apply')}.hidden")
    await page.run(f"{button('Apply')}.click()")
    await page.until(f"({told}.textContent.match(/applied/g) ?? []).length >= 2")
    await at(page, "log?node=n2", "Log of n2", "node n3 is gone")


async def test_an_operator_works_while_a_node_is_dead_and_sees_it_come_back(
    three: Cluster, chromium: Chromium, pictures: Path
) -> None:
    first, second, third = three.nodes
    async with AsyncExitStack() as stack:
        meter = await connected(stack, first, "meter", "$share/workers/plant/#")
        pump = Client(second.url, client_id="pump-2", session_expiry=600)
        await pump.connect()
        publisher = await connected(stack, second, "publisher", "$share/workers/plant/#")
        away = Client(second.url, client_id=AWAY, session_expiry=600)
        await away.connect()
        await away.subscribe([Subscription(filter="plant/#", qos=1)])
        await away.disconnect()
        await meter.publish("plant/1/speed", b'{"rpm": 17}', qos=1)
        await meter.publish("office/light", b"on", qos=1, retain=True)
        page = await stack.enter_async_context(chromium.page())
        await page.look_like(1280, 900, dark=False)
        await page.go(dashboard(first.port) + "/")
        await page.until(f"{STATE} === 'serving' && {SHOWN}?.includes('Now, all 3 nodes')")
        charts = "[...document.querySelectorAll('svg.plot polyline')].reduce((sum, one) => sum + one.points.length, 0)"
        await page.until(f"{charts} > 20")
        third.kill()
        await page.until(f"{STATE}?.startsWith('2 of 3 nodes reachable; n3 gone since ')")
        await page.until(f"{SHOWN}?.includes('Now, 2 of 3 nodes') && {SHOWN}?.includes('gone since')")
        await at(page, "alarms", "node: n3")
        await page.screenshot(pictures / "operator-alarm.png")
        await look_at_clients(page, second)
        await look_at_messages(page, second, publisher)
        await change_settings(page)
        await page.screenshot(pictures / "operator-log.png")
        await at(page, "overview", "gone since")
        await page.run("location.reload()")
        await page.until(f"document.body?.dataset.shown === 'overview' && {charts} > 20")
        third.start()
        await three.whole()
        await page.until(f"{STATE} === 'serving'")
        await page.until(f"{SHOWN}?.includes('Now, all 3 nodes') && !{SHOWN}?.includes('gone since')")
        async with within(PATIENCE):
            await at(page, "alarms", "Ended")
            tables = "[...document.querySelectorAll('#view table')]"
            active = f"({SHOWN}.includes('There are no alarms.') ? 0 : {tables}[0].rows.length - 1)"
            counted = f"'Alarms' + ({active} ? ` (${{{active}}})` : '')"
            await page.until(
                f"{tables}.at(-1)?.textContent.includes('node: n3') && "
                f"document.getElementById('tab-alarms').textContent === {counted}"
            )
        await page.screenshot(pictures / "operator-back.png")
        assert not [problem for problem in page.problems if "404" not in problem and "400" not in problem]
