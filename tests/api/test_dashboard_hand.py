"""The WebSocket client of the dashboard in a real browser: MQTT 5 to a WebSocket listener, by keyboard."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from starlingmq.core.context.ready import Event
from starlingmq.wire.mqtt import Publish
from tests.patience import within

from .browser import BROWSER, PATIENCE, Chromium, Page
from .conftest import Ask, Join, Passwd, Serve, log_in

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]

STATE = "document.getElementById('hand-state')?.textContent"
TOLD = "document.getElementById('hand-told').textContent"
MESSAGES = "document.getElementById('hand-messages').textContent"
BOTH = ["mqtt://127.0.0.1:0", "http://127.0.0.1:0", "ws://127.0.0.1:0/mqtt"]


async def fill(page: Page, fields: dict[str, str]) -> None:
    """Type into fields, one after the other, and press Enter in the last."""
    for name, text in fields.items():
        await page.run(f"document.getElementById('hand-{name}').focus()")
        await page.type(text)
    await page.type("\r")


async def open_at(page: Page, url: str) -> None:
    await page.look_like(1280, 900, dark=False)
    await page.go(url + "/#hand")
    await page.until("document.body && document.body.dataset.shown === 'hand'")


async def test_a_person_connects_subscribes_and_publishes_by_keyboard(
    serve: Serve, join: Join, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve(listeners=BOTH)
    other = await join(broker, "other")
    await other.subscribe("to/other", qos=2)
    async with chromium.page() as page:
        await open_at(page, broker.address("http"))
        assert await page.run("document.getElementById('hand-url').value.endsWith('/mqtt')")
        assert await page.run("document.getElementById('hand-none').hidden")
        await fill(page, {"client": "by-hand"})
        await page.until(f"{STATE} === 'connected as by-hand'")
        await fill(page, {"filter": "plant/#"})
        await page.until(f"{TOLD} === 'subscribed to plant/# with QoS 0'")
        await page.run("document.querySelector('[aria-label=\"QoS of the message\"]').value = '2'")
        await fill(page, {"topic": "to/other", "payload": "grüße"})
        await page.until(f"{TOLD} === 'published to to/other'")
        sent = await other.expect(Publish)
        assert (sent.topic, bytes(sent.payload), sent.qos) == (b"to/other", "grüße".encode(), 2)
        for number in range(250):
            await other.publish(f"plant/{number}", f"<b>{number}</b>".encode())
        await page.until(f"{MESSAGES}.includes('<b>249</b>')")
        assert await page.run("document.getElementById('hand-messages').childElementCount") == 200
        assert await page.run("document.querySelectorAll('#hand-messages b').length") == 200  # the topics only
        assert not await page.run(f"{MESSAGES}.includes('<b>49</b>')")
        await page.screenshot(pictures / "hand.png")
        await page.run("location.hash = '#clients'")
        await page.until("document.getElementById('view').textContent.includes('by-hand')")
        await page.run("location.hash = '#hand'")
        await page.until(f"{STATE} === 'connected as by-hand'")
        await page.run("document.querySelector('#hand-filters button').focus()")
        await page.type("\r")
        await page.until(f"{TOLD} === 'unsubscribed from plant/#'")
        await page.look_like(390, 844, dark=True)
        assert await page.run("document.documentElement.scrollWidth") <= 390
        await page.screenshot(pictures / "hand-phone.png")
        await page.run("document.getElementById('hand-connect').focus()")
        await page.type("\r")
        await page.until(f"{STATE} === 'disconnected'")
        assert not page.problems


async def test_qos_2_reaches_the_page_once_and_a_message_of_many_frames_whole(
    serve: Serve, join: Join, ask: Ask, chromium: Chromium
) -> None:
    broker = await serve(listeners=BOTH)
    other = await join(broker, "other")
    async with chromium.page() as page:
        await open_at(page, broker.address("http"))
        await fill(page, {"client": "by-hand"})
        await page.until(f"{STATE} === 'connected as by-hand'")
        await page.run("document.querySelector('[aria-label=\"QoS of the subscription\"]').value = '2'")
        await fill(page, {"filter": "plant/#"})
        await page.until(f"{TOLD} === 'subscribed to plant/# with QoS 2'")
        await other.publish("plant/large", b"x" * 300_000, 2)
        await other.publish("plant/binary", b"\xff\xfe", 2)
        await page.until(f"{MESSAGES}.includes('(2 bytes)')")
        assert await page.run("[...document.querySelectorAll('#hand-messages b')].map((one) => one.textContent)") == [
            "plant/binary",
            "plant/large",
        ]
        told = (await ask(broker, "GET", "/api/v1/session", params={"client_id": "by-hand"})).json()
        assert told["window"] == []  # PUBREC, PUBREL and PUBCOMP have been exchanged
        assert not page.problems


OF_OPERATOR = "{method: 'DELETE', headers: {authorization: sessionStorage.getItem('authorization')}}"


async def test_the_page_says_why_the_broker_refuses_and_that_it_ended_the_connection(
    serve: Serve, passwd: Passwd, token_file: str, chromium: Chromium
) -> None:
    auth = {"password": {"file": passwd(anna="secret")}, "api": {"token_file": token_file}}
    broker = await serve(listeners=BOTH, auth=auth)
    async with chromium.page() as page:
        await log_in(page, broker.address("http"))
        await open_at(page, broker.address("http"))
        await fill(page, {"client": "by-hand", "user": "anna", "password": "wrong"})
        await page.until(f"{STATE}?.startsWith('the broker has ended the connection: 0x8')")
        await page.run("document.getElementById('hand-password').value = ''")
        await fill(page, {"password": "secret"})
        await page.until(f"{STATE} === 'connected as by-hand'")
        await page.run(f"fetch('/api/v1/client?client_id=by-hand', {OF_OPERATOR}).then(() => 1)")
        await page.until(f"{STATE}.startsWith('the broker has ended the connection: 0x98 administrative action')")
        assert await page.run("document.getElementById('hand-use').disabled")
        assert not page.problems


async def test_without_a_websocket_listener_the_page_says_what_to_configure(serve: Serve, chromium: Chromium) -> None:
    broker = await serve()
    async with chromium.page() as page:
        await open_at(page, broker.address("http"))
        await page.until("document.getElementById('hand-none') && !document.getElementById('hand-none').hidden")
        assert "ws://127.0.0.1:8083/mqtt" in await page.run("document.getElementById('hand-none').textContent")


async def test_the_policy_of_the_page_forbids_other_hosts_and_a_failure_names_the_reasons(
    serve: Serve, chromium: Chromium
) -> None:
    listener = {"url": "ws://127.0.0.1:0/mqtt", "origins": ["https://elsewhere.example"]}
    broker = await serve(listeners=[*BOTH[:2], listener])
    async with chromium.page() as page:
        await open_at(page, broker.address("http"))
        await fill(page, {"client": "by-hand"})
        await page.until(f"{STATE}?.startsWith('no connection. Check the address')")
        assert not any("Content Security Policy" in problem for problem in page.problems)
        await page.run("document.getElementById('hand-url').value = 'ws://192.0.2.1:1/mqtt'")
        await fill(page, {"client": "2"})
        await page.until(f"{STATE}.startsWith('no connection')")
        assert any("Content Security Policy" in problem for problem in page.problems)


async def test_a_page_that_is_left_disconnects_cleanly(serve: Serve, chromium: Chromium) -> None:
    ended = asyncio.get_running_loop().create_future()

    def note(event: Event) -> None:
        if event.kind == "disconnected":
            ended.set_result((event.client_id, event.detail))

    broker = await serve(listeners=BOTH, on_event=note)
    async with chromium.page() as page:
        await open_at(page, broker.address("http"))
        await fill(page, {"client": "by-hand"})
        await page.until(f"{STATE} === 'connected as by-hand'")
        await page.go("about:blank")
        async with within(PATIENCE):
            assert await ended == ("by-hand", "disconnect")
