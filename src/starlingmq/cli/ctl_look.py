"""``starlingmq ctl``: what there is in a broker and its cluster: clients, sessions, messages, nodes, the log."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Annotated, Final

import typer
import yaml

from starlingmq.admin.printable import plain
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import AtOption, LimitOption, NodeOption, SearchOption, ask, listed, show

SHOWN: Final = 1000
FOLLOW_SECONDS: Final = 1.0

ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Client id.")]


def clients(
    search: SearchOption = "",
    node: NodeOption = "",
    limit: LimitOption = SHOWN,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List connected clients on all nodes."""
    found = listed("clients", "clients", limit, data_dir, config, q=search, node=node)
    columns = {
        "client_id": "client",
        "node": "node",
        "username": "user",
        "peer": "from",
        "protocol": "protocol",
        "connected_at": "since",
        "subscriptions": "subscriptions",
        "queued": "queued",
        "inflight": "in flight",
        "dropped": "dropped",
        "slow": "slow",
    }
    numbers = ("subscriptions", "queued", "inflight", "dropped")
    show(found, json_, "clients", columns, numbers, "no client is connected")


def sessions(
    search: SearchOption = "",
    node: NodeOption = "",
    away: Annotated[bool, typer.Option("--away", help="Only disconnected sessions.")] = False,
    limit: LimitOption = SHOWN,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List sessions on all nodes, connected or not."""
    wanted = "no" if away else ""
    found = listed("sessions", "sessions", limit, data_dir, config, q=search, node=node, connected=wanted)
    columns = {
        "client_id": "client",
        "node": "node",
        "connected": "connected",
        "expires_at": "ends",
        "subscriptions": "subscriptions",
        "queued": "queued",
        "queued_bytes": "bytes",
        "inflight": "in flight",
        "awaiting_rel": "awaiting PUBREL",
        "dropped": "dropped",
        "will": "will",
    }
    numbers = ("subscriptions", "queued", "queued_bytes", "inflight", "awaiting_rel", "dropped")
    show(found, json_, "sessions", columns, numbers, "there are no sessions")


def subscriptions(
    search: SearchOption = "",
    node: NodeOption = "",
    limit: LimitOption = SHOWN,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List subscriptions on all nodes."""
    found = listed("subscriptions", "subscriptions", limit, data_dir, config, q=search, node=node)
    columns = {"client_id": "client", "node": "node", "filter": "filter", "qos": "QoS", "no_local": "no local"}
    show(found, json_, "subscriptions", columns, ("qos",), "there are no subscriptions")


def session(
    client_id: ClientArgument,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show a session from any node: client, subscriptions, inflight window and queue."""
    found = ask("session", data_dir, config, client_id=client_id)
    if json_:
        print(json.dumps(found))
        return
    told = {**found["session"], "node": found["node"], **(found["client"] or {})}
    for name, value in told.items():
        if value not in (None, ""):
            print(f"{name.replace('_', ' '):16} {plain(str(value))}")
    for each in found["subscriptions"]:
        print(f"subscribes       {plain(each['filter'])} (QoS {each['qos']})")
    for each in found["window"]:
        print(f"in flight        {each['packet_id']}: {plain(each['topic'] or '?')}, {each['stage']}")
    for each in found["queue"]:
        print(f"queued           {plain(each['topic'] or 'on disk')}, {each['size']:,} bytes, QoS {each['qos']}")


def bans(
    node: NodeOption = "", data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False
) -> None:
    """List active bans per node."""
    found = ask("bans", data_dir, config, node=node)
    columns = {"kind": "kind", "name": "name", "node": "node", "seconds": "seconds left", "reason": "reason"}
    show(found, json_, "bans", columns, ("seconds",), "there are no bans")


def retained(
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="Filter of the topics.")] = "#",
    payload: Annotated[bool, typer.Option("--payload", help="Write the payload of this topic as it is.")] = False,
    limit: LimitOption = SHOWN,
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
    found = listed("retained", "retained", limit, data_dir, config, filter=filter)
    columns = {"topic": "topic", "qos": "QoS", "size": "bytes", "published_at": "published", "publisher": "by"}
    show(found, json_, "retained", columns, ("qos", "size"), "no retained messages match")


def overview(data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False) -> None:
    """Show an overview of each node: clients, messages, and the duration of event loop turns."""
    found = ask("overviews", data_dir, config)
    if not json_:
        found["nodes"] = [
            {
                **one["holds"],
                "node": one["node"],
                "version": one["version"],
                "ready": "; ".join(one["ready"]["reasons"]) or one["ready"]["status"],
                "dropped": one["totals"]["dropped"],
                "turn": one["latency"]["turn"]["p99_ms"],
            }
            for one in found["nodes"]
        ]
    columns = {
        "node": "node",
        "version": "version",
        "ready": "ready",
        "clients": "clients",
        "sessions": "sessions",
        "subscriptions": "subscriptions",
        "retained": "retained",
        "queued": "queued",
        "inflight": "in flight",
        "groups": "groups",
        "dropped": "dropped",
        "turn": "turn p99 (ms)",
    }
    show(found, json_, "nodes", columns, [name for name in columns if name not in ("node", "version", "ready")])


def links(
    node: NodeOption = "", data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False
) -> None:
    """List the peer links between the nodes: round trip, queued messages, time since last heard."""
    found = ask("links", data_dir, config, node=node)
    columns = {
        "node": "from",
        "peer": "to",
        "connected": "connected",
        "through": "through",
        "round_trip_ms": "round trip (ms)",
        "queued": "queued",
        "queued_bytes": "bytes",
        "unacknowledged": "frames in flight",
        "heard_seconds": "last heard (s ago)",
    }
    numbers = ("round_trip_ms", "queued", "queued_bytes", "unacknowledged", "heard_seconds")
    show(found, json_, "links", columns, numbers, "this broker is not a member of a cluster, or is its only member")


def listeners(
    node: AtOption = "", data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False
) -> None:
    """List listeners and their connections."""
    found = ask("listeners", data_dir, config, node=node)
    show(found, json_, "listeners", {"address": "address", "connections": "connections"}, ("connections",))


def config(
    node: AtOption = "", data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False
) -> None:
    """Print the settings in force, without secrets."""
    found = ask("config", data_dir, config, node=node)
    print(json.dumps(found) if json_ else yaml.safe_dump(found, sort_keys=False).rstrip())


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
    """Print all metrics of this node in Prometheus format."""
    found = ask("metrics", data_dir, config)
    found["samples"] = [one for one in found["samples"] if one["name"].startswith(name)]
    if json_:
        print(json.dumps(found))
        return
    for one in found["samples"]:
        labels = ", ".join(f"{key}={plain(value)}" for key, value in one["labels"].items())
        print(f"{one['name']}{{{labels}}} {one['value']:g}" if labels else f"{one['name']} {one['value']:g}")


LOOKS: Final = (
    clients,
    sessions,
    subscriptions,
    session,
    bans,
    retained,
    overview,
    links,
    listeners,
    metrics,
    config,
    log,
)
