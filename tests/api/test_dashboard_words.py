"""Texts of the dashboard: all in one file, in each language, and in the language that the reader wants."""

from __future__ import annotations

import json
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Final

import pytest

from starlingmq.api import http_app, pages

from .browser import BROWSER, Chromium, Page
from .conftest import Ask, Join, Serve

UI: Final = Path(str(files("starlingmq.api").joinpath("ui")))
ENTRY: Final = re.compile(r'^  ("(?:[^"\\]|\\.)+"): (\[.*?\]),$', re.MULTILINE | re.DOTALL)
PLACE: Final = re.compile(r"\{\w+\}")
MADE: Final = (
    "col.",
    "fact.",
    "holds.",
    "action.",
    "decision.",
    "latency.",
    "make.",
    "tab.",
    "group.",
    "severity.",
    "links.state.",
)  # a script adds the rest of the key

needs_browser = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")

VIEWS: Final = {
    "overview": "Now",
    "clients": "reader",
    "sessions": "reader",
    "subscriptions": "plant/#",
    "activity": "reader",
    "topics": "publish",
    "hand": "hand.title",
    "retained": "plant/1",
    "groups": "workers",
    "streams": "none",
    "nodes": "map.single",
    "alarms": "certificates",
    "connectors": "connectors.none",
    "listeners": "mqtt://",
    "links": "links.none",
    "bans": "intruder",
    "rules": "rules.title",
    "session?client_id=reader": "session.end",
    "message?topic=plant%2F1": "message.delete",
    "trace?topic=plant%2F1": "stream.live",
    "settings": "settings.title",
    "actions": "intruder",
    "droppers": "none",
    "lines?text=nothing-like-it": "list.nothing",
}
DATA: Final = re.compile(
    r"StarlingMQ|API|English|Deutsch|QoS( [012])?|starling@.*|plant/.*|reader|intruder|workers|jobs|\$share/.*|"
    r"an operator on .*|banned the .*|published to .*|until .*|done|"
    r"info|warning|error|"  # levels of the log
    r"MQTT 5\.0|primary|(mqtt|http|ws)s?://.*|by an operator|random|this node|true|false|"
    r"[\d.,]+ ?(ms|s|min|[mhd]|[KMG]?i?B)?(/s)?|"
    r"\d\d:\d\d.*|\d{4}-.*|\d+\.\d+\.\d+.*"
)
"""Texts of the broker and of this test, and units."""

FOREIGN: Final = """(() => {
const found = new Set();
const words = /\\p{L}{2}/u;
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const text = walk.currentNode.textContent.trim();
  const data = walk.currentNode.parentElement.closest("code, pre, time, dialog");
  if (words.test(text) && !text.includes("⟦") && !data) found.add(text);
}
for (const one of document.querySelectorAll("[aria-label], [placeholder], [title]"))
  for (const name of ["aria-label", "placeholder", "title"]) {
    const text = one.getAttribute(name)?.trim();
    if (text && one.localName !== "time" && words.test(text) && !text.includes("⟦")) found.add(text);
  }
return [...found];
})()"""


def words() -> dict[str, list[str]]:
    text = (UI / "words.js").read_text(encoding="utf-8")
    return {json.loads(key): json.loads(texts) for key, texts in ENTRY.findall(text)}


def test_each_text_is_there_in_both_languages_with_the_same_places() -> None:
    found = words()
    lines = (UI / "words.js").read_text(encoding="utf-8").partition("export const WORDS")[2]
    assert len(found) == len(re.findall(r'^  "', lines, re.MULTILINE)) > 200
    for key, texts in found.items():
        assert len(texts) == 2 and all(texts), key
        english, german = (sorted(PLACE.findall(text)) for text in texts)
        assert english == german, key


def test_keys_of_scripts_are_in_the_file_and_all_of_the_file_are_used() -> None:
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in sorted(UI.glob("*.js")) if path.name != "words.js")
    page = (UI / "index.html").read_text(encoding="utf-8")
    known = words()
    wanted = set(re.findall(r'\bt\("([^"]+)"', scripts)) | set(re.findall(r'data-words="([^"]+)"', page))
    assert {key for key in wanted if not key.endswith(".")} - known.keys() == set()
    unused = {key for key in known if f'"{key}"' not in scripts + page and not key.startswith(MADE)}
    assert unused == set()


@needs_browser
@pytest.mark.slow
async def test_no_text_of_the_page_is_outside_of_the_file(
    serve: Serve, join: Join, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chromium: Chromium
) -> None:
    """With a file of words that shows each key in brackets, all that has none is the broker's."""
    shutil.copytree(UI, tmp_path / "ui")
    told = (UI / "words.js").read_text(encoding="utf-8")
    marked = "for (const [key, texts] of Object.entries(WORDS)) WORDS[key] = texts.map((text) => `⟦${key} ${text}⟧`);\n"
    (tmp_path / "ui" / "words.js").write_text(told + marked, encoding="utf-8")
    monkeypatch.setattr(pages, "files", lambda _: tmp_path)
    monkeypatch.setattr(http_app, "routed", http_app.routed.__wrapped__)  # with these pages
    broker = await serve()
    reader = await join(broker, "reader")
    await reader.subscribe("plant/#", "$share/workers/jobs", qos=1)
    body = {"topic": "plant/1", "payload": "21.5", "retain": True}
    assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
    ban = {"kind": "client", "name": "intruder"}
    assert (await ask(broker, "POST", "/api/v1/bans", json=ban)).status_code == 201
    names = (await ask(broker, "GET", "/api/v1/settings")).json()["settings"]
    settings = {text for one in names for text in (one["path"], one["help"], str(one["value"]), str(one["default"]))}
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/")
        outside: dict[str, list[str]] = {}
        for address, text in VIEWS.items():
            await page.run(f"location.hash = '#{address}'")
            name = address.partition("?")[0]
            shown = "document.getElementById('view').textContent"
            await page.until(f"document.body?.dataset.shown === '{name}' && {shown}.includes('{text}')")
            found = {one for one in await page.run(FOREIGN) if not DATA.fullmatch(one)}
            outside[address] = sorted(found - settings if name == "settings" else found)
        assert {address: texts for address, texts in outside.items() if texts} == {}
        assert not page.problems


async def title(page: Page, expected: str) -> None:
    """Wait for the title of the first view. The page may be replaced by another, once, while it is looked at."""
    shown = f"document.getElementById('tab-overview')?.textContent === '{expected}'"
    try:
        await page.until(shown)
    except AssertionError:
        await page.until(shown)


@needs_browser
@pytest.mark.slow
async def test_the_browser_chooses_the_language_until_a_person_does(
    serve: Serve, chromium: Chromium, pictures: Path
) -> None:
    broker = await serve()
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.call("Emulation.setUserAgentOverride", userAgent="Test", acceptLanguage="fr-FR,de-AT,en")
        await page.go(broker.address("http") + "/")
        await title(page, "Übersicht")
        await page.until("document.body.dataset.shown === 'overview'")
        assert await page.run("document.documentElement.lang") == "de"
        await page.screenshot(pictures / "overview-german.png")
        await page.run(
            "document.getElementById('language').value = 'en';"
            "document.getElementById('language').dispatchEvent(new Event('change'))"
        )
        await title(page, "Overview")
        await page.go(broker.address("http") + "/#clients")
        await title(page, "Overview")
        assert await page.run("document.documentElement.lang") == "en"
        await page.look_like(390, 844, dark=True)
        assert await page.run("document.documentElement.scrollWidth") <= 390
        assert not page.problems
