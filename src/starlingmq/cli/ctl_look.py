"""``starlingmq ctl``: show the state of a broker and its cluster: clients, sessions, messages, nodes, the log."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
import yaml

from starlingmq.admin.printable import plain
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import (
    AtOption,
    DescendingOption,
    LimitOption,
    ListOrder,
    Result,
    ask,
    nothing,
    show,
    sorted_or_listed,
)
from starlingmq.cli.ctl_declared import SHOWN, Shown, rows, shows
from starlingmq.cli.ctl_status import gone_line, node_rows
from starlingmq.cli.tables import WideOption, columns_of
from starlingmq.log import printable

SHOWN_OF_SESSION: Final = 10  # entries of each list
UNITS: Final = {
    **dict.fromkeys(("expiry", "keep_alive"), "s"),
    **dict.fromkeys(("queued", "inflight", "awaiting_rel", "dropped"), "messages"),
    "queued_bytes": "bytes",
}
"""Of the numbers of a session."""
FOLLOW_SECONDS: Final = 1.0

RETAINED: Final = columns_of(
    "topic, qos: QoS/number, size: bytes/bytes, published_at: age/age, expires_at: expires in/left*, publisher*"
)

ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Client id.")]


@shows("session")
def session(
    found: Result,
    given: dict[str, Any],
    *,
    all_: Annotated[bool, typer.Option("--all", help="All subscriptions and messages, not the first ten.")] = False,
) -> Shown:
    return _session_lines(found, all_), 0


def _session_lines(found: Result, all_: bool) -> Iterator[str]:
    told = {**found["session"], "node": found["node"], **(found["client"] or {})}
    for name, value in told.items():
        if value not in (None, ""):
            yield f"{name.replace('_', ' '):16} {_fact(name, value)}"
    count: dict[str, Any] = found["session"]
    subscribed = [f"{plain(each['filter'])} (QoS {each['qos']})" for each in found["subscriptions"]]
    window = [f"{each['packet_id']}: {plain(each['topic'] or '?')}, {each['stage']}" for each in found["window"]]
    queue = [
        f"{plain(each['topic'] or 'on disk')}, {each['size']:,} bytes, QoS {each['qos']}" for each in found["queue"]
    ]
    yield from _first("subscribes", subscribed, count["subscriptions"], all_)
    yield from _first("in flight", window, count["inflight"], all_)
    yield from _first("queued", queue, count["queued"], all_)


def _fact(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,} {UNITS.get(name, '')}".rstrip() if isinstance(value, int) else plain(str(value))


def _first(title: str, lines: list[str], total: int, all_: bool) -> Iterator[str]:
    """``lines``: those that the broker has sent, of ``total``."""
    shown = lines if all_ else lines[:SHOWN_OF_SESSION]
    for line in shown:
        yield f"{title:16} {line}"
    if total > len(shown):
        hint = f"not listed: a broker shows the first {len(lines):,}" if all_ else "--all"
        yield f"{title:16} … and {total - len(shown):,} more: {hint}"


def retained(
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="Filter of the topics.")] = "#",
    payload: Annotated[bool, typer.Option("--payload", help="Write the payload of this topic as it is.")] = False,
    sort: Annotated[str, typer.Option(help="Sort by topic, qos, size, publisher or published_at.")] = "",
    descending: DescendingOption = False,
    limit: LimitOption = SHOWN,
    wide: WideOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List retained messages by topic; they are the same on all nodes."""
    if payload:
        one = ask("retained.show", data_dir, config, topic=filter)
        if json_:
            print(json.dumps(one))
        else:
            sys.stdout.buffer.write(base64.b64decode(one["payload_base64"]))
        return
    found = sorted_or_listed(
        "retained", "retained", limit, data_dir, config, ListOrder(sort, descending), filter=filter
    )
    none = nothing("retained message", "there are no retained messages", {"FILTER": "" if filter == "#" else filter})
    show(found, json_, "retained", RETAINED, none, wide)


rows("overviews")(node_rows)


@rows("peers")
def peer_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    gone = {one["peer"]: gone_line(one["served_by"]) for one in found["peers"] if one.get("served_by")}
    return [_peer_row(peer, gone) for peer in found["peers"]]


def _peer_row(peer: dict[str, Any], gone: dict[str, str]) -> dict[str, Any]:
    server = peer.get("served_by")  # a node of an older version does not say it
    name = peer["node"]
    return peer | {
        "node": f"{name} ({gone[name]})" if name in gone else name,
        "connected": f"no; to {server}, which serves its data" if server else peer["connected"],
    }


@shows("config")
def config(found: Result, given: dict[str, Any]) -> Shown:
    return [yaml.safe_dump(found, sort_keys=False).rstrip()], 0


def log(
    level: Annotated[str, typer.Option("--level", help="Minimum level: debug, info, warning or error.")] = "debug",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, metavar="N", help="Number of lines to start with.")
    ] = 100,
    node: AtOption = "",
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Print the last lines of a node's log; with --json one object per line."""
    after = ""
    while True:
        found = ask("log", data_dir, config, level=level, limit=str(limit), after=after, node=node)
        if found["lost"]:
            print(f"warning: {found['lost']:,} lines were discarded before they could be read", file=sys.stderr)
        for line in found["lines"]:
            print(json.dumps(line) if json_ else f"{line['time']} {line['level']:7} {line['message']}")
        if not follow:
            return
        sys.stdout.flush()
        after, limit = str(found["next"]), 1000
        if len(found["lines"]) < limit:
            time.sleep(FOLLOW_SECONDS)


def metrics(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only metrics with this prefix.")] = "",
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Print all metrics of this node in Prometheus format, as /metrics has them."""
    if json_:
        found = ask("metrics", data_dir, config)
        found["samples"] = [one for one in found["samples"] if one["name"].startswith(name)]
        print(json.dumps(found))
        return
    text = ask("metrics.text", data_dir, config)["text"].rstrip("\n")
    lines = [
        line
        for line in text.split("\n")  # values may have other line breaks
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(name)
    ]
    for line in lines:
        print(printable(line))
    if not lines:
        print(nothing("metric", "there are no metrics", {"NAME": name}), file=sys.stderr)
