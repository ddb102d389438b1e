"""Tables, times and units of the dashboard in a real browser: as a person reads them, on a desk and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .browser import BROWSER, Chromium, Page
from .conftest import Ask, Join, Passwd, Serve, log_in

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]

SHOWN = "document.getElementById('view').textContent"
LONG = "press-line-07/sensor-temperature-0007/building-north/floor-3"
VIEWS = {"clients": "MQTT 5.0", "activity": LONG, "subscriptions": LONG, "settings": "GiB"}
"""Views with tables, and a text that each shows when it is complete."""
SPLIT = """[...document.querySelectorAll('#view td')].filter((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
  return cell.textContent.length <= 24 && !cell.querySelector('button') && lines > 1;
}).length"""
WIDER = "[...document.querySelectorAll('#view td')].filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length"


async def shown(page: Page, address: str, text: str) -> None:
    await page.run(f"location.hash = '#{address}'")
    await page.until(f"document.body?.dataset.shown === '{address.partition('?')[0]}' && {SHOWN}.includes('{text}')")


async def test_no_short_value_is_split_and_a_row_is_a_card_on_a_phone(
    serve: Serve, join: Join, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve()
    peer = await join(broker, LONG, username="valve")
    await peer.subscribe("plant/7/floor/+/temperature/celsius/raw", qos=1)
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/")
        for address, text in VIEWS.items():
            await shown(page, address, text)
            assert await page.run(SPLIT) == 0, address
        await page.look_like(390, 844, dark=False)
        for address, text in VIEWS.items():
            await shown(page, address, text)
            assert await page.run("document.documentElement.scrollWidth") <= 390, address
            assert await page.run(WIDER) == 0, address
            assert await page.run("document.querySelector('#view tbody tr').offsetWidth") <= 390, address
        await shown(page, "clients", "MQTT 5.0")
        cells = "[...document.querySelectorAll('#view tbody tr td')]"
        titles = f"{cells}.map((one) => getComputedStyle(one, '::before').content)"
        assert '"client: "' in await page.run(titles), "a value on a phone has its title"
        await page.run(
            "[...document.querySelectorAll('#view th button')].find((one) => one.textContent === 'queued').click()"
        )
        await page.until("location.hash.includes('sort=queued')")
        await page.screenshot(pictures / "clients-phone.png")
        assert not page.problems


async def test_times_are_those_of_the_reader_and_values_have_units(
    serve: Serve, join: Join, ask: Ask, chromium: Chromium
) -> None:
    broker = await serve()
    away = await join(broker, "away", properties={0x11: 7200})
    await away.subscribe("plant/#", qos=1)
    await ask(broker, "DELETE", "/api/v1/client", params={"client_id": "away"})
    body = {"topic": "plant/1", "payload": "21.5", "retain": True, "qos": 1}
    assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
    async with chromium.page() as page:
        await page.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kathmandu")
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/")
        for address, text in (
            ("session?client_id=away", "7,200 s"),
            ("waiting?client_id=away&place=queue&number=0", "21.5"),
            ("message?topic=plant%2F1", "21.5"),
            ("sessions", "away"),
        ):
            await shown(page, address, text)
            text = await page.run("document.getElementById('view').innerText")
            assert "+00:00" not in text, address
        times = await page.run(
            "[...document.querySelectorAll('#view time')].map((one) => [one.dateTime, one.textContent])"
        )
        assert times
        for iso, told in times:
            hour, minute = int(iso[11:13]), int(iso[14:16])
            there = divmod(hour * 60 + minute + 345, 60)  # 5:45 ahead
            assert f"{there[0] % 24:02}:{there[1]:02}:" in told, (iso, told)
        await shown(page, "settings", "mqtt.session_expiry_v3")
        named = "(one) => one.textContent.startsWith('mqtt.session_expiry_v3')"
        row = f"[...document.querySelectorAll('#view tr')].find({named})"
        assert await page.run(f"{row}.children[1].textContent") == "7d"
        await page.run(f"{row}.querySelector('button').click()")
        field = "document.querySelector('#view form input')"
        assert await page.run(f"{field}.value") == "7d"
        await page.run(f"{field}.value = '36h'; document.querySelector('#view form button').click()")
        await page.until("document.getElementById('setting-told').textContent.includes('7d 36h')")
        assert not page.problems


async def test_the_tree_of_topics_is_worked_by_keyboard_while_messages_come(
    serve: Serve, join: Join, chromium: Chromium
) -> None:
    broker = await serve()
    author = await join(broker, "author")
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/#topics")
        await page.until("document.getElementById('stream-state')?.textContent.startsWith('live')")
        for number in range(60):
            await author.publish(f"plant/{number % 3}/{number}/speed", b"1")
        branch = "document.querySelector('#tree summary[data-path=\"/plant/1\"]')"
        await page.until(f"{branch}?.textContent.includes('20,')")
        assert await page.run("document.querySelectorAll('#tree summary').length") <= 40, "no more than has room"
        assert not await page.run(f"{branch}.parentElement.open")
        await page.run(f"{branch}.focus()")
        await page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
        await page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
        await page.until("document.querySelector('#tree summary[data-path=\"/plant/1/1\"]')")
        for number in range(60, 64):
            await author.publish(f"plant/1/{number}/speed", b"1")
        await page.until(f"{branch}.textContent.includes('24,')")
        assert await page.run("document.activeElement.dataset.path") == "/plant/1", "the focus stays in the tree"
        assert not page.problems


async def test_an_operator_sees_the_users_and_tests_the_rules_for_one(
    serve: Serve, join: Join, tmp_path: Path, passwd: Passwd, token_file: str, pictures: Path, chromium: Chromium
) -> None:
    rules = tmp_path / "acl.yaml"
    rules.write_text("rules:\n- allow: publish\n  users: [anna]\n  topics: [plant/#]\n", encoding="utf-8")
    auth: dict[str, Any] = {"password": {"file": str(passwd(anna="secret", bert="secret"))}}
    broker = await serve(auth=auth | {"acl": {"file": str(rules)}, "api": {"token_file": token_file}})
    await join(broker, "c1", username="anna", password=b"secret")
    async with chromium.page() as page:
        await page.look_like(1280, 900, dark=True)
        await log_in(page, broker.address("http"))
        await page.go(broker.address("http") + "/")
        await shown(page, "rules", "bert")
        row = "[...document.querySelectorAll('#view tr')].find((one) => one.textContent.startsWith('{}'))"
        cells = f"[...{row.format('anna')}.children].map((one) => one.textContent)"
        assert (await page.run(cells))[:3] == ["anna", "password, scram", "1"]
        topic = "document.querySelectorAll('#view form input')[3]"
        for name, said in (("bert", "Denied"), ("anna", "Allowed")):
            await page.run(f"[...{row.format(name)}.querySelectorAll('a')].at(-1).click()")
            await page.until(f"document.querySelectorAll('#view form input')[1].value === '{name}'")
            await page.run(f"{topic}.value = 'plant/1'; document.querySelector('#view form button').click()")
            await page.until(f"document.getElementById('rules-answer').textContent.startsWith('{said}')")
        await page.screenshot(pictures / "users.png")
        await page.run(f"{row.format('anna')}.querySelector('a').click()")
        await page.until(f"location.hash === '#clients?user=anna' && {SHOWN}.includes('c1')")
        assert not page.problems
