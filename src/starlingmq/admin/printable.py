"""Text of clients, made safe to show."""

from __future__ import annotations

from typing import Final

from starlingmq.log import printable

LINE_CHARS_MAX: Final = 2000
PAGE_MAX: Final = 1000  # entries of a list in one reply


def plain(text: str) -> str:
    """Shortened, on one line, and without characters that a terminal would interpret."""
    text = printable(text)
    return text if len(text) <= LINE_CHARS_MAX else text[:LINE_CHARS_MAX] + "..."
