"""The site as it is built: nothing from elsewhere, no link that leads nowhere, every page in the table of contents."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.api.browser import BROWSER, browser
from tests.docs.blocks import blocks_of
from tests.docs.conftest import ROOT

FETCHES: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""Resources that a browser fetches by itself, by tag and attribute."""
NO_RESOURCE: Final = ("canonical", "next", "prev", "alternate")


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = {""}
        self.copied: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if "data-copy" in given:
            self.copied.append(given["data-copy"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in FETCHES and FETCHES[tag] in given and given.get("rel") not in NO_RESOURCE:
            self.fetched.append(given[FETCHES[tag]])


def read(site: Path) -> dict[Path, Reader]:
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = Reader()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = read(site)
    assert len(pages) > 20
    for path, page in pages.items():
        assert [url for url in page.fetched if urlsplit(url).scheme or url.startswith("//")] == [], path.name
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text and "url(//" not in text and "@import" not in text, sheet.name


def test_links_lead_somewhere(site: Path) -> None:
    pages = read(site)
    dead = []
    for path, page in pages.items():
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if not target.is_file() or (known is not None and unquote(parts.fragment) not in known.anchors):
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_every_page_is_in_the_table_of_contents() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.SafeLoader)
    entries = [entry for part in settings["nav"] for pages in part.values() for entry in pages]
    listed = [page for entry in entries for page in (entry.values() if isinstance(entry, dict) else [entry])]
    assert len(listed) == len(set(listed))
    assert {path.name for path in (ROOT / "docs").rglob("*.md")} <= set(listed)


def test_the_front_page_shows_the_dashboard(site: Path) -> None:
    page = read(site)[site / "index.html"]
    assert "images/dashboard.png" in page.fetched and (site / "images/dashboard.png").stat().st_size > 10_000


def test_the_copy_button_takes_commands_without_prompts_and_output(site: Path) -> None:
    copied = read(site)[site / "TOUR.html"].copied
    blocks = [block for block in blocks_of(ROOT / "docs/TOUR.md") if block.kind == "console"]
    assert copied == ["\n".join(command for command, _ in block.commands()) for block in blocks]
    assert any(output for block in blocks for _, output in block.commands())


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
async def test_search_works_in_pages_that_are_opened_from_a_directory(site: Path, tmp_path: Path) -> None:
    async with browser(tmp_path) as page:
        await page.look_like(1280, 800, dark=False)
        await page.go((site / "index.html").as_uri())
        await page.until("document.querySelector('iframe[hidden]')")
        await page.run(
            "document.querySelector('#__search').click(); document.querySelector('.md-search__input').focus()"
        )
        await page.type("takeover")
        await page.until("document.querySelectorAll('.md-search-result__item').length > 3")
        assert page.problems == []
