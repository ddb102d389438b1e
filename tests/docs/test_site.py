"""The site as it is built: nothing from elsewhere, no link that leads nowhere, every page in the table of contents."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import yaml

from tests.docs.conftest import ROOT

FETCHES: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""What a browser asks for by itself, by tag and attribute."""
NO_RESOURCE: Final = ("canonical", "next", "prev", "alternate")


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = {""}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
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
