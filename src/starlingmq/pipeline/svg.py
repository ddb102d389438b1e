"""Plots as inline SVG: lines over time, and bars. Colours are classes (``c0`` to ``c7``), so that the page's style
chooses them, light or dark; every mark has a title for the pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 960
HEIGHT: Final = 260
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 12
BOTTOM: Final = 28
SERIES_MAX: Final = 8  # number of colours
DAY: Final = 86400

Shown = Callable[[float], str]


def ticks(most: float, count: int = 4) -> list[float]:
    """Return round figures from 0 to ``most`` or slightly more."""
    step = 1.0
    while step * count < most:
        step *= 10
    for part in (0.1, 0.2, 0.25, 0.5):
        if step * part * count >= most and step * part >= most / count / 10:
            step *= part
            break
    found = [0.0]
    while found[-1] < most:
        found.append(found[-1] + step)
    return found if len(found) > 1 else [0.0, 1.0]


def at(when: float, span: float) -> str:
    """Format a time with the precision of its axis."""
    return datetime.fromtimestamp(when, UTC).strftime("%m-%d %H:%M" if span > DAY else "%H:%M:%S")


def _frame(body: str, name: str) -> str:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name, True)}"'
    return f'<div class="wide"><svg {box}>{body}</svg></div>'


def _axis(levels: Sequence[float], shown: Shown) -> list[str]:
    """Draw horizontal lines with their values."""
    parts = []
    for level in levels:
        y = _y(level, levels[-1])
        kind = "base" if level == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(shown(level))}</text>')
    return parts


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most


def lines(name: str, begin: float, step: float, series: dict[str, list[float]], shown: Shown) -> str:
    """Draw one line for each of ``series``, at most ``SERIES_MAX``: values from ``begin`` on, every ``step``
    seconds.
    """
    count = max(len(values) for values in series.values())
    levels = ticks(max(max(values) for values in series.values()))
    wide = (WIDTH - LEFT - RIGHT) / max(1, count - 1)
    span = step * count
    parts = _axis(levels, shown)
    for index in sorted({round(part * (count - 1) / 5) for part in range(6)}):
        anchor = "start" if index == 0 else "end" if index == count - 1 else "middle"
        x = LEFT + index * wide
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{at(begin + index * step, span)}</text>'
        )
    for number, (what, values) in enumerate(series.items()):
        points = [(LEFT + index * wide, _y(value, levels[-1])) for index, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="line c{number}" points="{path}"/>')
        for (x, y), (index, value) in zip(points, enumerate(values), strict=True):
            title = f"{what}, {at(begin + index * step, span)}: {shown(value)}"
            kind = "mark" if count > 1 else "mark alone"
            mark = f'<circle class="{kind} c{number}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
            parts.append(f"{mark}<title>{escape(title)}</title></circle>")
    return _frame("".join(parts), name) + legend(list(series))


def bars(name: str, values: Sequence[tuple[str, float]], shown: Shown) -> str:
    """Draw one bar for each value, from left to right."""
    levels = ticks(max(value for _, value in values))
    wide = (WIDTH - LEFT - RIGHT) / len(values)
    parts = _axis(levels, shown)
    for index, (what, value) in enumerate(values):
        x, y = LEFT + index * wide, _y(value, levels[-1])
        height = HEIGHT - BOTTOM - y
        title = f"<title>{escape(f'{what}: {shown(value)}')}</title>"
        parts.append(
            f'<rect class="bar c0" x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, wide - 2):.1f}" height="{height:.1f}" '
            f'rx="2">{title}</rect>'
        )
        parts.append(f'<text x="{x + wide / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(what)}</text>')
    return _frame("".join(parts), name)


def legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    entries = (f'<li><i class="c{index}"></i>{escape(name)}</li>' for index, name in enumerate(names))
    return f'<ul class="legend">{"".join(entries)}</ul>'
