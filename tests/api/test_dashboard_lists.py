"""Lists of the dashboard in a real browser: filters, an order, a total, and pages forth and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from .browser import BROWSER, Chromium
from .conftest import Ask, Join, Serve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]

SHOWN = "document.getElementById('view').textContent"
FIRST = "document.querySelector('#view td')?.textContent"
COUNT = "document.querySelector('#view [role=search] [role=status]')?.textContent"


def button(text: str) -> str:
    return f"[...document.querySelectorAll('#view button')].find((one) => one.textContent.startsWith('{text}'))"


def pressed(text: str) -> str:
    """Presses that button once it is there: the view may be drawn again at any moment."""
    return f"((one) => Boolean(one && (one.click(), true)))({button(text)})"


def field(name: str) -> str:
    return f"document.querySelector('#view [name={name}]')"


async def test_an_operator_finds_clients_and_retained_messages(
    serve: Serve, join: Join, ask: Ask, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve()
    for number in range(105):
        await join(broker, f"dev-{number:03}", username="pump" if number % 2 else "valve")
    busy = await join(broker, "zulu", username="ops")
    await busy.subscribe("plant/1", "plant/2", "plant/3")
    for topic in ("plant/1/speed", "plant/2/speed", "office/light"):
        body = {"topic": topic, "payload": f"of {topic}", "retain": True}
        assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/#clients")
        await page.until(f"{COUNT} === '1 to 100 of 106' && {FIRST} === 'dev-000'")
        await page.until(pressed("Next"))
        await page.until(f"{COUNT} === '101 to 106 of 106' && {FIRST} === 'dev-100'")
        await page.run("window.isOld = true; location.reload()")
        await page.until(f"!window.isOld && {COUNT} === '101 to 106 of 106' && !{button('Previous')}.hidden")
        await page.until(pressed("Previous"))
        await page.until(f"{COUNT} === '1 to 100 of 106' && {button('Previous')}.hidden")
        await page.until(pressed("subscriptions"))
        await page.until("document.querySelector('th[aria-sort=ascending]')?.textContent.startsWith('subscriptions')")
        await page.until(pressed("subscriptions"))
        await page.until(f"{FIRST} === 'zulu'")
        await page.screenshot(pictures / "list-sorted.png")
        await page.run(f"{field('user')}.focus()")
        await page.type("valve")
        await page.until(f"{COUNT} === '1 to 53 of 53'")
        assert await page.run(f"document.activeElement === {field('user')}"), "one can go on typing"
        await page.type("x")
        await page.until(f"{COUNT} === '0 of 0' && {SHOWN}.includes(\"Nothing found: user contains 'valvex'\")")
        await page.screenshot(pictures / "list-filter.png")
        await page.run("location.hash = '#retained?sort=topic&descending=true'")
        await page.until(f"{COUNT} === '1 to 3 of 3' && {FIRST} === 'plant/2/speed'")
        await page.until(pressed("topic"))
        await page.until(f"{FIRST} === 'office/light'")
        await page.run("location.hash = '#subscriptions?sort=filter&descending=true'")
        await page.until(f"{COUNT} === '1 to 3 of 3' && {FIRST} === 'plant/3'")
        await page.until(pressed("filter"))
        await page.until(f"{FIRST} === 'plant/1'")
        await page.run("location.hash = '#groups'")
        await page.until(f"{COUNT} === '0 of 0'")

        await page.run("location.hash = '#retained'")
        await page.until(f"{SHOWN}.includes('office/light')")
        await page.run(f"{field('filter')}.focus()")
        await page.type("plant/#")
        await page.until(f"{SHOWN}.includes('plant/2/speed') && !{SHOWN}.includes('office/light')")
        await page.run("document.querySelector('#view td a').click()")
        await page.until(f"{SHOWN}.includes('of plant/1/speed')")
        await page.screenshot(pictures / "retained-message.png")
        await page.run(f"window.confirm = () => true; {button('Delete')}.click()")
        await page.until(f"{SHOWN}.includes('office/light') && !{SHOWN}.includes('plant/1/speed')")
        assert not page.problems


async def test_a_list_without_a_view_of_its_own_has_that_of_its_declaration(
    serve: Serve, join: Join, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve()
    await join(broker, "one")
    async with chromium.page() as page:
        await page.go(broker.address("http") + "/#listeners")
        rows = "[...document.querySelectorAll('#view tr')]"
        cells = f"{rows}.map((row) => [...row.children].map((one) => one.textContent))"
        await page.until(f"{cells}.length === 2")
        head, row = await page.run(cells)
        assert (head, row) == (["address", "connections", "refused"], [broker.address("mqtt"), "1", ""])
        assert await page.run("document.getElementById('tab-listeners').hasAttribute('aria-current')")
        assert await page.run("document.getElementById('group-settings').hasAttribute('aria-current')")
        await page.screenshot(pictures / "list-declared.png")
        assert not page.problems
