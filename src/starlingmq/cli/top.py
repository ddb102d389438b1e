"""``starlingmq top``: the current activity of clients, nodes and topics, as a live table."""

from __future__ import annotations

import json
import select
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from starlingmq.admin.table_columns import Column
from starlingmq.cli.ctl_ask import AskedBroker, NodeOption, asks, warn_of
from starlingmq.cli.declare import CommandError
from starlingmq.cli.tables import cell, table

Result = dict[str, Any]
Ask = Callable[..., Result]

TOPICS_MAX: Final = 5000  # topics counted
RATE: Final = 200  # messages per second and node in the sample that topics are counted from
ROWS: Final = 200
VIEWS: Final = ("clients", "nodes", "topics")
SORTS: Final = {
    "clients": ("messages_in", "bytes_in", "bytes_out", "queued", "inflight", "dropped", "subscriptions"),
    "nodes": ("messages_in", "messages_out", "bytes_in", "bytes_out", "clients", "queued", "dropped"),
    "topics": ("messages", "bytes"),
}


class TopData:
    """``ask`` sends a request to the broker; ``look`` returns a view. Rates are available from the second call on."""

    def __init__(self, ask: Ask, node: str) -> None:
        self._ask = ask
        self._node = node
        self._totals: dict[str, Result] = {}
        self._trace = ""
        self._messages: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def look(self, view: str, sort: str) -> Result:
        """Return ``rows``, sorted by ``sort``, and ``missing`` nodes. Raises CommandError."""
        if view == "nodes":
            rows, missing = self._nodes()
        elif view == "topics":
            rows, missing = self._topics()
        else:
            found = self._ask("activity", sort=sort, limit=str(ROWS), node=self._node)
            return {"view": view, "sort": sort, "rows": found["clients"], "missing": found["missing"]}
        rows.sort(key=lambda row: row[sort], reverse=True)
        return {"view": view, "sort": sort, "rows": rows[:ROWS], "missing": missing}

    def _nodes(self) -> tuple[list[Result], list[Result]]:
        found = self._ask("overviews")
        rows = [self._rates(one) for one in found["nodes"] if self._node in ("", one["node"])]
        return rows, found["missing"]

    def _rates(self, now: Result) -> Result:
        before = self._totals.get(now["node"], now)
        self._totals[now["node"]] = now
        seconds = now["now"] - before["now"]

        def rate(name: str) -> float:
            change = now["totals"][name] - before["totals"][name]
            return round(change / seconds, 1) if seconds > 0 and change >= 0 else 0.0

        return {
            "node": now["node"],
            "ready": now["ready"]["status"],
            "messages_in": rate("messages_received"),
            "messages_out": rate("messages_sent"),
            "bytes_in": rate("bytes_received"),
            "bytes_out": rate("bytes_sent"),
            "forwarded": rate("forwards_sent"),
            "clients": now["holds"]["clients"],
            "sessions": now["holds"]["sessions"],
            "queued": now["holds"]["queued"],
            "dropped": rate("dropped"),
            "turn_p99_ms": now["latency"]["turn"]["p99_ms"],
        }

    def _topics(self) -> tuple[list[Result], list[Result]]:
        """Count topics in a sample of messages: the shares are representative, the rates are not."""
        if not self._trace:
            begun = self._ask("trace.begin", topic="#", tail="yes", rate=str(RATE))
            self._trace = begun["trace"]
        found = self._ask("trace.next", trace=self._trace)
        for told in found["events"]:
            topic, known = told["topic"], told["topic"] in self._messages
            if self._node in ("", told["node"]) and (known or len(self._messages) < TOPICS_MAX):
                self._messages[topic] += 1
                self._bytes[topic] += told["size"]
        total = self._messages.total()
        rows: list[Result] = [
            {"topic": topic, "messages": count, "share": round(count / total, 4), "bytes": self._bytes[topic]}
            for topic, count in self._messages.items()
        ]
        return rows, found["missing"]

    def close(self) -> None:
        """Raises CommandError."""
        if self._trace:
            self._ask("trace.end", trace=self._trace)
            self._trace = ""


