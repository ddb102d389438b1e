"""``starlingmq ctl cluster restart``: a node, or all of them one after the other, each once all is well again.

The law: a node is told to restart only while every member is there and the loss of one would lose nothing, or, with
``--force``, while nothing is worse than when the command began; the next one only after the last serves again. Nothing
is given up because it takes long: what is waited for is shown, and the command can be ended at any moment, which leaves
the nodes as they are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import typer

from starlingmq.admin.cluster_health import ETCD_AWAY
from starlingmq.admin.printable import plain
from starlingmq.cli.command_errors import explain
from starlingmq.cli.ctl_ask import AskedBroker, AtOption, Result, asks
from starlingmq.cli.declare import CommandError
from starlingmq.cli.progress import Report, progress
from starlingmq.cli.remote import Unreachable

LOOK_SECONDS: Final = 0.5
LOOKS_MAX: Final = 4
LOST_SECONDS: Final = 60.0

Ask = Callable[..., Result]


@asks
def restart(
    broker: AskedBroker,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="All nodes, one after the other; the one that is asked is the last.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --rolling: begin although a node is missing.")] = False,
    node: AtOption = "",
) -> None:
    """Restart a node, or all nodes one after the other, and wait until each serves again.

    A node hands its sessions over, stops, and runs its command again in the same process, with the version that is
    installed by then. With --rolling, the next node follows once all members are there and other nodes have whole
    copies of everything (cluster.copies).
    """
    if rolling and node:
        raise CommandError("give --rolling for all nodes, or --node for one")

    done = []
    try:
        with progress(broker.json) as report:
            for one in _rolling(broker.ask, force, report) if rolling else [_restarted(broker.ask, node, report)]:
                done.append(one)
                if not broker.json:
                    name, version = plain(one["node"]), plain(one["version"])
                    print(f"{name} has restarted in {one['seconds']:.1f} s, version {version}", flush=True)
    finally:
        if broker.json:
            print(json.dumps({"restarted": done}))


def _rolling(asked: Ask, force: bool, report: Report) -> Iterator[Result]:
    """Raises CommandError before the first restart if the cluster is not well. With ``force``, nodes that are missing
    are left out, and nothing else has to be better than it was."""
    status = asked("cluster.status")
    before = _troubles(status)
    if before and not force:
        raise CommandError(f"no node was restarted: {status['health']['summary']}; mend this first, or give --force")
    away = {one["name"] for one in status["health"]["gone"]} if before else set()
    names = [member["name"] for member in status["members"] if member["name"] not in (status["node"], *away)]
    for name in (*names, status["node"]):
        yield _restarted(asked, name, report)
        _wait(lambda: ", ".join(sorted(_troubles(asked("cluster.status")) - before)), name, report)


def _restarted(asked: Ask, name: str, report: Report) -> Result:
    """Once it serves again."""
    began = time.monotonic()
    try:
        asked("restart.begin", node=name)
    except (CommandError, OSError) as error:  # refused, or the node has stopped before it answered
        if type(error) is Unreachable or not _restarts(asked, name, began):
            raise
    _wait(lambda: _unready(asked("overview", node=name), began), name, report)
    found = asked("overview", node=name)
    return {"node": found["node"], "seconds": time.monotonic() - began, "version": found["version"]}


def _restarts(asked: Ask, name: str, began: float) -> bool:
    """Whether the node stops, or has begun again. While it does neither, a few looks suffice: it has refused."""
    looks, until = 0, time.monotonic() + LOST_SECONDS
    while looks < LOOKS_MAX and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        try:
            found = asked("overview", node=name)
        except (CommandError, OSError):
            continue  # the node that is asked may be the one that restarts
        if found["ready"]["reasons"] or found["uptime"] < time.monotonic() - began:
            return True
        looks += 1
    return False


def _wait(why: Callable[[], str], name: str, report: Report) -> None:
    """Until there is no reason left. Each reason has its line, so it must not change by itself."""
    while True:
        try:
            reason = why()
        except (CommandError, OSError) as error:  # the node that is asked may be the one that restarts
            reason = f"no answer yet: {explain(error)[0]}"
        if not reason:
            return
        report(f"{plain(name)}: {plain(reason)}", 0, 0, "steps")
        time.sleep(LOOK_SECONDS)


def _unready(overview: Result, began: float) -> str:
    if overview["uptime"] > time.monotonic() - began:
        return "it stops"
    reasons: list[str] = overview["ready"]["reasons"]
    return ", ".join(reasons)


def _troubles(status: Result) -> set[str]:
    """Why no further node may be stopped. A single broker has no health of a cluster."""
    health = status.get("health")
    if health is None or health["status"] == "healthy":
        return set()
    found = {f"{one['name']} is not there" for one in health["gone"]}
    found |= {f"no other node has a whole copy of the data of {name}" for name in health["at_risk"]}
    if ETCD_AWAY in health["summary"]:
        found.add(ETCD_AWAY)
    if health["status"] == "unavailable" or not found:
        found.add(f"{status['node']} accepts no clients")
    return found
