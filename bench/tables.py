"""Parts shared by all reports."""

from __future__ import annotations

import msgspec
from rich.table import Table


class Target(msgspec.Struct, frozen=True):
    """One figure to reach: ``value`` at least, or at most, ``bound``."""

    name: str
    value: float
    bound: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def grid(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def thousands(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e3:,.1f}"


def short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
