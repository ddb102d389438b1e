"""``starlingmq ctl cluster``: the state of the cluster as one node sees it, its routes, and removing members."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from starlingmq.admin.table_columns import columns_of
from starlingmq.cli.ctl_ask import AskedBroker, Lines, Result, asks
from starlingmq.cli.ctl_declared import shows
from starlingmq.cli.ctl_restart import restart
from starlingmq.cli.ctl_status import DEGRADED, EXIT_CODES, health_line
from starlingmq.cli.declare import CommandError
from starlingmq.cli.progress import amount, progress
from starlingmq.cli.remote import Unreachable, ask_url
from starlingmq.cli.tables import WideOption, cell, table

POLL_SECONDS: Final = 0.5
BEGINS_SECONDS: Final = 10.0  # until the node has begun to leave
LEAVING_SECONDS: Final = 300.0  # for an answer of a node that is busy with leaving
UNSENT: Final = {
    "unconnected": "frames for nodes that were not connected (required ones are sent again)",
    "overflow": "frames above the limit of the send buffer (they are sent again)",
    "foreign": "frames that were not permitted for their sender",
}
LOST: Final = {
    "unreachable": "because their nodes could not be reached",
    "removed": "because their nodes were removed from the cluster",
    "told_again": "by clients that had sent nothing since they were told so",
}
MEMBERS: Final = columns_of(
    "name, number/number*, state, connection, address, version*, clients/number, routes/number*, queued: "
    "waiting/number, queued_bytes: bytes/bytes*, unacknowledged/number*"
)
COPIES: Final = columns_of("node: data of, server: served by, in_step, followers")
SHARES: Final = columns_of("node, leads/number, deputizes: deputy of/number, behind/number")
ROUTES: Final = columns_of("filter, node, subscribers")

ForceOption = Annotated[bool, typer.Option("--force", help="Proceed even if data is lost.")]

app = typer.Typer(
    help="Show members, routes and health of the cluster, as one node knows them; remove nodes.", no_args_is_help=True
)

app.command()(restart)


@app.command()
@asks
def status(broker: AskedBroker, wide: WideOption = False) -> int:
    """Show the health of this node and its cluster, with a table of the members.

    The exit code is 0 if all nodes are reachable, 3 if a node is gone, and 1 while this node does not serve.
    """
    found = _status(broker)
    return broker.tell(found, _status_lines(found, wide))


@app.command()
@asks
def members(broker: AskedBroker, wide: WideOption = False) -> None:
    """List the members: addresses, state, queued messages."""
    found = _status(broker)
    broker.done({name: found[name] for name in ("members", "revision")}, _members_table(found["members"], wide))


@app.command()
@asks
def leave(broker: AskedBroker, force: ForceOption = False) -> None:
    """Remove this node permanently: it hands over its sessions and waiting messages to other nodes, leaves the
    cluster, and stops."""
    if broker.url is not None:
        told = leave_url(broker.url, force, broker.json)
        broker.done(told, f"{told['left']} has handed over everything and no longer answers")
        return
    found = broker.ask_long("cluster.leave", force="yes" if force else "")
    broker.done(found, f"{found['left']} has left the cluster and stops")


def leave_url(url: str, force: bool, quiet: bool) -> dict[str, Any]:
    """Tell the node to leave, and wait until it no longer answers. Raises CommandError if it stays."""
    node = ask_url(url, "drain.state", {})["node"]
    ask_url(url, "leave.begin", {"force": "yes" if force else ""})
    until = time.monotonic() + BEGINS_SECONDS
    began = False
    with progress(quiet) as report:
        while True:
            try:
                state = ask_url(url, "drain.state", {}, LEAVING_SECONDS)
                began = began or state["draining"]
                if not state["draining"] and (began or time.monotonic() > until):
                    raise CommandError(f"{node} has not left its cluster: {_why(url)}")
            except Unreachable:
                return {"left": node}
            moved = state["moved"] + state["closed"] + state["handed_over"]
            left = state["clients_left"] + state["sessions_left"] + state["on_the_way"]
            report("handing over", moved, moved + left, "clients and sessions")
            time.sleep(POLL_SECONDS)


def _why(url: str) -> str:
    """The last word of the log on it."""
    lines = [line["message"] for line in ask_url(url, "log", {"level": "error", "limit": "100"})["lines"]]
    found = [line.partition("could not leave its cluster: ")[2] for line in lines]
    return next((line for line in reversed(found) if line), "its log says why")


@shows("cluster.routes")
def routes(found: Result, given: Result) -> Lines:
    entries = [
        {"filter": route["filter"], "node": each["name"], "subscribers": _what_for(route)}
        for each in found["nodes"]
        for route in each["listed"]
    ]
    if entries:
        yield table(ROUTES, entries)
    for each in found["nodes"]:
        yield f"{each['name']}: {each['routes']:,} routes at version {each['epoch']}:{each['version']:,}"
    return 0


@shows("cluster.copies")
def copies(found: Result, given: Result) -> Lines:
    """The exit code is 0 if the loss of any one node would lose nothing, and 3 otherwise."""
    nodes = found["nodes"]
    if not nodes:
        yield "no copies: cluster.copies is 1, so what a node stores is lost with its disk"
        return DEGRADED
    yield table(COPIES, [_copy_row(each) for each in nodes])
    yield from _copy_lines(nodes)
    return DEGRADED if _at_risk(nodes) else 0


@shows("cluster.shares")
def shares(found: Result, given: Result) -> Lines:
    """The exit code is 0 if all shares that this node leads grant claims and all nodes were asked, and 3 otherwise."""
    if found["nodes"]:
        yield table(SHARES, found["nodes"])
    yield (
        f"table {found['version']:,}; in the shares that this node leads: {found['client_ids']:,} client ids, "
        f"{found['granted']:,} claims granted, {found['waiting']:,} requests wait"
    )
    if not found["listed"]:
        yield "this node takes no part yet: the leader of the cluster adds it to the table, in etcd"
    if found["asking"] or found["copying"]:
        yield f"{found['asking']:,} shares are being collected from the nodes, {found['copying']:,} copied to deputies"
    for node in found["nodes"]:
        if node["unknown"]:
            yield f"{node['node']} could not be asked what it has: until then, session present may be 0 without need"
    if found["lookup"]:
        one = found["lookup"]
        leader, deputy = one["leader"] or "no node", one["deputy"] or "none"
        yield f"{one['client']}: share {one['share']}, led by {leader}, deputy {deputy}"
    unknown = any(node["unknown"] for node in found["nodes"])
    return 0 if found["listed"] and not (found["asking"] or found["copying"] or unknown) else DEGRADED


def _copy_row(each: Result) -> Result:
    followers = [f"{follower['node']} ({_how_far(follower)})" for follower in each["followers"]]
    return {
        "node": each["node"],
        "server": each["server"],
        "in_step": ", ".join(each["in_step"]),
        "followers": ", ".join(followers) or "none",
    }


def _how_far(follower: Result) -> str:
    if follower["state"] == "catching up":
        return f"catching up, {amount(follower['sent'], 'bytes')} of about {amount(follower['total'], 'bytes')} sent"
    if not follower["behind_bytes"]:
        return f"{follower['state']}: {follower['why']}" if follower["why"] else str(follower["state"])
    size, seconds = amount(follower["behind_bytes"], "bytes"), follower["behind_seconds"]
    return f"{follower['state']}, {size} and {seconds:.1f} s behind"


def _at_risk(nodes: list[Result]) -> bool:
    """Whether data is not served, or would be lost with a node."""
    return any(each["at_risk"] or each["unserved"] for each in nodes)


def _copy_lines(nodes: list[Result]) -> Iterator[str]:
    for each in nodes:
        if each["unserved"]:
            yield f"the data of {each['node']} is not served: {each['unserved']}"
        if each["refused"]:
            yield f"{each['node']} accepts nothing: {each['refused']}"
        if each["at_risk"] and not each["unserved"]:
            yield f"at risk if {each['server']} is lost now: {each['at_risk']}"
    if not _at_risk(nodes):
        yield "the loss of any one node would lose nothing that was acknowledged"


def _status(broker: AskedBroker) -> Result:
    found = broker.ask("cluster.status")
    if found["cluster"] is None:  # over HTTP a single broker answers, too
        raise CommandError("this broker is not a member of a cluster; set cluster.enabled to join one")
    return found


def _status_lines(found: Result, wide: bool) -> Lines:
    yield health_line(found["health"])
    yield f"cluster    {found['cluster']}, {len(found['members'])} members, membership {found['revision']}"
    yield f"this node  {found['node']}: " + _serves(found)
    etcd = found["etcd"]
    restarts = f", restarted {etcd['restarts']:,} times" if etcd["restarts"] else ""
    yield f"etcd       {'its own' if etcd['own'] else 'external'}, {', '.join(etcd['endpoints'])}{restarts}"
    messages, frames, traffic = found["messages"], found["frames"], found["traffic"]
    yield (
        f"messages   {messages['forwarded']:,} forwarded to other nodes in {frames['data']:,} frames, "
        f"{messages['received']:,} received from them, {messages['doubled']:,} duplicates discarded"
    )
    sessions = found["sessions"]
    lost = [f"{count:,} {LOST.get(reason, reason)}" for reason, count in sorted(sessions["lost"].items())]
    yield f"sessions   {sessions['came']:,} came from other nodes; not found: {', '.join(lost) or 'none'}"
    yield f"traffic    {amount(traffic['bytes_out'], 'bytes')} out, {amount(traffic['bytes_in'], 'bytes')} in"
    handshakes = found["handshakes"]
    if handshakes["questions"]:
        yield (
            f"handshakes {handshakes['questions']:,} looked up on other nodes: {handshakes['calls']:,} "
            f"requests in {handshakes['windows']:,} batches, {handshakes['hint_hits']:,} found by the "
            f"hint, {handshakes['clients/unknown']:,} unknown"
        )
    if frames["passed_on"]:
        yield f"relay      {frames['passed_on']:,} frames relayed between nodes without a direct connection"
    unsent = [f"{count:,} {UNSENT.get(reason, reason)}" for reason, count in sorted(traffic["dropped"].items())]
    if unsent:
        yield f"not sent   {', '.join(unsent)}"
    yield _members_table(found["members"], wide)
    return EXIT_CODES[found["health"]["status"]]


def _serves(found: Result) -> str:
    if not found["serving"]:
        return f"does not serve: {found['waits_for']}"
    draining = any(member["this"] and member["draining"] for member in found["members"])
    return "does not serve clients, because it is drained (ctl drain --cancel ends this)" if draining else "serves"


def _members_table(members: list[Result], wide: bool) -> str:
    entries = [
        {
            **member,
            "state": _state(member),
            "connection": _connection(member),
            "queued": None if member["this"] else member["queued"],
            "queued_bytes": None if member["this"] else member["queued_bytes"],
            "unacknowledged": None if member["this"] else member["unacknowledged"],
        }
        for member in members
    ]
    return table(MEMBERS, entries, wide)


def _state(member: Result) -> str:
    state = "gone" if member.get("gone") else str(member["state"])  # a node of an older version does not say it
    if member["draining"]:
        return f"{state}, draining"
    return state if member["online"] or state != "registered" else "registered, offline"


def _connection(member: Result) -> str:
    if member["this"]:
        return "this node"
    if member.get("gone") or not member["connected"]:
        since, server = member["gone_since"], member.get("served_by")
        lost = f"gone for {cell(since, 'age')}" if since else "none"
        return f"{lost}, {server} serves its data" if server else lost
    way = f"relayed by {member['through']}" if member["through"] else "direct"
    return f"{way}, receiving its routes" if member["behind"] else way


def _what_for(route: Result) -> str:
    if "members" in route:
        return f"{route['members']:,} members of the group"
    wanted = "persistent sessions" if route["durable"] else "connected clients"
    return f"{wanted}, a summary of many filters" if route.get("summary") else wanted
