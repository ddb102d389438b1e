"""Logging in and out at the dashboard by OpenID Connect, in a real browser and at a real provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from starlingmq import Broker

from .browser import BROWSER, Chromium, Page
from .conftest import Serve, log_in
from .providers import free_port, needs_provider, real_provider, settings

pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")

BUTTON: Final = "document.getElementById('provider')"
OPEN: Final = "document.getElementById('login')?.open"
REFUSED: Final = "document.getElementById('refused')?.textContent"


async def serve_at(serve: Serve, port: int, auth: dict[str, Any]) -> Broker:
    return await serve(listeners=["mqtt://127.0.0.1:0", f"http://127.0.0.1:{port}"], auth=auth)


async def at_the_provider(page: Page, name: str) -> None:
    """Fill in its forms: who it is, and that this dashboard may know it."""
    await page.until("document.querySelector('input[name=login]') !== null")
    await page.run(f"document.querySelector('input[name=login]').value = '{name}'")
    await page.run("document.querySelector('input[name=password]').value = 'any'")
    await page.run("document.querySelector('form').submit()")
    await page.until("document.querySelector('input[value=consent]') !== null")
    await page.run("document.querySelector('form').submit()")


@needs_provider
async def test_a_person_logs_in_comes_back_to_the_same_view_and_logs_out(
    serve: Serve, chromium: Chromium, tmp_path: Path, pictures: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    async with real_provider(redirect=url) as issuer, chromium.page() as page:
        await serve_at(serve, port, settings(issuer, tmp_path, url))
        await page.go(url + "#bans")
        await page.until(f"{OPEN} && !{BUTTON}.hidden")
        assert await page.run(f"{BUTTON}.textContent") == f"Log in with {issuer.partition('://')[2]}"
        await page.screenshot(pictures / "oidc.png")
        await page.run(f"{BUTTON}.click()")
        await at_the_provider(page, "olga")
        await page.until("document.body?.dataset.shown === 'bans'")
        assert await page.run("location.href") == url + "#bans"  # neither code nor state are left in it
        assert await page.run("document.cookie + sessionStorage.getItem('login')") == "null"
        assert not await page.run("document.getElementById('logout').hidden")
        await page.screenshot(pictures / "oidc-logged-in.png")
        await page.run("document.getElementById('logout').click()")
        await page.until("document.querySelector('form[action*=\"session/end\"]') !== null")
        await page.run("document.querySelector('button[value=yes]').click()")
        await page.until(f"{OPEN} && !{BUTTON}.hidden")
        assert await page.run("sessionStorage.length") == 0
        assert not [one for one in page.problems if "401" not in one], page.problems


@needs_provider
async def test_a_person_without_rights_reads_why_and_a_link_with_a_foreign_state_logs_nobody_in(
    serve: Serve, chromium: Chromium, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    async with real_provider(redirect=url) as issuer, chromium.page() as page:
        await serve_at(serve, port, settings(issuer, tmp_path, url))
        await page.go(url)
        await page.until(f"{OPEN} && !{BUTTON}.hidden")
        await page.run(f"{BUTTON}.click()")
        await at_the_provider(page, "nils")
        await page.until(f"{OPEN} && {REFUSED}.includes('is in no group')")
        await page.go(url + "?code=stolen&state=x")
        await page.until(f"{OPEN} && {REFUSED}.includes('not begun in this tab')")
        assert await page.run("location.search + sessionStorage.length") == "0"
        await page.run("sessionStorage.setItem('login', JSON.stringify({attempt: 'x', view: ''}))")
        await page.go(url + "?error=access_denied%3Cimg%3E&state=x")
        await page.until(f"{OPEN} && {REFUSED}.endsWith('refuses the login: access_deniedimg')")


async def test_a_dashboard_without_a_provider_offers_none(serve: Serve, chromium: Chromium, token_file: str) -> None:
    broker = await serve(auth={"api": {"token_file": token_file}})
    async with chromium.page() as page:
        await log_in(page, broker.address("http") + "/ui")
        await page.go(broker.address("http") + "/")
        await page.until("document.body?.dataset.shown === 'overview'")
        await page.run("document.getElementById('logout').click()")
        await page.until(OPEN)
        assert await page.run("fetch('/api/v1/login').then((told) => told.json()).then((told) => told.provider)") == ""
        assert await page.run(f"{BUTTON}.hidden && !sessionStorage.getItem('authorization')")
