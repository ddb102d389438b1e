"""The code blocks of the pages, each with the comment above it that says how the tests use it.

::

    <!-- run: STORY -->            its commands, or its program, are run and have to print what is shown
    <!-- run: STORY, goes on -->   its one command goes on while the story does; the lines shown are waited for
    <!-- printed: STORY -->        what the program above prints
    <!-- file: STORY NAME -->      it is put into a file of that name
    <!-- not run: WHY -->          it cannot be run here
    <!-- rules -->                 a file of rules (``auth.acl``)
    <!-- pipeline -->              a file of ``starlingmq pipeline``

A story is what the blocks of one name on one page do, from above to below, in one empty directory. YAML without such a
comment is settings of a broker, and is read as such. ``ELSEWHERE`` are pages whose blocks other tests run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGES: Final = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "bench/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
ELSEWHERE: Final = {"docs/TUTORIAL.md": "tests/spark/test_tutorial.py"}
"""Page: the test that runs what stands there."""
RUN_BY_TESTS: Final = ("console", "python", "yaml", "sh", "bash")
"""Kinds of blocks that have to be run, or to say why they are not."""

_BLOCK: Final = re.compile(r"(?:^ *<!-- ([^\n]*?) -->\n+)?^( *)```(\w*)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str  # language
    text: str
    mark: str  # the text of the comment; "" without one

    @property
    def what(self) -> str:
        """``run``, ``file``, ... or ""."""
        return self.mark.partition(":")[0]

    @property
    def story(self) -> str:
        said = self.mark.partition(":")[2].strip()
        return re.split(r"[, ]", said, maxsplit=1)[0] if self.what in ("run", "file", "printed") else ""

    @property
    def goes_on(self) -> bool:
        return self.what == "run" and self.mark.endswith(", goes on")

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[tuple[str, str]]:
        """Each command behind a ``$``, with what is shown below it. A backslash at the end of a line goes on."""
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        found = []
        for part in parts:
            lines = part.splitlines()
            ends = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
            found.append(("\n".join(lines[: ends + 1]), "\n".join(lines[ends + 1 :]).strip("\n")))
        return found


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    page = str(path.relative_to(ROOT))
    return [
        Block(page, text.count("\n", 0, found.start(3)) + 1, found[3], _dedented(found[4], found[2]), found[1] or "")
        for found in _BLOCK.finditer(text)
    ]


def _dedented(text: str, indent: str) -> str:
    return re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) if indent else text


def all_blocks() -> list[Block]:
    return [block for path in PAGES for block in blocks_of(path)]


def stories() -> dict[tuple[str, str], list[Block]]:
    """The blocks of each story, by page and name."""
    found: dict[tuple[str, str], list[Block]] = {}
    for block in all_blocks():
        if block.story and block.page not in ELSEWHERE:
            found.setdefault((block.page, block.story), []).append(block)
    return found
