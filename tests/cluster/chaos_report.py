"""The report of a long chaos run: ``report.json``, ``report.md`` and ``timeline.png`` in a directory."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

SAMPLE_SECONDS: Final = 1.0
DPI: Final = 110
SIZE: Final = (12.0, 4.5)  # inches


class Timeline:
    """Rates second by second, and what broke meanwhile. ``count`` gives what has happened so far."""

    def __init__(self, count: Callable[[], tuple[int, int]]) -> None:
        self.began = time.monotonic()
        self.samples: list[tuple[float, float, float]] = []  # seconds, acknowledged a second, delivered a second
        self.faults: list[tuple[float, float, str, str]] = []  # from, to, what, whom
        self._count = count

    async def run(self) -> None:
        """Until it is cancelled."""
        before, since = self._count(), time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            now, at = self._count(), time.monotonic()
            rates = [(new - old) / (at - since) for new, old in zip(now, before, strict=True)]
            self.samples.append((at - self.began, rates[0], rates[1]))
            before, since = now, at

    def fault(self, since: float, what: str, whom: str) -> None:
        """It began at ``since`` (``time.monotonic``), and is over."""
        self.faults.append((since - self.began, time.monotonic() - self.began, what, whom))


class Report:
    """``facts`` are of the run, ``figures`` what was counted, ``problems`` what should never be."""

    def __init__(
        self, facts: dict[str, Any], figures: dict[str, int], problems: dict[str, int], timeline: Timeline
    ) -> None:
        self.facts = facts
        self.figures = figures
        self.problems = problems
        self.timeline = timeline

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        whole = {
            "facts": self.facts,
            "faults": Counter(what for _, _, what, _ in self.timeline.faults),
            "figures": self.figures,
            "problems": self.problems,
            "timeline": {"samples": self.timeline.samples, "faults": self.timeline.faults},
        }
        (directory / "report.json").write_text(json.dumps(whole, indent=1) + "\n")
        self._draw(directory / "timeline.png")
        (directory / "report.md").write_text("\n".join(self._lines()) + "\n")

    def _lines(self) -> Iterator[str]:
        yield "# A cluster that is broken on purpose, and its clients"
        yield ""
        yield f"**{len(self.problems)} things were wrong**, see below." if self.problems else "Nothing was wrong."
        yield ""
        yield from _table(("", ""), ((name, str(value)) for name, value in self.facts.items()))
        yield "![acknowledged and delivered messages a second, and the faults](timeline.png)"
        yield ""
        yield "## What broke"
        yield ""
        faults = Counter(what for _, _, what, _ in self.timeline.faults)
        yield from _table(("fault", "times"), ((what, str(count)) for what, count in faults.most_common()))
        yield "## What was counted"
        yield ""
        yield from _table(("", "count"), ((name, f"{count:,}") for name, count in self.figures.items()))
        if self.problems:
            yield "## What was wrong"
            yield ""
            yield from (_line(problem, count) for problem, count in self.problems.items())

    def _draw(self, path: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
        times = [sample[0] for sample in self.timeline.samples]
        axes.plot(times, [sample[2] for sample in self.timeline.samples], color="#8fc1d4", label="delivered")
        axes.plot(times, [sample[1] for sample in self.timeline.samples], color="#123f50", label="acknowledged")
        kinds = list(dict.fromkeys(what for _, _, what, _ in self.timeline.faults))
        colours = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
        for begin, end, what, _ in self.timeline.faults:
            axes.axvspan(begin, max(end, begin + 0.5), color=colours[kinds.index(what) % len(colours)], alpha=0.25)
        for place, what in enumerate(kinds):
            axes.plot([], [], color=colours[place % len(colours)], alpha=0.5, linewidth=6, label=what)
        axes.set_xlabel("seconds")
        axes.set_ylabel("messages a second")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        figure.savefig(path, dpi=DPI)
        plt.close(figure)


def _line(problem: str, count: int) -> str:
    return f"- {problem}" + (f" ({count} times)" if count > 1 else "")


def _table(head: tuple[str, str], rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in rows)
    yield ""
