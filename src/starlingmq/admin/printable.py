"""Text that others chose, as it may be shown."""

from __future__ import annotations

from typing import Final

from starlingmq.log import printable

LINE_CHARS_MAX: Final = 2000
PAGE_MAX: Final = 1000  # entries of a list in one answer


def plain(text: str) -> str:
    """Not too long, on one line, and with nothing in it that a terminal would obey."""
    text = printable(text)
    return text if len(text) <= LINE_CHARS_MAX else text[:LINE_CHARS_MAX] + "..."
