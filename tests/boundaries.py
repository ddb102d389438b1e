"""The boundaries in the threat model of docs/SECURITY.md, and the tests that the page names for each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[1] / "docs" / "SECURITY.md"
NAMED: Final = re.compile(r"`(tests/[\w/.]+)(?:::(\w+))?`")


def rows() -> list[str]:
    """Of the table whose last column is "held by"."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Threat model\n")[2].partition("\n## ")[0]
    _, header, table = section.partition("| held by |\n")
    assert header, "the threat model has a table of boundaries"
    return [line for line in table.partition("\n\n")[0].splitlines() if not line.startswith("|---")]


def held_by() -> set[tuple[str, str]]:
    """Files and names; without a name all of a file. They are marked ``security``: ``make security`` runs them."""
    return set(NAMED.findall("\n".join(rows())))
