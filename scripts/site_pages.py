"""Hooks of MkDocs: pages of the site that are kept elsewhere in the repository, and drawings that follow the theme.

``ELSEWHERE`` are files that belong where they are (a hoster shows them, or the benchmark stands beside them) and are
pages of the site all the same. Links between them and docs/ are those of the repository, and turned into the site's.
Examples are copied as they are.
"""

from __future__ import annotations

import os
import posixpath
import re
from html import escape, unescape
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
ELSEWHERE: Final = {
    "BENCHMARK.md": "bench/README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CONDUCT.md": "CODE_OF_CONDUCT.md",
    "REPORTING.md": ".github/SECURITY.md",
}
"""Page of the site: file of the repository."""

VERSIONS: Final = "site-version.js"
LINK: Final = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
DRAWING: Final = re.compile(r"^!\[([^\]]*)\]\(((?:images/)?[\w/.-]+\.svg)\)$", re.MULTILINE)
STYLE: Final = re.compile(r"<style>.*?</style>", re.DOTALL)
BREAK: Final = re.compile(r"(/|::|_)")
CODE: Final = re.compile(r'(<div class="highlight")>(.*?</div>)', re.DOTALL)
TAG: Final = re.compile(r"<[^>]*>")
TABLE: Final = re.compile(r"<table>.*?</table>", re.DOTALL)
TEST: Final = re.compile(r"<code>(tests/[^<]+|test_\w+::[^<]+)</code>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """``scripts/site_versions.py`` sets SITE_VERSION: then pages show their version, and lead to others."""
    if os.environ.get("SITE_VERSION"):
        config.extra_javascript.append(VERSIONS)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for example in sorted((ROOT / "examples").iterdir()):
        if example.is_file() and example.suffix != ".md":
            files.append(File.generated(config, f"examples/{example.name}", abs_src_path=str(example)))
    if os.environ.get("SITE_VERSION"):
        files.append(File.generated(config, VERSIONS, content=(ROOT / "scripts/site-version.js").read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    name = page.file.src_uri
    source = ELSEWHERE.get(name, f"docs/{name}")
    pages = {file: target for target, file in ELSEWHERE.items()}

    def in_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        if target in pages:
            return pages[target]
        if target.startswith("examples/"):
            return target
        if target.startswith("docs/"):
            return posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(name) or ".")
        return link[0]

    def drawn(image: re.Match[str]) -> str:
        """Put into the page itself, the drawing has the page's colours, light or dark."""
        svg = (Path(config.docs_dir) / image[2]).read_text(encoding="utf-8")
        return f'<figure class="drawing" markdown="0">\n{STYLE.sub("", svg).strip()}\n</figure>'

    outside_code = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    for index in range(0, len(outside_code), 2):
        outside_code[index] = DRAWING.sub(drawn, LINK.sub(in_site, outside_code[index]))
    return "".join(outside_code)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names of tests are long: where they may be broken, in a narrow column. Cells know the heading of their column,
    for where there is no room for columns."""
    html = CODE.sub(_with_commands, html)
    html = TEST.sub(lambda name: "<code>" + BREAK.sub(r"\1<wbr>", name[1]) + "</code>", html)
    return TABLE.sub(lambda table: _labelled(table[0]), html)


def _with_commands(block: re.Match[str]) -> str:
    """The theme's copy button takes ``data-copy``: the commands of a terminal, without prompts and output."""
    commands = commands_of(unescape(TAG.sub("", block[2])))
    return f'{block[1]} data-copy="{escape(commands)}">{block[2]}' if commands else block[0]


def commands_of(shown: str) -> str:
    """The lines behind ``$``, and those that continue them after a backslash."""
    found: list[str] = []
    continues = False
    for line in shown.splitlines():
        if continues or line.startswith("$ "):
            found.append(line if continues else line[2:])
            continues = line.endswith("\\")
    return "\n".join(found)


def _labelled(table: str) -> str:
    headings = [re.sub(r"<[^>]*>", "", text).strip() for text in re.findall(r"<th[^>]*>(.*?)</th>", table)]

    def row(found: re.Match[str]) -> str:
        left = iter(headings)
        return re.sub(r"<td", lambda _: f'<td data-label="{next(left, "")}"', found[0])

    return re.sub(r"<tr>.*?</tr>", row, table, flags=re.DOTALL)
