"""How commands of ``ctl`` ask a broker for something of the whole cluster, and show it."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from starlingmq.admin.printable import PAGE_MAX, plain
from starlingmq.cli.control import ask_broker, directory_of

WIDTH_MIN: Final = 170  # columns where there is no terminal

Result = dict[str, Any]

NodeOption = Annotated[str, typer.Option("--node", metavar="NAME", help="Only this node. Default: all nodes.")]
AtOption = Annotated[
    str, typer.Option("--node", metavar="NAME", help="Node to use. Default: the node of this data directory.")
]
SearchOption = Annotated[
    str, typer.Option("--search", "-s", metavar="TEXT", help="Only entries whose client id contains this text.")
]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number of entries.")]


def ask(action: str, data_dir: str | None, config: str | None, **arguments: str) -> Result:
    """Ask the broker of a data directory, in the name of whoever runs this. Raises CommandError."""
    given = {name: value for name, value in arguments.items() if value}
    directory = directory_of(data_dir, config)
    return ask_broker(directory, action, {**given, "by": _user()}, lambda what, done, total, unit: None)


def listed(action: str, key: str, limit: int, data_dir: str | None, config: str | None, **arguments: str) -> Result:
    """The first ``limit`` entries of a list, whatever pages they come in; ``more`` if there are others."""
    entries: list[Result] = []
    missing: dict[str, Result] = {}
    cursor = ""
    while True:
        size = min(limit - len(entries), PAGE_MAX)
        page = ask(action, data_dir, config, limit=str(size), cursor=cursor, **arguments)
        entries += page[key]
        missing |= {one["node"]: one for one in page.get("missing", ())}
        cursor = page["next"] or ""
        if not cursor or len(entries) >= limit:
            return {"node": page["node"], key: entries, "more": bool(cursor), "missing": list(missing.values())}


def show(
    found: Result, json_: bool, key: str, columns: Mapping[str, str], numbers: Iterable[str] = (), none: str = "none"
) -> None:
    """A table of ``found[key]``: titles by the names of fields; ``numbers`` are the fields that are told so."""
    if json_:
        print(json.dumps(found))
        return
    numbers = set(numbers)
    table = Table()
    for field, title in columns.items():
        table.add_column(title, justify="right" if field in numbers else "left")
    for entry in found[key]:
        table.add_row(*(cell(entry.get(field)) for field in columns))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, WIDTH_MIN))
    console.print(table if found[key] else Text(none))
    if found.get("more"):
        print("there are more entries; raise --limit", file=sys.stderr)
    warn_of(found)


def warn_of(found: Result) -> None:
    """Who did not answer."""
    for one in found.get("missing", ()):
        print(f"warning: no answer from {plain(one['node'])}: {plain(one['why'])}", file=sys.stderr)


def done(found: Result, json_: bool, line: str) -> None:
    """What was done, as a line, or as it is."""
    if json_:
        print(json.dumps(found))
        return
    print(line)
    warn_of(found)


def cell(value: Any) -> Text:
    """What clients chose can neither be obeyed by a terminal nor be taken for markup."""
    if value is None or value is False:
        return Text("")
    if value is True:
        return Text("yes")
    if isinstance(value, int | float):
        return Text(f"{value:,}")
    if isinstance(value, list):
        return Text(", ".join(plain(str(one)) for one in value))
    return Text(plain(str(value)))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
