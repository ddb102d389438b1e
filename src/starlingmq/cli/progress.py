"""Progress of long actions: a bar on a terminal, otherwise a line every few seconds, in both cases on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Report = Callable[[str, int, int, str], None]
"""Called with the action, the amount done, the total (0: unknown), and their unit."""

LINE_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 10.0
PREFIXES: Final = ("Ki", "Mi", "Gi", "Ti")


def no_report(what: str, done: int, total: int, unit: str) -> None:
    """Show nothing."""


@contextmanager
def progress(quiet: bool) -> Iterator[Report]:
    """Show progress during the block; ``quiet``: show nothing."""
    if quiet:
        yield no_report
    elif sys.stderr.isatty():
        with _bars() as report:
            yield report
    else:
        yield _Lines()


def amount(count: float, unit: str) -> str:
    """Format ``count`` of a unit."""
    if unit != "bytes":
        return f"{count:,.0f} {unit}"
    power = 0
    while count >= 1024 and power < len(PREFIXES):
        count /= 1024
        power += 1
    return f"{count:,.1f} {PREFIXES[power - 1]}B" if power else f"{count:.0f} B"


def _so_far(done: float, total: float | None, unit: str) -> str:
    """Empty if there is nothing to count."""
    if not total and not done:
        return ""
    if not total:
        return amount(done, unit)
    first = amount(done, unit) if unit == "bytes" else f"{done:,.0f}"
    return f"{first} of {amount(total, unit)}"


class _Lines:
    """Prints a line when an action begins, and its progress every ``LINE_SECONDS``; without a count more seldom."""

    def __init__(self) -> None:
        self._what = ""
        self._told_at = 0.0

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        now = time.monotonic()
        so_far = _so_far(done, total, unit)
        if what == self._what and now - self._told_at < (LINE_SECONDS if so_far else WAIT_SECONDS):
            return
        self._what, self._told_at = what, now
        print(f"{what}: {so_far}" if so_far else what, file=sys.stderr, flush=True)


@contextmanager
def _bars() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Amount(TextColumn):
        def render(self, task: Task) -> Text:
            unit = task.fields["unit"]
            rate = f", {amount(task.speed, unit)}/s" if task.speed else ""
            return Text(_so_far(task.completed, task.total, unit) + rate)

    columns = (TextColumn("{task.description}"), BarColumn(), Amount(""), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def report(what: str, done: int, total: int, unit: str) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None, unit=unit)
            bars.update(tasks[what], completed=done, total=total or None)

        yield report
