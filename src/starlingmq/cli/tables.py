"""Tables of ``starlingmq ctl`` and its siblings: aligned columns without boxes, the same on a terminal and in a pipe.

Invariant: the first column is never shortened. Cells of other text columns are shortened on a terminal that is too
narrow for them, and nowhere else; where that does not suffice, columns that say least are left out, and named on
stderr. With ``--wide`` neither is done. In a pipe, numbers have no separators and an empty cell is ``-``, so that every
line has the same columns.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.cells import cell_len, set_cell_size

from starlingmq.admin.printable import plain
from starlingmq.admin.table_columns import Column, Columns, Kind
from starlingmq.cli.progress import amount

GAP: Final = "  "
NARROWEST: Final = 8  # cells of a shortened column
UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))

WideOption = Annotated[bool, typer.Option("--wide", "-w", help="Show all columns.")]


def table(columns: Columns, entries: Iterable[Mapping[str, Any]], wide: bool | None = None) -> str:
    """The lines of a table for stdout. ``wide``: all columns, as wide as they are; None: all that have room."""
    terminal = sys.stdout.isatty()
    shown = {field: column for field, column in columns.items() if wide is not False or not column.wide}
    now = datetime.now(UTC)
    rows = [
        [cell(entry.get(field), column.kind, now, terminal) for field, column in shown.items()] for entry in entries
    ]
    width = shutil.get_terminal_size().columns if terminal and not wide else 0
    titles, rows, left_out = fitting(list(shown.values()), rows, width)
    if left_out:
        names = ", ".join(column.title for column in left_out)
        hint = "; --wide shows them" if wide is False else ""
        print(f"left out for lack of room: {names}{hint}", file=sys.stderr)
    return "\n".join(aligned(titles, rows, width))


def fitting(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[Column], list[list[str]], list[Column]]:
    """The columns that have room, their cells, and the columns that are left out: first texts that would be shortened,
    then columns that say the same in each row, then the last ones. If the first column alone fills the lines, all are
    kept. ``width`` 0: there is room for all."""
    lines = [[column.title for column in columns], *rows]
    sizes = [max(cell_len(line[index]) for line in lines) for index in range(len(columns))]
    least = [min(size, NARROWEST) if columns[at].kind == "text" and at else size for at, size in enumerate(sizes)]
    kept = list(range(len(columns)))
    while width and len(kept) > 2 and least[0] < width and _line_of(least, kept) > width:
        kept.remove(max(kept[1:], key=lambda at: (least[at] < sizes[at], len({row[at] for row in rows}) <= 1, at)))
    left_out = [column for at, column in enumerate(columns) if at not in kept]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows], left_out


def _line_of(sizes: Sequence[int], kept: Sequence[int]) -> int:
    return sum(sizes[at] for at in kept) + len(GAP) * (len(kept) - 1)


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = 0) -> list[str]:
    """The heading and the rows. ``width``: that of the terminal, 0: unlimited."""
    lines = [[column.title.upper() for column in columns], *rows]
    widths = [max(cell_len(line[index]) for line in lines) for index in range(len(columns))]
    texts = [index for index, column in enumerate(columns) if column.kind == "text" and index]
    while width and texts and sum(widths) + len(GAP) * (len(widths) - 1) > width:
        widest = max(texts, key=lambda index: widths[index])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return [
        GAP.join(
            _fitted(text, size, column.kind != "text") for text, size, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def cell(value: Any, kind: Kind = "text", now: datetime | None = None, terminal: bool = True) -> str:
    """A value as text. Text of clients is made safe for a terminal."""
    empty = "" if terminal else "-"
    if value is None or value is False or value in ("", [], {}):
        return empty
    if value is True:
        return "yes"
    if kind in ("age", "left"):
        seconds = (datetime.fromisoformat(str(value)) - (now or datetime.now(UTC))).total_seconds()
        return duration(-seconds if kind == "age" else seconds)
    if kind == "seconds":
        return duration(float(value))
    if kind == "bytes" and terminal:
        return amount(value, "bytes")
    if isinstance(value, int | float):
        return f"{value:,}" if terminal else str(value)
    if isinstance(value, dict):
        return ", ".join(f"{plain(str(name))} {cell(one, 'text')}" for name, one in sorted(value.items()))
    if isinstance(value, list):
        return ", ".join(plain(str(one)) for one in value)
    return plain(str(value))


def duration(seconds: float) -> str:
    """In the largest unit that fits: ``42s``, ``3m``, ``5h``, ``12d``."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def _fitted(text: str, width: int, right: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)
