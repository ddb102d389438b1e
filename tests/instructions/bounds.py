"""bounds.json: instructions a message of each cell, for each toolchain with which they were counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("bounds.json")
GROWTH_MAX: Final = 0.05


def load() -> dict[str, dict[str, float]]:
    """By toolchain, then by cell."""
    return dict(json.loads(FILE.read_text()))


def store(toolchain: str, counts: dict[str, float]) -> None:
    """Counts of other toolchains stay, though a change of the sources outdates them."""
    FILE.write_text(json.dumps(load() | {toolchain: counts}, indent=2) + "\n")


def grown(bounds: dict[str, float], counts: dict[str, float]) -> list[str]:
    """A line for each cell that takes more than ``GROWTH_MAX`` above its bound; a cell without a bound is one."""
    lines: list[str] = []
    for cell, count in counts.items():
        bound = bounds.get(cell)
        if bound is None:
            lines.append(f"{cell}: there is no bound for it")
        elif count > bound * (1 + GROWTH_MAX):
            lines.append(f"{cell}: {count:.0f} instructions a message instead of {bound:.0f}: +{count / bound - 1:.1%}")
    return lines
