"""``starlingmq ctl drain`` and ``ctl rebalance``: have clients go to other nodes, and have them spread evenly again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask_broker, directory_of
from starlingmq.cli.ctl_ask import AtOption, ask
from starlingmq.cli.progress import progress

LOOK_SECONDS: Final = 0.5  # between two looks at another node
LEFT: Final = 1  # exit code: clients or sessions are still there


def drain(
    cancel: Annotated[bool, typer.Option("--cancel", help="Serve clients again.")] = False,
    node: AtOption = "",
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> int:
    """Have a node of a cluster serve no clients: they are sent to other nodes, their sessions are handed over.

    The node goes on as a member, until `ctl drain --cancel` or its next start. The exit code is 1 if something had to
    stay, because no other node took it.
    """
    if node:
        found = _drain_at(node, cancel, data_dir, config)
    else:
        directory = directory_of(data_dir, config)
        with progress(json_) as report:
            found = ask_broker(directory, "cluster.drain", {"cancel": "yes"} if cancel else {}, report)
    print(json.dumps(found) if json_ else "\n".join(_lines(found)))
    return LEFT if found["clients_left"] + found["sessions_left"] and not cancel else 0


def _drain_at(node: str, cancel: bool, data_dir: str | None, config: str | None) -> dict[str, Any]:
    """Another node, until it is done."""
    found = ask("drain.cancel" if cancel else "drain.begin", data_dir, config, node=node)
    while found["draining"] and not found["done"]:
        time.sleep(LOOK_SECONDS)
        found = ask("drain.state", data_dir, config, node=node)
    return found


def rebalance(
    rate: Annotated[
        int, typer.Option(min=0, metavar="N", help="Clients a second from each node; 0: cluster.drain_rate.")
    ] = 0,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Spread clients evenly over the nodes: those with too many send MQTT 5 clients to those with too few."""
    directory = directory_of(data_dir, config)
    with progress(json_) as report:
        found = ask_broker(directory, "cluster.rebalance", {"rate": str(rate)}, report)
    if json_:
        print(json.dumps(found))
        return
    for name, count in found["after"].items():
        print(f"{name}: {found['before'].get(name, 0):,} clients before, {count:,} now")


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if not found["draining"]:
        yield f"{found['node']} serves clients"
        return
    yield (
        f"{found['node']} serves no clients: {found['moved']:,} were told where to go, {found['closed']:,} closed, "
        f"and {found['handed_over']:,} sessions handed over"
    )
    if found["clients_left"] or found["sessions_left"]:
        yield f"{found['clients_left']:,} clients and {found['sessions_left']:,} sessions are left: no node took them"
    if found["on_the_way"]:
        yield f"{found['on_the_way']:,} sessions wait for nodes that are away, with what came for them"
    yield "it goes on as a member: ctl drain --cancel has it serve clients again"
