"""Work that an operator does in the dashboard, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from starlingmq.wire.mqtt import Disconnect

from .browser import BROWSER, Chromium, Page
from .conftest import Ask, Join, Passwd, Serve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]

SHOWN = "document.getElementById('view')?.textContent"


def button(text: str) -> str:
    return f"[...document.querySelectorAll('#view button')].find((one) => one.textContent === '{text}')"


def button_of(column: str) -> str:
    return f"[...document.querySelectorAll('#view th button')].find((one) => one.textContent.startsWith('{column}'))"


async def test_an_operator_looks_into_a_queue_and_tests_the_rules(
    serve: Serve, join: Join, ask: Ask, tmp_path: Path, pictures: Path, chromium: Chromium
) -> None:
    rules = tmp_path / "acl.yaml"
    rules.write_text("rules:\n- deny: publish\n  topics: [plant/secret]\n- allow: all\n", encoding="utf-8")
    broker = await serve(auth={"acl": {"file": str(rules)}})
    away = await join(broker, "away", properties={0x11: 1000})
    await away.subscribe("plant/#", qos=1)
    await ask(broker, "DELETE", "/api/v1/client", params={"client_id": "away"})
    for number in range(1, 13):
        body = {"topic": f"plant/{number}", "payload": '{"speed": 17}', "qos": 1}
        assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=True)
        await page.go(broker.address("http") + "/#session?client_id=away")
        await page.until(f"{SHOWN}?.includes('plant/1')")
        waiting = "document.querySelectorAll('#view a[href^=\"#waiting\"]').length"
        link, headings = "document.getElementById('all-queue')", "[...document.querySelectorAll('h2')]"
        for shown, text, heading in ((10, "Show all 12", "Queue (10 of 12)"), (12, "Show the first 10", "Queue")):
            await page.until(f"{link}?.textContent === '{text}' && {waiting} === {shown}")
            assert await page.run(f"{headings}.some((one) => one.textContent === '{heading}')")
            await page.run(f"{link}.click()")
        await page.until(f"{waiting} === 10")
        await page.run("document.querySelector('#view a[href^=\"#waiting\"]').click()")
        await page.until("document.getElementById('payload')?.textContent === '{\"speed\": 17}'")
        await page.screenshot(pictures / "waiting.png")
        await page.run("location.hash = '#rules?client_id=away'")
        answer = "document.getElementById('rules-answer')?.textContent"
        topic = "document.querySelectorAll('#view form input')[3]"
        await page.until(f"{topic}")
        for tried, said in (("plant/secret", "Denied: rule 1 in"), ("plant/1", "Allowed: rule 2 in")):
            await page.run(f"{topic}.value = '{tried}'; {button('Test')}.click()")
            await page.until(f"{answer}.startsWith('{said}')")
        await page.screenshot(pictures / "rules.png")
        assert not page.problems


async def log_in(page: Page, user: str) -> None:
    await page.until("document.getElementById('login')?.open")
    for field in ("user", "password"):
        await page.run(f"document.getElementById('{field}').value = '{user}'")
    await page.run("document.querySelector('#login button').click()")
    await page.until("!document.getElementById('login').open")


async def test_a_viewer_is_shown_no_form_and_an_operator_changes_the_rights_of_a_user(
    serve: Serve, ask: Ask, join: Join, passwd: Passwd, tmp_path: Path, chromium: Chromium
) -> None:
    api = {"users": ["boss"], "viewers": ["guest"]}
    node = {"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1}
    broker = await serve(node=node, auth={"password": {"file": passwd(boss="boss", guest="guest")}, "api": api})
    new = {"name": "ann", "password": "secret", "api": "viewer"}
    assert (await ask(broker, "POST", "/api/v1/users", json=new, auth=("boss", "boss"))).status_code in (200, 201)
    views = {"bans": 1, "rules": 4, "settings": 10}
    shown = "[...document.querySelectorAll('#view .operates')].map((one) => one.offsetParent !== null)"
    row = "[...document.querySelectorAll('#view tr')].find((one) => one.textContent.startsWith('ann'))?.textContent"
    form = "[...document.querySelectorAll('#view form')].find((one) => one.textContent.includes('Change user'))"
    for user in ("guest", "boss"):
        async with chromium.page() as page:
            await page.go(broker.address("http") + "/")
            await log_in(page, user)
            for view, least in views.items():
                await page.run(f"location.hash = '#{view}'")
                await page.until(f"document.body.dataset.shown === '{view}' && {shown}.length >= {least}")
                assert {*await page.run(shown)} == {user == "boss"}, (user, view)
            if user == "boss":
                await page.run("location.hash = '#rules'")
                await page.until(f"{row}?.includes('viewer')")
                await page.run(f"{form}.elements.name.value = 'ann'; {form}.elements.api.value = 'operator'")
                await page.run(f"{button('Change user')}.click()")
                await page.until(f"{row}?.includes('operator')")


async def test_an_operator_sees_an_alarm_and_bans_the_client_that_causes_it(
    serve: Serve, join: Join, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve()
    peer = await join(broker, "noisy")
    assert broker._admin is not None
    await broker._admin.alarms.look()
    broker.state.ctx.counters.drop("queue_full", 6000)
    await broker._admin.alarms.look()
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/")
        await page.until("document.getElementById('tab-alarms')?.textContent === 'Alarms (1)'")
        await page.run("document.getElementById('tab-alarms').click()")
        await page.until(f"{SHOWN}?.includes('queue_full: 6,000 messages dropped since ')")
        assert await page.run(f"{SHOWN}.includes('PLAYBOOK.html#dropped-messages')")
        await page.screenshot(pictures / "alarms.png")
        await page.run("location.hash = '#session?client_id=noisy'")
        await page.until("[...document.querySelectorAll('#view a')].some((one) => one.textContent === 'Ban')")
        await page.run("[...document.querySelectorAll('#view a')].find((one) => one.textContent === 'Ban').click()")
        await page.until("document.querySelector('#view form input')?.value === 'noisy'")
        await page.run(f"{button('Ban')}.click()")
        await peer.expect(Disconnect)
        await page.until(f"{button('Lift')}")
        assert "noisy" in await page.run("document.querySelector('#view tbody').textContent")
        await page.screenshot(pictures / "bans.png")
        await page.run(f"{button('Lift')}.click()")
        await page.until(f"!{button('Lift')}")
        assert list(broker._access.bans.all(0.0)) == []
        assert not page.problems


async def test_the_slow_client_is_first_among_the_active_ones(
    serve: Serve, join: Join, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve()
    held = await join(broker, "held", properties={0x21: 1})  # Receive Maximum 1, and it acknowledges nothing
    await held.subscribe("plant/#", qos=1)
    publisher = await join(broker, "busy")
    for number in range(5):
        await publisher.publish(f"plant/{number}", b"x", 1)
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/#activity")
        row = "document.querySelector('#view tbody tr')?.children"
        await page.until(f"{row}?.[0].textContent === 'held' && {row}[3].textContent === '4'")
        await page.run(f"{button_of('messages in/s')}.click()")
        await page.until("document.querySelector('#view th[aria-sort]')?.textContent.startsWith('messages in/s')")
        await page.run(f"{button_of('waiting')}.click()")
        await page.until(f"{row}?.[0].textContent === 'held'")
        await page.screenshot(pictures / "activity.png")
        assert not page.problems


async def test_an_operator_publishes_a_message_and_sees_it(serve: Serve, chromium: Chromium, pictures: Path) -> None:
    broker = await serve()
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/#topics")
        await page.until("document.getElementById('stream-state')?.textContent.startsWith('live')")
        topic, payload = (
            f"document.querySelector('#view [aria-label=\"{one}\"]')" for one in ("Topic to publish to", "Payload")
        )
        await page.run(f"{topic}.value = 'plant/+'; {payload}.value = 'by hand'; {button('Publish')}.click()")
        await page.until("document.getElementById('published').className === 'bad'")
        await page.run(f"{topic}.value = 'plant/9'; {button('Publish')}.click()")
        await page.until("document.getElementById('published').textContent.startsWith('published to ')")
        await page.until("document.getElementById('messages').textContent.includes('plant/9')")
        assert "by hand" in await page.run("document.getElementById('messages').textContent")
        await page.until("document.getElementById('tree').textContent.match(/plant 1, 0(.1)?\\/s/)")
        await page.screenshot(pictures / "publish.png")
        assert not page.problems
