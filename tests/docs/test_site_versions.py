"""The sites of several releases beside each other, built from a repository of its own."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.api.browser import BROWSER, Page, browser
from tests.docs.conftest import ROOT


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_versions", ROOT / "scripts/site_versions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@t.example")
    subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True, timeout=60)


async def shows(page: Page, path: str, version: str) -> None:
    """Wait for a page of a version. The browser says so when another page takes the place of that it looks at."""
    shown = f"location.pathname.endsWith('{path}') && document.getElementById('version')?.value === '{version}'"
    while True:
        try:
            return await page.until(shown)
        except AssertionError as replaced:
            assert "navigated" in str(replaced) or "context" in str(replaced)


def test_releases_are_sorted_by_number(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--allow-empty", "-qm", "x")
    for tag in ("v0.9.0", "v0.10.0", "v0.2.1", "v1.0.0rc1", "other"):
        git(tmp_path, "tag", tag)
    assert script().releases(tmp_path) == ["0.10.0", "0.9.0", "0.2.1"]


@pytest.mark.slow
@pytest.mark.long(alone="builds the sites of two releases")
@pytest.mark.timeout(240)
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
async def test_a_reader_goes_to_the_same_page_of_another_version(tmp_path: Path) -> None:
    root, sites = tmp_path / "repository", tmp_path / "sites"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "-qm", "0.2.0")
    git(root, "tag", "v0.2.0")
    (root / "docs" / "FAQ.md").rename(root / "docs" / "QUESTIONS.md")
    for path in (root / "mkdocs.yml", *(root / "docs").rglob("*.md"), root / "README.md", root / "CHANGELOG.md"):
        path.write_text(path.read_text(encoding="utf-8").replace("FAQ.md", "QUESTIONS.md"), encoding="utf-8")
    assert script().build_all(root, sites) == ["next", "0.2.0"]
    async with browser(tmp_path) as page:
        await page.go((sites / "index.html").as_uri())
        await shows(page, "/0.2.0/index.html", "0.2.0")
        choose = "version.value = '{}'; version.dispatchEvent(new Event('change'))"
        await page.go((sites / "0.2.0" / "COPIES.html").as_uri())
        await shows(page, "/0.2.0/COPIES.html", "0.2.0")
        await page.run(choose.format("next"))
        await shows(page, "/next/COPIES.html", "next")
        await page.go((sites / "next" / "QUESTIONS.html").as_uri())
        await shows(page, "/next/QUESTIONS.html", "next")
        await page.run(choose.format("0.2.0"))
        await shows(page, "/0.2.0/index.html", "0.2.0")
        assert not page.problems
        await page.screenshot(tmp_path / "version.png")
