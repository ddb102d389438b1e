"""Pictures of states and of what is said, as SVG. Colours are classes: a page gives them (docs/site.css), light or
dark; a picture that is looked at by itself goes by the reader's system."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

STYLE: Final = """<style>
svg { color-scheme: light dark; }
text { font: 14px sans-serif; fill: #333; }
.small { font-size: 12px; fill: #555; paint-order: stroke; stroke: #fff; stroke-width: 4px; }
.state { fill: #eef1f6; stroke: #667; } .end { fill: none; stroke: #667; stroke-dasharray: 4 3; }
.edge { fill: none; stroke: #667; } .line { stroke: #bbc; } .head { fill: #667; stroke: none; }
@media (prefers-color-scheme: dark) {
text { fill: #ddd; } .small { fill: #aab; stroke: #111; } .state { fill: #2b3040; stroke: #99a; } .end { stroke: #99a; }
.edge { stroke: #99a; } .line { stroke: #445; } .head { fill: #99a; }
}
</style>"""
EM: Final = 7.4  # of a character, about
HIGH: Final = 40  # of a box
LABEL: Final = 16  # of a line of text

Edges = dict[tuple[str, str], list[str]]
"""From a state to another one, or to itself: by what."""


class Canvas:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, part: str) -> None:
        self._parts.append(part)

    def text(self, x: float, y: float, words: str, kind: str = "small", anchor: str = "middle") -> None:
        self.add(f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(words)}</text>')

    def stack(self, x: float, y: float, lines: Sequence[str], up: bool) -> None:
        """Lines of text above or below a point."""
        for number, words in enumerate(reversed(lines) if up else lines):
            self.text(x, y - number * LABEL if up else y + number * LABEL, words)

    def arrow(self, path: str) -> None:
        self.add(f'<path class="edge" marker-end="url(#head)" d="{path}"/>')

    def svg(self, width: float, height: float, about: str) -> str:
        head = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="head" d="M0 0 10 5 0 10z"/></marker></defs>'
        )
        size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(about)}" {size}>'
        return "\n".join([start, STYLE, head, *self._parts, "</svg>"]) + "\n"


def states(about: str, order: Sequence[str], edges: Edges, ends: Sequence[str] = ()) -> str:
    """States in a row. What goes from neighbour to neighbour is straight, what passes others goes round: forwards
    above, backwards below. ``ends`` are those that nothing leaves, or that are no state of the machine."""
    place = {name: number for number, name in enumerate(order)}
    canvas = Canvas()
    above = sorted(
        (key for key in edges if place[key[1]] - place[key[0]] > 1), key=lambda key: place[key[1]] - place[key[0]]
    )
    below = sorted(
        (key for key in edges if place[key[0]] - place[key[1]] > 1), key=lambda key: place[key[0]] - place[key[1]]
    )
    lefts, widths = _columns(order, edges, place)
    beside = [len(labels) for (start, end), labels in edges.items() if abs(place[end] - place[start]) == 1]
    first = max(26, max(beside, default=0) * LABEL)  # of the lowest arc, above what is written beside straight arrows
    top = 16 + first + sum(_arc(edges[key]) for key in above)
    middle = top + HIGH / 2
    for name in order:
        left, wide = lefts[name], widths[name]
        kind = "end" if name in ends else "state"
        canvas.add(f'<rect class="{kind}" x="{left:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{HIGH}" rx="8"/>')
        canvas.text(left + wide / 2, middle + 5, name, "name")
        own = edges.get((name, name))
        if own:
            x, y = left + wide / 2, top + HIGH
            canvas.arrow(
                f"M{x - 14:.0f} {y:.0f} C{x - 26:.0f} {y + 30:.0f} {x + 26:.0f} {y + 30:.0f} {x + 14:.0f} {y + 1:.0f}"
            )
            canvas.stack(x, y + 38, own, up=False)
    for (start, end), labels in edges.items():
        if abs(place[end] - place[start]) == 1:
            _neighbours(canvas, start, end, labels, lefts, widths, middle, (end, start) in edges)
    high = float(first)
    for start, end in above:
        up = top - high / 0.75  # a curve gets three quarters of the way to the points that bend it
        from_x, to_x = lefts[start] + widths[start] * 0.5, lefts[end] + widths[end] * 0.5
        canvas.arrow(f"M{from_x:.0f} {top:.0f} C{from_x:.0f} {up:.0f} {to_x:.0f} {up:.0f} {to_x:.0f} {top - 1:.0f}")
        canvas.stack((from_x + to_x) / 2, top - high - 6, edges[start, end], up=True)
        high += _arc(edges[start, end])
    bottom = _below(canvas, below, edges, lefts, widths, top + HIGH)
    last = order[-1]
    looped = max((len(label) for label in edges.get((last, last), ())), default=0) * 6.4
    return canvas.svg(lefts[last] + max(widths[last], (widths[last] + looped) / 2) + 12, bottom, about)


def _below(
    canvas: Canvas,
    below: Sequence[tuple[str, str]],
    edges: Edges,
    lefts: dict[str, float],
    widths: dict[str, float],
    base: float,
) -> float:
    """Arcs below the boxes and their loops, which end at ``base``; where the picture ends."""
    loops = max((len(labels) for (start, end), labels in edges.items() if start == end), default=0)
    down = base + 26 + (30 + loops * LABEL if loops else 0)
    for start, end in below:
        from_x, to_x = lefts[start] + widths[start] * 0.88, lefts[end] + widths[end] * 0.12
        low = base + (down - base) / 0.75
        canvas.arrow(f"M{from_x:.0f} {base:.0f} C{from_x:.0f} {low:.0f} {to_x:.0f} {low:.0f} {to_x:.0f} {base + 1:.0f}")
        canvas.stack((from_x + to_x) / 2, down + 16, edges[start, end], up=False)
        down += _arc(edges[start, end])
    return down + (0 if below else 8)


def _arc(labels: Sequence[str]) -> float:
    """How far the next arc is from one with these labels."""
    return 14 + LABEL * len(labels)


def _columns(order: Sequence[str], edges: Edges, place: dict[str, int]) -> tuple[dict[str, float], dict[str, float]]:
    lefts, widths = {}, {}
    x = 12.0
    for name in order:
        own = max((len(label) for label in edges.get((name, name), ())), default=0)
        widths[name] = max(len(name) * EM + 28, 70.0)
        spread = max(0.0, (own * 6.4 - widths[name]) / 2)  # the text below a box may be wider than the box
        lefts[name] = x + spread
        between = [
            len(label)
            for (start, end), labels in edges.items()
            if {place[start], place[end]} == {place[name], place[name] + 1}
            for label in labels
        ]
        x = lefts[name] + widths[name] + max(spread + 12, max(between, default=0) * 6.4 + 30, 40)
    return lefts, widths


def _neighbours(
    canvas: Canvas,
    start: str,
    end: str,
    labels: Sequence[str],
    lefts: dict[str, float],
    widths: dict[str, float],
    middle: float,
    both: bool,
) -> None:
    forwards = lefts[start] < lefts[end]
    from_x = lefts[start] + (widths[start] if forwards else 0)
    to_x = lefts[end] + (0 if forwards else widths[end])
    y = middle + ((-8 if forwards else 8) if both else 0)
    canvas.arrow(f"M{from_x:.0f} {y:.0f} L{to_x + (-1 if forwards else 1):.0f} {y:.0f}")
    canvas.stack((from_x + to_x) / 2, y - 6 if forwards else y + 16, labels, up=forwards)


def sequence(about: str, who: Sequence[str], said: Sequence[tuple[str, str, str]]) -> str:
    """The messages between participants, from top to bottom; a message to oneself is a note."""
    canvas = Canvas()
    wide = max(
        210.0, *(len(text) * 6.4 + 50 for start, end, text in said if abs(who.index(start) - who.index(end)) == 1)
    )
    centre = {name: 80 + number * wide for number, name in enumerate(who)}
    height = 76 + 34 * len(said)
    for name, x in centre.items():
        canvas.add(f'<line class="line" x1="{x:.0f}" y1="48" x2="{x:.0f}" y2="{height - 14:.0f}"/>')
        canvas.add(f'<rect class="state" x="{x - 72:.0f}" y="10" width="144" height="34" rx="8"/>')
        canvas.text(x, 32, name, "name")
    y = 76.0
    for start, end, text in said:
        if start == end:
            canvas.text(centre[start] + 8, y, text, anchor="start")
        else:
            towards = 1 if centre[end] > centre[start] else -1
            canvas.text((centre[start] + centre[end]) / 2, y - 5, text)
            canvas.arrow(f"M{centre[start]:.0f} {y:.0f} L{centre[end] - towards:.0f} {y:.0f}")
        y += 34
    return canvas.svg(160 + wide * (len(who) - 1), height, about)
