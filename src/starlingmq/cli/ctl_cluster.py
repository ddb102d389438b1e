"""``starlingmq ctl cluster``: how the cluster is as one node sees it, its routes, and members that go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask_broker, directory_of
from starlingmq.cli.progress import amount, progress

NOT_SERVING: Final = 1  # exit code
UNSENT: Final = {
    "unconnected": "envelopes to nodes without a connection at the time (what matters is sent again)",
    "overflow": "envelopes beyond what may wait for a connection (they are sent again)",
    "foreign": "envelopes that a node had no right to send",
}
LOST: Final = {
    "unreachable": "because their nodes could not be reached",
    "told_again": "by clients that had sent nothing since they were told so",
}
WIDTH_MIN: Final = 140  # columns where there is no terminal

ForceOption = Annotated[bool, typer.Option("--force", help="Do it though something is lost by it.")]

app = typer.Typer(help="The cluster as a node that runs sees it; its routes; members that go.", no_args_is_help=True)


@app.command()
def status(data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False) -> int:
    """Say how this node and its cluster are; the exit code is 1 while the node does not serve."""
    found = _ask("cluster.status", {}, data_dir, config, json_)
    if json_:
        print(json.dumps(found))
    else:
        print("\n".join(_status_lines(found)))
        _print(_members_table(found["members"]))
    return 0 if found["serving"] else NOT_SERVING


@app.command()
def members(data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False) -> None:
    """List the members: where they are, their state, what waits for them."""
    found = _ask("cluster.status", {}, data_dir, config, json_)
    if json_:
        print(json.dumps({"members": found["members"], "revision": found["revision"]}))
    else:
        _print(_members_table(found["members"]))


@app.command()
def routes(
    prefix: Annotated[str, typer.Argument(help="Only filters that begin with this.")] = "",
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Only those of this node.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Filters to list for each node.")] = 100,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List what each node's clients are subscribed to, as this node has it."""
    arguments = {"prefix": prefix, "name": node, "limit": str(limit)}
    found = _ask("cluster.routes", arguments, data_dir, config, json_)
    if json_:
        print(json.dumps(found))
        return
    table = Table("node", "filter", "what for")
    for each in found["nodes"]:
        for route in each["listed"]:
            table.add_row(each["name"], route["filter"], _what_for(route))
    _print(table)
    for each in found["nodes"]:
        print(f"{each['name']}: {each['routes']:,} routes at version {each['epoch']}:{each['version']:,}")


@app.command()
def leave(
    force: ForceOption = False, data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False
) -> None:
    """Have this node go for good: it hands over its clients' sessions and what it owes other nodes, leaves the
    membership, and ends."""
    found = _ask("cluster.leave", {"force": "yes"} if force else {}, data_dir, config, json_)
    print(json.dumps(found) if json_ else f"{found['left']} has left, and ends")


@app.command()
def forget(
    name: Annotated[str, typer.Argument(help="The node that will not come back.")],
    force: ForceOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Take a node out that is gone for good, with everything that waits for it."""
    arguments = {"name": name} | ({"force": "yes"} if force else {})
    found = _ask("cluster.forget", arguments, data_dir, config, json_)
    print(json.dumps(found) if json_ else f"{found['forgot']} is no member any more")


def _ask(
    action: str, arguments: dict[str, str], data_dir: str | None, config: str | None, quiet: bool
) -> dict[str, Any]:
    directory = directory_of(data_dir, config)
    with progress(quiet) as report:
        return ask_broker(directory, action, arguments, report)


def _status_lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"cluster    {found['cluster']}, {len(found['members'])} members, membership {found['revision']}"
    yield f"this node  {found['node']}: " + _serves(found)
    etcd = found["etcd"]
    restarts = f", started again {etcd['restarts']:,} times" if etcd["restarts"] else ""
    yield f"etcd       {'its own' if etcd['own'] else 'external'}, {', '.join(etcd['endpoints'])}{restarts}"
    messages, frames, traffic = found["messages"], found["frames"], found["traffic"]
    yield (
        f"messages   {messages['forwarded']:,} to other nodes in {frames['data']:,} frames, "
        f"{messages['received']:,} from them, {messages['doubled']:,} came twice and were dropped"
    )
    sessions = found["sessions"]
    lost = [f"{count:,} {LOST.get(reason, reason)}" for reason, count in sorted(sessions["lost"].items())]
    yield f"sessions   {sessions['came']:,} came from other nodes; not found: {', '.join(lost) or 'none'}"
    yield f"traffic    {amount(traffic['bytes_out'], 'bytes')} out, {amount(traffic['bytes_in'], 'bytes')} in"
    handshakes = found["handshakes"]
    if handshakes["questions"]:
        yield (
            f"handshakes {handshakes['questions']:,} that clients began elsewhere: {handshakes['calls']:,} calls in "
            f"{handshakes['windows']:,} windows, {handshakes['hint_hits']:,} by the hint, "
            f"{handshakes['clients/unknown']:,} unknown"
        )
    if frames["passed_on"]:
        yield f"relay      {frames['passed_on']:,} envelopes passed on between nodes that had no connection at the time"
    unsent = [f"{count:,} {UNSENT.get(reason, reason)}" for reason, count in sorted(traffic["dropped"].items())]
    if unsent:
        yield f"not sent   {', '.join(unsent)}"


def _serves(found: dict[str, Any]) -> str:
    if not found["serving"]:
        return f"does not serve: {found['waits_for']}"
    draining = any(member["this"] and member["draining"] for member in found["members"])
    return "is a member and serves no clients (ctl drain)" if draining else "serves"


def _members_table(members: list[dict[str, Any]]) -> Table:
    table = Table(
        "name", "number", "state", "connection", "address", "version", "clients", "routes", "waiting", "unacknowledged"
    )
    for column in (1, 6, 7, 8, 9):
        table.columns[column].justify = "right"
    for member in members:
        waiting = f"{member['queued']:,} ({amount(member['queued_bytes'], 'bytes')})" if member["queued"] else "0"
        table.add_row(
            member["name"],
            str(member["number"]),
            _state(member),
            _connection(member),
            member["address"],
            member["version"],
            f"{member['clients']:,}",
            f"{member['routes']:,}",
            "" if member["this"] else waiting,
            "" if member["this"] else f"{member['unacknowledged']:,}",
        )
    return table


def _state(member: dict[str, Any]) -> str:
    state = str(member["state"])
    if member["draining"]:
        return f"{state}, draining"
    return state if member["online"] or state != "registered" else "registered, offline"


def _connection(member: dict[str, Any]) -> str:
    if member["this"]:
        return "this node"
    if not member["connected"]:
        return "none"
    way = f"through {member['through']}" if member["through"] else "direct"
    return f"{way}, its routes are on the way" if member["behind"] else way


def _what_for(route: dict[str, Any]) -> str:
    if "members" in route:
        return f"{route['members']:,} members of the group"
    return "persistent sessions" if route["durable"] else "connected clients"


def _print(table: Table) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, WIDTH_MIN))
    console.print(table)
