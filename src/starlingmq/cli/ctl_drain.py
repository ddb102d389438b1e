"""``starlingmq ctl drain`` and ``ctl rebalance``: move clients to other nodes, and distribute them evenly again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask_broker, broker_address, url_of
from starlingmq.cli.ctl_ask import AtOption, Result, ask
from starlingmq.cli.ctl_declared import Shown, shows
from starlingmq.cli.progress import progress

LOOK_SECONDS: Final = 0.5  # between two polls of another node
LEFT: Final = 1  # exit code: clients or sessions remain


def drain(
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the drain, so that the node accepts clients again.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until other nodes have copies of everything stored here.")
    ] = False,
    node: AtOption = "",
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> int:
    """Drain a node: redirect its clients to other nodes and hand over their sessions.

    With cluster.copies, it waits until other nodes have copies of everything that is stored here, at most for
    cluster.drain_copy_timeout. The node stays a member and accepts no clients until `ctl drain --cancel` or its next
    start. The exit code is 1 if sessions or clients remain because no other node accepted them, or if copies are
    missing.
    """
    if node or cancel or url_of(data_dir):
        found = _drain_at(node, cancel, no_wait, data_dir, config)
    else:
        arguments = {"no_wait": "yes"} if no_wait else {}
        directory = broker_address(data_dir, config)
        with progress(json_) as report:
            found = ask_broker(directory, "cluster.drain", arguments, report)
    print(json.dumps(found) if json_ else "\n".join(_lines(found)))
    left = found["clients_left"] or found["sessions_left"] or found["only_here"]
    return LEFT if left and not cancel else 0


def _drain_at(node: str, cancel: bool, no_wait: bool, data_dir: str | None, config: str | None) -> dict[str, Any]:
    """Drain another node, and wait until it is done."""
    found = ask("drain.cancel" if cancel else "drain.begin", data_dir, config, node=node)
    while found["draining"] and (not found["done"] or (found["waits_for_copies"] and not no_wait)):
        time.sleep(LOOK_SECONDS)
        found = ask("drain.state", data_dir, config, node=node)
    return found


@shows("cluster.rebalance")
def rebalance(found: Result, given: dict[str, Any]) -> Shown:
    before = found["before"]
    return (
        f"{name}: {before.get(name, 0):,} clients before, {count:,} now" for name, count in found["after"].items()
    ), 0


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if not found["draining"]:
        yield f"{found['node']} accepts clients again"
        return
    yield (
        f"{found['node']} is drained: {found['moved']:,} clients redirected, {found['closed']:,} closed, "
        f"{found['handed_over']:,} sessions handed over"
    )
    if found["clients_left"] or found["sessions_left"]:
        yield (
            f"{found['clients_left']:,} clients and {found['sessions_left']:,} sessions remain, because no "
            "other node accepted them"
        )
    if found["on_the_way"]:
        yield f"{found['on_the_way']:,} sessions and their messages wait for unreachable nodes"
    if found["only_here"]:
        yield (
            f"do not lose this node: no other node that is there has a whole copy of the data of "
            f"{', '.join(found['only_here'])} (see ctl cluster copies)"
        )
    yield "the node stays a member; ctl drain --cancel lets it accept clients again"
