"""``python -m tests.docs.generate``: write the pages and pictures of docs/ that are made from the code.

``PAGES`` has all of them. With ``--check`` nothing is written: exit 1 when one of them is not what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.docs import config_page, ledger_page

DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"

PAGES: Final[dict[str, Callable[[], str]]] = {
    "CONFIGURATION.md": config_page.page,
    "CONFORMANCE.md": ledger_page.page,
}


def main(arguments: list[str]) -> int:
    stale = []
    for name, make in PAGES.items():
        path = DOCS / name
        text = make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"written: docs/{name}")
        else:
            print(f"docs/{name} is not what the code says; run: python -m tests.docs.generate")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
