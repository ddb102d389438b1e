"""Pages are in plain English: phrases that the project's earlier dialect used do not return.

Code, quoted messages and links are left out. ``OWN_PAGES`` are generated from the code, or list what happened.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import PAGES

OWN_PAGES: Final = ("CHANGELOG.md", "CONFIGURATION.md", "CONFORMANCE.md", "STATUS.md")
NO_PROSE: Final = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
DIALECT: Final = re.compile(
    r"\banew\b|\bcan not\b|\bwhoever\b|\bwhosoever\b|\bbe it that\b|\bof (?:which|whom) nobody\b|\blasting session"
    r"|\bnobody's\b|\bin line (?:at|there|here)\b|\bmay come in\b|\bwhat becomes of\b",
    re.IGNORECASE,
)


def dialect(text: str) -> list[str]:
    return DIALECT.findall(NO_PROSE.sub(" ", text))


@pytest.mark.parametrize("page", [pytest.param(path, id=path.name) for path in PAGES if path.name not in OWN_PAGES])
def test_a_page_has_no_dialect(page: Path) -> None:
    assert dialect(page.read_text(encoding="utf-8")) == [], "see docs/GLOSSARY.md for the terms"


def test_dialect_is_found_in_prose_only() -> None:
    assert dialect("A node that can not be reached begins anew.") == ["can not", "anew"]
    assert dialect("It says `... can not be synced`.\n\n```text\nbegins anew\n```\n") == []
