"""Text of clients, made safe to show, and what else is shown at several doors."""

from __future__ import annotations

from typing import Final

from starlingmq.log import printable

LINE_CHARS_MAX: Final = 2000
PAGE_MAX: Final = 1000  # entries of a list in one reply
NODE_COLUMNS: Final = (
    "node, version*, ready, clients/number, sessions/number, subscriptions: subs/number*, retained/number, "
    "queued/number, inflight: in flight/number*, groups/number*, dropped/number, turn: turn p99 (ms)/number*"
)


def plain(text: str) -> str:
    """Shortened, on one line, and without characters that a terminal would interpret."""
    text = printable(text)
    return text if len(text) <= LINE_CHARS_MAX else text[:LINE_CHARS_MAX] + "..."
