"""Requests of ``ctl`` commands to a broker about the whole cluster, and their output."""

from __future__ import annotations

import getpass
import json
import sys
from typing import Annotated, Any

import typer

from starlingmq.admin.printable import PAGE_MAX, plain
from starlingmq.cli.control import ask_broker, broker_address
from starlingmq.cli.tables import Columns, table

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
    """Send a request to the broker of a data directory, in the name of the user who runs the command. Raises
    CommandError.
    """
    given = {name: value for name, value in arguments.items() if value}
    directory = broker_address(data_dir, config)
    return ask_broker(directory, action, {**given, "by": _user()}, lambda what, done, total, unit: None)


def listed(action: str, key: str, limit: int, data_dir: str | None, config: str | None, **arguments: str) -> Result:
    """Return the first ``limit`` entries of a list, read page by page; ``more`` if there are others."""
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


def show(found: Result, json_: bool, key: str, columns: Columns, none: str = "none", wide: bool | None = None) -> None:
    """Print a table of ``found[key]``, or ``none`` if it is empty."""
    if json_:
        print(json.dumps(found))
        return
    print(table(columns, found[key], wide) if found[key] else none)
    if found.get("more"):
        print("there are more entries; raise --limit", file=sys.stderr)
    warn_of(found)


def warn_of(found: Result) -> None:
    """Warn of nodes that did not answer."""
    for one in found.get("missing", ()):
        print(f"warning: no answer from {plain(one['node'])}: {plain(one['why'])}", file=sys.stderr)


def done(found: Result, json_: bool, line: str) -> None:
    """Print the result as a line, or as JSON."""
    if json_:
        print(json.dumps(found))
        return
    print(line)
    warn_of(found)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
