"""``starlingmq ctl``: show the state of a broker and its cluster: clients, sessions, groups, messages, nodes, the
log.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
import yaml

from starlingmq.admin.printable import plain
from starlingmq.admin.table_columns import columns_of
from starlingmq.cli.ctl_ask import (
    AskedBroker,
    AtOption,
    DescendingOption,
    LimitOption,
    Lines,
    ListOrder,
    Result,
    asks,
    nothing,
    tell_total,
    warn_of,
)
from starlingmq.cli.ctl_declared import SHOWN, rows, shows
from starlingmq.cli.ctl_status import gone_line, node_rows
from starlingmq.cli.declare import CommandError
from starlingmq.cli.tables import WideOption, table
from starlingmq.log import printable

GROUPS_MAX: Final = 10_000
GROUPS: Final = columns_of(
    "name: group, filter, strategy, primary, members/number, online_here: here/number*, cursor/number*, "
    "lag/number, lent/number*, redelivered/number*, elsewhere*"
)


@asks
def groups(
    broker: AskedBroker,
    prefix: Annotated[str, typer.Argument(help="Only groups with this prefix.")] = "",
    everywhere: Annotated[bool, typer.Option("--everywhere", help="Ask the primary of each group.")] = False,
    sort: Annotated[
        str,
        typer.Option(
            help="With --everywhere: sort by name, filter, strategy, primary, members, waiting_here, lag, given or "
            "redelivered."
        ),
    ] = "",
    descending: DescendingOption = False,
    wide: WideOption = False,
) -> None:
    """List the queue groups with their strategy, members and waiting messages.

    A node knows its own part of a group; the group's primary knows all of it (--everywhere).
    """
    if everywhere or broker.url:
        found = broker.listed("groups.led", "groups", GROUPS_MAX, ListOrder(sort, descending), prefix=prefix)
        tell_total(found, "groups")
        warn_of(found)
    elif sort:
        raise CommandError("--sort needs --everywhere: a node knows only its own part of a group")
    else:
        found = broker.ask_long("groups", prefix=prefix)
    if broker.json:
        print(json.dumps(found))
        return
    if not found["groups"]:
        print(nothing("queue group", "there are no queue groups", {"prefix": prefix}))
        return
    entries = [
        {
            **each,
            "primary": each["primary"] or "none",
            "cursor": each["cursor"] if each["cursor"] >= 0 else None,
            "elsewhere": "; ".join(elsewhere(name, told) for name, told in sorted(each["nodes"].items())),
        }
        for each in found["groups"]
    ]
    print(table(GROUPS, entries, wide))


def elsewhere(name: str, told: dict[str, int]) -> str:
    """Return the members and waiting messages of a group on other nodes."""
    members = f"{name}: {told['members']:,}"
    return f"{members}, {told['waiting']:,} waiting" if told.get("waiting") else members


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
    given: Result,
    *,
    all_: Annotated[bool, typer.Option("--all", help="All subscriptions and messages, not the first ten.")] = False,
) -> Lines:
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
    return 0


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


@asks
def retained(
    broker: AskedBroker,
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="Filter of the topics.")] = "#",
    payload: Annotated[bool, typer.Option("--payload", help="Write the payload of this topic as it is.")] = False,
    sort: Annotated[str, typer.Option(help="Sort by topic, qos, size, publisher or published_at.")] = "",
    descending: DescendingOption = False,
    limit: LimitOption = SHOWN,
    wide: WideOption = False,
) -> None:
    """List retained messages by topic; they are the same on all nodes."""
    if payload:
        broker.write_payload(broker.ask("retained.show", topic=filter))
        return
    found = broker.listed("retained", "retained", limit, ListOrder(sort, descending), filter=filter)
    none = nothing("retained message", "there are no retained messages", {"FILTER": "" if filter == "#" else filter})
    broker.show(found, "retained", RETAINED, none, wide)


rows("overviews")(node_rows)


@rows("peers")
def peer_rows(found: Result) -> list[Result]:
    gone = {one["peer"]: gone_line(one["served_by"]) for one in found["peers"] if one.get("served_by")}
    return [_peer_row(peer, gone) for peer in found["peers"]]


def _peer_row(peer: Result, gone: dict[str, str]) -> Result:
    server = peer.get("served_by")  # a node of an older version does not say it
    name = peer["node"]
    return peer | {
        "node": f"{name} ({gone[name]})" if name in gone else name,
        "connected": f"no; to {server}, which serves its data" if server else peer["connected"],
    }


@shows("config")
def config(found: Result, given: Result) -> Lines:
    yield yaml.safe_dump(found, sort_keys=False).rstrip()
    return 0


@asks
def log(
    broker: AskedBroker,
    level: Annotated[str, typer.Option("--level", help="Minimum level: debug, info, warning or error.")] = "debug",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines.")] = False,
    client: Annotated[str, typer.Option("--client", help="Only lines about the client with this client id.")] = "",
    text: Annotated[str, typer.Option("--text", help="Only lines that contain this text, in any case.")] = "",
    since: Annotated[str, typer.Option("--since", help="ISO time, or how long ago, such as 90m.")] = "",
    until: Annotated[str, typer.Option("--until", help="ISO time, or how long ago, such as 90m.")] = "",
    everywhere: Annotated[bool, typer.Option("--all", "-a", help="Lines of all nodes.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, metavar="N", help="Number of lines to start with.")
    ] = 100,
    node: AtOption = "",
) -> None:
    """Print the last lines of a node's log; with --json one object per line. With --client, --text, --since, --until
    or --all, those of all nodes that match, by time."""
    wanted = {"client": client, "text": text, "since": since, "until": until}
    if everywhere or any(wanted.values()):
        if follow:
            raise typer.BadParameter("--follow is for one node, without a search")
        found = broker.ask("lines", level=level, limit=str(limit), node=node, **wanted)
        warn_of(found)
        for line in reversed(found["lines"][:limit]):
            print(json.dumps(line) if broker.json else f"{_log_text(line)} ({line['node']})")
        return
    after = ""
    while True:
        found = broker.ask("log", level=level, limit=str(limit), after=after, node=node)
        if found["lost"]:
            print(f"warning: {found['lost']:,} lines were discarded before they could be read", file=sys.stderr)
        for line in found["lines"]:
            print(json.dumps(line) if broker.json else _log_text(line))
        if not follow:
            return
        sys.stdout.flush()
        after, limit = str(found["next"]), 1000
        if len(found["lines"]) < limit:
            time.sleep(FOLLOW_SECONDS)


def _log_text(line: Result) -> str:
    return f"{line['time']} {line['level']:7} {line['message']}"


@asks
def metrics(
    broker: AskedBroker,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only metrics with this prefix.")] = "",
) -> None:
    """Print all metrics of this node in Prometheus format, as /metrics has them."""
    if broker.json:
        found = broker.ask("metrics")
        found["samples"] = [one for one in found["samples"] if one["name"].startswith(name)]
        print(json.dumps(found))
        return
    text = broker.ask("metrics.text")["text"].rstrip("\n")
    lines = [
        line
        for line in text.split("\n")  # values may have other line breaks
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(name)
    ]
    for line in lines:
        print(printable(line))
    if not lines:
        print(nothing("metric", "there are no metrics", {"NAME": name}), file=sys.stderr)