TITLES: Final = {
    "client_id": "client",
    "inflight": "in flight",
    "messages_in": "msg/s in",
    "messages_out": "msg/s out",
    "bytes_in": "bytes/s in",
    "bytes_out": "bytes/s out",
    "turn_p99_ms": "turn p99 (ms)",
}
COLUMNS: Final = {
    "clients": (
        "client_id",
        "node",
        "messages_in",
        "bytes_in",
        "bytes_out",
        "queued",
        "inflight",
        "dropped",
        "subscriptions",
        "slow",
    ),
    "nodes": (
        *("node", "ready", "messages_in", "messages_out", "bytes_in", "bytes_out", "forwarded", "clients", "sessions"),
        *("queued", "dropped", "turn_p99_ms"),
    ),
    "topics": ("topic", "messages", "share", "bytes"),
}
WORDS: Final = ("client_id", "node", "ready", "topic", "slow")
FIRST_SECONDS: Final = 1.1  # between the two samples of the first rates
KEYS: Final = "c clients  n nodes  t topics  s sort by the next column  q quit"


@asks
def command(
    broker: AskedBroker,
    view: Annotated[str, typer.Option("--view", help="clients, nodes or topics.")] = "clients",
    sort: Annotated[str, typer.Option("--sort", "-s", metavar="COLUMN", help="Column to sort by, highest first.")] = "",
    node: NodeOption = "",
    interval: Annotated[
        float, typer.Option("--interval", min=1.0, metavar="SECONDS", help="Seconds between two updates.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit.")] = False,
) -> None:
    """Watch the activity of clients, nodes and topics on all nodes; c, n, t change the view, s the order, q quits.

    Topics are counted from a sample of 200 messages per second and node, starting with the command.
    """
    if view not in VIEWS:
        raise CommandError(f"--view: must be one of {', '.join(VIEWS)}")
    if sort and sort not in SORTS[view]:
        raise CommandError(f"--sort: must be one of {', '.join(SORTS[view])} for {view}")
    data = TopData(broker.ask, node)
    try:
        if once or broker.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _once(data, view, sort or SORTS[view][0], broker.json)
        else:
            _live(data, view, sort or SORTS[view][0], interval)
    finally:
        with suppress(CommandError):  # the broker may have ended
            data.close()


def _once(data: TopData, view: str, sort: str, json_: bool) -> None:
    data.look(view, sort)
    time.sleep(FIRST_SECONDS)
    found = data.look(view, sort)
    if json_:
        print(json.dumps(found))
        return
    columns = {name: Column(TITLES.get(name, name), "text" if name in WORDS else "number") for name in COLUMNS[view]}
    print(table(columns, found["rows"]))
    warn_of(found)


def _live(data: TopData, view: str, sort: str, interval: float) -> None:
    console = Console()
    with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            found = data.look(view, sort)
            live.update(_screen(found, console.height), refresh=True)
            pressed = key(interval)
            if pressed == "q":
                return
            chosen = next((name for name in VIEWS if name[0] == pressed), "")
            if chosen and chosen != view:
                view, sort = chosen, SORTS[chosen][0]
            elif pressed == "s":
                sort = SORTS[view][(SORTS[view].index(sort) + 1) % len(SORTS[view])]


def _screen(found: dict[str, Any], height: int) -> Group:
    missing = [f"no answer from {one['node']}: {one['why']}" for one in found["missing"]]
    rows = max(height - 6 - len(missing), 1)
    return Group(_table(found, rows), *(Text(line, style="red") for line in missing), Text(KEYS, style="dim"))


def _table(found: dict[str, Any], rows: int) -> Table:
    shown = Table(
        box=None, title=f"{found['view']} by {TITLES.get(found['sort'], found['sort'])}", title_justify="left"
    )
    columns = COLUMNS[found["view"]]
    for column in columns:
        words = column in WORDS
        shown.add_column(TITLES.get(column, column), justify="left" if words else "right", no_wrap=column == columns[0])
    for row in found["rows"][:rows]:
        shown.add_row(*(Text(cell(row[column])) for column in columns))
    return shown


@contextmanager
def _keys() -> Iterator[Any]:
    """Provide a function that waits for a key, for a limited number of seconds. Restores the terminal afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def key(seconds: float) -> str:
        readable, _, _ = select.select([descriptor], [], [], seconds)
        return sys.stdin.read(1) if readable else ""

    try:
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
