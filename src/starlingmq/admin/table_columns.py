"""The columns of tables, as declarations tell them: for ``ctl`` and for the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_type_hints

Kind = Literal["text", "number", "bytes", "age", "left", "seconds"]


class Column(NamedTuple):
    """``title`` is a heading. ``age`` and ``left`` are of ISO times in the past and the future; ``wide`` columns are
    shown with ``--wide`` only."""

    title: str
    kind: Kind = "text"
    wide: bool = False


Columns = Mapping[str, Column]
"""The columns of a table by the fields of an entry."""


def columns_of(words: str, entry: type[Any] | None = None) -> Columns:
    """Columns as a declaration tells them: fields of the entry with commas between them, each as
    ``field: title/kind*``. The title is that of the field, and the kind that of its type, where they are not told;
    ``*``: wide."""
    hints = {} if entry is None else get_type_hints(entry)
    found = {}
    for one in words.split(","):
        text, wide, _ = one.strip().partition("*")
        name, _, title = text.partition(":")
        if not title:
            name, _, kind = name.partition("/")
            title = f"{name.replace('_', ' ')}/{kind}"
        title, _, kind = title.strip().partition("/")
        told = kind or ("number" if hints.get(name) in (int, float, float | None) else "text")
        found[name] = Column(title, told, bool(wide))  # type: ignore[arg-type]
    return found
