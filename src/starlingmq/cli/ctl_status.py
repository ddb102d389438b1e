"""``starlingmq ctl status``, ``version`` and ``health``: a broker and its cluster at a glance; and the readiness
check for nodes without an HTTP listener.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from starlingmq.admin.printable import NODE_COLUMNS
from starlingmq.admin.table_columns import columns_of
from starlingmq.cli.ctl_ask import AskedBroker, Lines, Result, asks, warn_of
from starlingmq.cli.declare import CommandError
from starlingmq.cli.tables import WideOption, duration, table
from starlingmq.cli.version import version_line

NOT_READY: Final = 1  # exit code
DEGRADED: Final = 3  # exit code
CRITICAL: Final = 4  # exit code: all is well but for a critical alarm ...
WARNED: Final = 5  # ... or for other alarms
EXIT_CODES: Final = {"healthy": 0, "degraded": DEGRADED, "unavailable": NOT_READY}
HEALTH_SECONDS: Final = 10.0
NODES: Final = columns_of(NODE_COLUMNS)


@asks
def status(broker: AskedBroker, wide: WideOption = False) -> int:
    """Show the health of the broker and its cluster, its alarms, and an overview of each node.

    The exit code is 1 if this node does not accept clients, 3 if a node is gone, 4 if an alarm is critical, 5 if
    another alarm is active, and 0 otherwise.
    """
    found = broker.ask("overviews")
    active = broker.ask("alarms")["alarms"]
    critical = sum(alarm["severity"] == "critical" for alarm in active)
    if broker.json:
        print(json.dumps(found | {"alarms": {"critical": critical, "other": len(active) - critical}}))
    else:
        print(_first_line(_own(found), len(active), critical))
        print(table(NODES, node_rows(found), wide))
        for line in _dropped(broker.ask("droppers", limit="1000")["droppers"]):
            print(line)
        warn_of(found)
    return _exit_code(_own(found)) or (CRITICAL if critical else WARNED if active else 0)


@asks
def version(broker: AskedBroker) -> None:
    """Print the version of this command, and of the running nodes."""
    try:
        found = broker.ask("overviews")
        nodes = {one["node"]: one["version"] for one in found["nodes"]}
        gone = gone_nodes(found)
    except CommandError:  # the version of the command is known without a broker
        if broker.data_dir is not None or broker.config is not None:
            raise
        nodes, gone = {}, {}
    there = {name: told for name, told in nodes.items() if name not in gone}
    broker.tell({"command": version_line(), "nodes": there}, _versions(nodes | gone))


def _versions(nodes: dict[str, str]) -> Lines:
    yield version_line()
    for name, told in nodes.items():
        yield f"node {name}: {told}"
    return 0


@asks
def health(
    broker: AskedBroker,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Check the whole cluster; the exit code is 3 if a node is gone.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Seconds for the broker to answer.")
    ] = HEALTH_SECONDS,
) -> int:
    """Check whether this node accepts clients, and print why not.

    The exit code is 1 if it does not, and 2 if the broker does not run, or does not answer in time.
    """
    found = broker.ask_within(timeout, "health", {})
    if not cluster:
        broker.done(found, "; ".join(found["reasons"]) or "ok")
        return NOT_READY if found["reasons"] else 0
    if found["cluster"] == "none":
        raise CommandError("this broker is not a member of a cluster; leave --cluster out")
    whole = broker.ask_within(timeout, "cluster.status", {})["health"]
    broker.done(whole, health_line(whole))
    return EXIT_CODES[whole["status"]]


def _own(found: Result) -> Result:
    own: Result = next(one for one in found["nodes"] if one["node"] == found["node"])
    return own


def _first_line(own: Result, alarms: int, critical: int) -> str:
    """The state, the number of alarms and how to see them, and the reason of the state."""
    if own["cluster"] is not None:
        line = health_line(own["cluster"])
    elif own["ready"]["reasons"]:
        line = f"UNAVAILABLE: {'; '.join(own['ready']['reasons'])}."
    else:
        line = f"HEALTHY: {own['node']} accepts clients; running for {duration(own['uptime'])}."
    if not alarms:
        return line
    state, _, reason = line.partition(": ")
    if critical and state == "HEALTHY":
        state = "CRITICAL"
    worst = f", {critical:,} critical" if critical else ""
    return f"{state}, {alarms:,} alarm{'s' if alarms > 1 else ''}{worst} (starlingmq ctl alarms): {reason}"


def _dropped(droppers: list[Result]) -> Iterator[str]:
    """The messages that were dropped within the last hour, by reason; also after their alarm has ended."""
    reasons = Counter[str]()
    for one in droppers:
        reasons.update(one["reasons"])
    if reasons:
        told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        yield f"Dropped in the last hour: {told} (starlingmq ctl droppers)."


def _exit_code(own: Result) -> int:
    if own["cluster"] is not None and own["cluster"]["status"] != "healthy":
        return EXIT_CODES[own["cluster"]["status"]]
    return NOT_READY if own["ready"]["reasons"] else 0


def health_line(health: Result) -> str:
    """The state, the reason, and the next step for the operator."""
    return f"{health['status'].upper()}: {health['summary']}." + (f" Next: {health['next']}" if health["next"] else "")


def node_rows(found: Result) -> list[Result]:
    """The entries of the table ``NODE_COLUMNS``."""
    gone = gone_nodes(found)
    return [
        {
            **one["holds"],
            "node": one["node"],
            "version": one["version"],
            "ready": gone[one["node"]]
            if one["node"] in gone
            else "; ".join(one["ready"]["reasons"]) or one["ready"]["status"],
            "dropped": one["totals"]["dropped"],
            "turn": one["latency"]["turn"]["p99_ms"],
        }
        for one in found["nodes"]
    ]


def gone_nodes(found: Result) -> dict[str, str]:
    """The nodes that are gone, as the node says that was asked for ``overviews``, with what became of their data:
    another node may answer for them."""
    own: Result = next((one for one in found["nodes"] if one["node"] == found["node"]), {})
    gone = (own.get("cluster") or {}).get("gone", ())
    return {one["name"]: gone_line(one.get("served_by")) for one in gone}


def gone_line(server: str | None) -> str:
    return f"gone; {server} serves its data" if server else "gone"
