"""The dashboard in a real browser: what an operator sees, on a large screen and on a phone, and the actions
on offer.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from .browser import BROWSER, Chromium
from .conftest import TOKEN, Ask, Join, Passwd, Serve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]

EVIL = "<img src=x onerror=alert(1)>"
SHOWN = "document.getElementById('view').textContent"
FIRST_BYTES_MAX = 300_000


async def test_the_dashboard_shows_the_state_of_the_broker(
    serve: Serve, join: Join, ask: Ask, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve()
    peer = await join(broker, EVIL)
    await peer.subscribe("plant/+/temperature", "$share/workers/jobs", qos=1)
    body = {"topic": f"plant/1/{EVIL}", "payload": "21.5", "retain": True}
    assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
    url = broker.address("http")
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(url + "/")
        await page.until("document.body && document.body.dataset.shown === 'overview'")
        assert page.bytes < FIRST_BYTES_MAX
        assert await page.run("document.getElementById('state').textContent") == "serving"
        await page.screenshot(pictures / "overview.png")
        await page.run("location.hash = '#clients'")
        await page.until(f"{SHOWN}.includes('MQTT 5.0')")
        assert await page.run(f"{SHOWN}.includes({EVIL!r}) && !document.querySelector('#view img')")
        await page.run("document.querySelector('#view td a').click()")
        await page.until(f"{SHOWN}.includes('plant/+/temperature') && {SHOWN}.includes('$share/workers/jobs')")
        await page.screenshot(pictures / "session.png")
        await page.run("location.hash = '#retained'")
        await page.until(f"{SHOWN}.includes('plant/1/')")
        await page.run("document.querySelector('#view td a').click()")
        await page.until(f"{SHOWN}.includes('21.5')")
        for view, text in (("groups", "workers"), ("streams", "none"), ("nodes", "this node"), ("sessions", "yes")):
            await page.run(f"location.hash = '#{view}'")
            await page.until(f"document.body.dataset.shown === '{view}' && {SHOWN}.includes('{text}')")
        await page.run("location.hash = '#topics?filter=' + encodeURIComponent('plant/#')")
        await page.until("document.getElementById('stream-state')?.textContent.startsWith('live')")
        for number in range(3):
            body = {"topic": f"plant/{number}/{EVIL}", "payload": f"live {number} {EVIL}"}
            assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
        await page.until("document.getElementById('messages').textContent.includes('live 2')")
        await page.until("document.querySelectorAll('#tree .leaf').length === 3")
        assert not await page.run("document.querySelector('#view img')")
        await page.screenshot(pictures / "topics.png")
        await page.run("location.hash = '#trace?' + new URLSearchParams({topic: 'plant/#'})")
        await page.until("document.getElementById('traces') && document.querySelector('#stream-state.ok')")
        body = {"topic": "plant/1/temperature", "payload": "22", "qos": 1}
        assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
        await page.until("document.getElementById('traces').textContent.includes('delivered')")
        await page.screenshot(pictures / "trace.png")
        await page.look_like(390, 844, dark=True)
        for view in ("clients", "nodes", "topics", "overview"):
            await page.run(f"location.hash = '#{view}'")
            await page.until(f"document.body.dataset.shown === '{view}'")
            assert await page.run("document.documentElement.scrollWidth") <= 390, f"{view} is wider than a phone"
        await page.screenshot(pictures / "phone.png")
        await page.run("location.hash = '#log'")
        await page.until("document.getElementById('log')")
        logging.getLogger("starlingmq.test").warning("somebody called %s was here", EVIL)
        await page.until(f"document.getElementById('log').textContent.includes('somebody called {EVIL}')")
        assert not await page.run("document.querySelector('#view img')")
        await page.screenshot(pictures / "log.png")
        await page.go(url + "/docs")
        await page.until("document.body && document.body.textContent.includes('/api/v1/publish')")
        assert not page.problems


async def test_a_login_that_takes_time_shows_that_it_is_verified_and_then_why_it_is_refused(
    serve: Serve, passwd: Passwd, chromium: Chromium
) -> None:
    auth = {"password": {"file": passwd(ann="right")}, "api": {"users": ["ann"]}, "failures": {"delay": "500ms"}}
    broker = await serve(auth=auth)
    async with chromium.page() as page:
        await page.go(broker.address("http") + "/")
        await page.until("document.getElementById('login')?.open")
        button, refused = "document.querySelector('#login button')", "document.getElementById('refused')"
        await page.run("document.getElementById('user').value = 'ann'")
        for password in ("wrong", "right"):
            await page.run(f"document.getElementById('password').value = '{password}'; {button}.click()")
            if password == "wrong":
                assert await page.run(f"{button}.disabled && {button}.textContent") == "Logging in…"
                await page.until(f"{refused}.textContent === 'wrong user name or password' && !{button}.disabled")
                assert await page.run(f"document.getElementById('login').open && {button}.textContent") == "Log in"
        await page.until("!document.getElementById('login').open && document.body.dataset.shown === 'overview'")
        assert not [problem for problem in page.problems if "401" not in problem]


async def test_the_dashboard_needs_a_token_to_show_and_change_anything(
    serve: Serve, join: Join, token_file: str, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve(auth={"api": {"token_file": token_file}, "failures": {"delay": 0}})
    await join(broker, "c1", properties={0x11: 100})
    async with chromium.page() as page:
        await page.go(broker.address("http") + "/#clients")
        await page.until("document.getElementById('login')?.open")
        assert "c1" not in await page.run("document.body.textContent")

        async def log_in(token: str) -> None:
            await page.run(f"document.getElementById('token').value = '{token}'")
            await page.run("document.querySelector('#login button').click()")

        await log_in("not-the-token-0123456789")
        await page.until("document.getElementById('refused').textContent === 'wrong token'")
        await page.until("document.getElementById('login').open")
        await log_in(TOKEN)
        await page.until(f"{SHOWN}.includes('c1')")
        await page.screenshot(pictures / "clients.png")
        await page.run("window.confirm = () => true; location.hash = '#session?client_id=c1'")
        await page.until("document.querySelector('#view button')?.textContent === 'Disconnect'")
        await page.run("document.querySelector('#view button').click()")
        await page.until("document.querySelector('#view button')?.textContent === 'End session'")
        assert broker.state.ctx.sessions["c1"].client is None
        await broker.stop()
        await page.until("document.getElementById('state').textContent === 'the broker does not answer'")
        assert not [problem for problem in page.problems if "401" not in problem]
