"""Requests of ``ctl`` commands to a broker about the whole cluster, and their output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from starlingmq.admin.printable import PAGE_MAX, plain
from starlingmq.cli.control import ask_broker, broker_address
from starlingmq.cli.progress import Report
from starlingmq.cli.remote import ANSWER_SECONDS
from starlingmq.cli.tables import Columns, table

Result = dict[str, Any]

NodeOption = Annotated[str, typer.Option("--node", metavar="NAME", help="Only this node. Default: all nodes.")]
AtOption = Annotated[
    str, typer.Option("--node", metavar="NAME", help="Node to use. Default: the node of this data directory.")
]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number of entries.")]

DescendingOption = Annotated[bool, typer.Option("--descending", help="With --sort: the highest value first.")]


def ask(action: str, data_dir: str | None, config: str | None, **arguments: str) -> Result:
    """Send a request to the broker of a data directory, which knows the user who runs the command. Raises
    CommandError.
    """
    return ask_within(ANSWER_SECONDS, action, data_dir, config, arguments)


def ask_within(
    seconds: float,
    action: str,
    data_dir: str | None,
    config: str | None,
    arguments: Mapping[str, str],
    report: Report | None = None,
) -> Result:
    """As ``ask``. Raises CommandError also if there is no answer within ``seconds``."""
    given = {name: value for name, value in arguments.items() if value}
    directory = broker_address(data_dir, config)
    return ask_broker(directory, action, given, report or (lambda what, done, total, unit: None), seconds)


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
            told = {name: page[name] for name in ("total", "complete") if name in page}
            return {"node": page["node"], key: entries, "more": bool(cursor), "missing": list(missing.values())} | told


class ListOrder(NamedTuple):
    """``sort``: a column of the API; "" for the list's own order."""

    sort: str
    descending: bool


def sorted_or_listed(
    action: str, key: str, limit: int, data_dir: str | None, config: str | None, order: ListOrder, **arguments: str
) -> Result:
    """As ``listed``; with a column to sort by, in that order, and with the number of all entries as ``total``."""
    if not order.sort:
        return listed(action, key, limit, data_dir, config, **arguments)
    search = f"{action.partition('.')[0]}.sorted"
    direction = "yes" if order.descending else "no"
    return listed(search, key, limit, data_dir, config, sort=order.sort, descending=direction, **arguments)


def show(found: Result, json_: bool, key: str, columns: Columns, none: str = "none", wide: bool | None = None) -> None:
    """Print a table of ``found[key]``, or ``none`` if it is empty."""
    if json_:
        print(json.dumps(found))
        return
    print(table(columns, found[key], wide) if found[key] else none)
    tell_more(found, key)


def tell_more(found: Result, key: str) -> None:
    """Print on stderr: the total, whether there are more entries, and the nodes that did not answer."""
    tell_total(found, key)
    if found.get("more"):
        print("there are more entries; raise --limit", file=sys.stderr)
    warn_of(found)


def nothing(what: str, otherwise: str, filters: Mapping[str, str | bool]) -> str:
    """The line of an empty list: by which options nothing is left, or ``otherwise``."""
    given = [option if text is True else f"{option} {text!r}" for option, text in filters.items() if text]
    return f"no {what} with {' and '.join(given)}" if given else otherwise


def tell_total(found: Result, key: str) -> None:
    """Of a sorted list."""
    if "complete" in found:
        of = f"{found['total']:,}" if found["complete"] else f"the first {found['total']:,}; narrow the search"
        print(f"{len(found[key]):,} of {of}", file=sys.stderr)


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
