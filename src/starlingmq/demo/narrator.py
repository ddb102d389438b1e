"""The output of the demo: a line per event, after the time since the start; and a status line, which stays at the
bottom of a terminal, or is printed every few seconds without one.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

STATUS_SECONDS: Final = 10.0  # between two status lines without a terminal
REFRESH: Final = 2.0  # per second


class Narrator:
    """``with Narrator() as narrator``: on stdout."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._began = time.monotonic()
        self._told_at = self._began
        self._live = Live(console=self._console, refresh_per_second=REFRESH, transient=True)
        self.terminal = self._console.is_terminal

    def __enter__(self) -> Self:
        if self.terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.terminal:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        self._print(Text(text, style))

    def scene(self, title: str) -> None:
        """Begin a new scene."""
        self._console.print()
        self._print(Text(title, "bold cyan"))

    def detail(self, text: str, style: str = "dim") -> None:
        """Print a detail of the previous line."""
        self._console.print(Text(f"         {text}", style))

    def status(self, text: str) -> None:
        if self.terminal:
            self._live.update(Text(f"{self._clock()} {text}", "reverse", no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._told_at >= STATUS_SECONDS:
            self._told_at = time.monotonic()
            self.detail(text)

    def _print(self, text: Text) -> None:
        self._console.print(Text(f"{self._clock()}  ", "dim") + text)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"[{minutes:2d}:{seconds:02d}]"
