"""Requests of ``ctl`` commands to a broker about the whole cluster, and their output."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Generator, Mapping
from functools import wraps
from inspect import signature
from typing import Annotated, Any, Final, NamedTuple

import typer

from starlingmq.admin.printable import PAGE_MAX, plain
from starlingmq.admin.table_columns import Columns
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask_broker, broker_address
from starlingmq.cli.declare import parameter, shaped
from starlingmq.cli.progress import Report, no_report, progress
from starlingmq.cli.remote import ANSWER_SECONDS, is_url
from starlingmq.cli.tables import table

Result = dict[str, Any]
Lines = Generator[str, None, int | None]
"""Lines for stdout, and the exit code in the end."""

NodeOption = Annotated[str, typer.Option("--node", metavar="NAME", help="Only this node. Default: all nodes.")]
AtOption = Annotated[
    str, typer.Option("--node", metavar="NAME", help="Node to use. Default: the node of this data directory.")
]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number of entries.")]

DescendingOption = Annotated[bool, typer.Option("--descending", help="With --sort: the highest value first.")]


class ListOrder(NamedTuple):
    """``sort``: a column of the API; "" for the list's own order."""

    sort: str = ""
    descending: bool = False


OWN_ORDER: Final = ListOrder()


class AskedBroker(NamedTuple):
    """The broker that a command asks, as its options name it, and how the command shows the answer."""

    data_dir: str | None = None
    config: str | None = None
    json: bool = False

    @property
    def url(self) -> str | None:
        """That was given in place of a data directory."""
        return self.data_dir if is_url(self.data_dir) else None

    def ask(self, action: str, **arguments: str) -> Result:
        """Send a request. On the control socket, the broker knows the user who runs the command. Raises
        CommandError."""
        return self.ask_within(ANSWER_SECONDS, action, arguments)

    def ask_within(
        self, seconds: float, action: str, arguments: Mapping[str, str], report: Report = no_report
    ) -> Result:
        """As ``ask``. Raises CommandError also if there is no answer or progress within ``seconds``."""
        given = {name: value for name, value in arguments.items() if value}
        return ask_broker(broker_address(self.data_dir, self.config), action, given, report, seconds)

    def ask_long(self, action: str, **arguments: str) -> Result:
        """As ``ask``, with the progress."""
        with progress(self.json) as report:
            return self.ask_within(ANSWER_SECONDS, action, arguments, report)

    def listed(self, action: str, key: str, limit: int, order: ListOrder = OWN_ORDER, **arguments: str) -> Result:
        """Return the first ``limit`` entries of a list, read page by page; ``more`` if there are others. With a column
        to sort by, in that order, and with the number of all entries as ``total``."""
        if order.sort:
            action = f"{action.partition('.')[0]}.sorted"
            arguments |= {"sort": order.sort, "descending": "yes" if order.descending else "no"}
        entries: list[Result] = []
        missing: dict[str, Result] = {}
        cursor = ""
        while True:
            size = min(limit - len(entries), PAGE_MAX)
            page = self.ask(action, limit=str(size), cursor=cursor, **arguments)
            entries += page[key]
            missing |= {one["node"]: one for one in page.get("missing", ())}
            cursor = page["next"] or ""
            if not cursor or len(entries) >= limit:
                told = {name: page[name] for name in ("node", "total", "complete") if name in page}
                return told | {key: entries, "more": bool(cursor), "missing": list(missing.values())}

    def show(self, found: Result, key: str, columns: Columns, none: str = "none", wide: bool | None = None) -> None:
        """Print a table of ``found[key]``, or ``none`` if it is empty."""
        if self.json:
            print(json.dumps(found))
            return
        print(table(columns, found[key], wide) if found[key] else none)
        tell_more(found, key)

    def tell(self, found: Result, lines: Lines) -> int:
        """Print the result as lines, or as JSON, and return the exit code."""
        if self.json:
            print(json.dumps(found))
        while True:
            try:
                line = next(lines)
            except StopIteration as end:
                return end.value or 0
            if not self.json:
                print(line)

    def write_payload(self, found: Result) -> None:
        """Write the payload as it is, or print the result as JSON."""
        if self.json:
            print(json.dumps(found))
        else:
            sys.stdout.buffer.write(base64.b64decode(found["payload_base64"]))

    def done(self, found: Mapping[str, Any], line: str) -> None:
        """Print the result as a line, or as JSON."""
        print(json.dumps(found) if self.json else line)
        if not self.json:
            warn_of(found)


BROKER_OPTIONS: Final = [
    parameter("data_dir", None, DataDirOption),
    parameter("config", None, FileOption),
    parameter("json_", False, JsonOption),
]


def asks(act: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with options that name a broker in place of its first parameter, an ``AskedBroker``."""

    @wraps(act)
    def command(data_dir: str | None = None, config: str | None = None, json_: bool = False, **given: Any) -> Any:
        return act(AskedBroker(data_dir, config, json_), **given)

    _, *own = signature(act, eval_str=True).parameters.values()
    return shaped(command, [*(parameter(one.name, one.default, one.annotation) for one in own), *BROKER_OPTIONS])


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


def warn_of(found: Mapping[str, Any]) -> None:
    """Warn of nodes that did not answer."""
    for one in found.get("missing", ()):
        print(f"warning: no answer from {plain(one['node'])}: {plain(one['why'])}", file=sys.stderr)
