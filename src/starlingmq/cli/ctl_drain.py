"""``starlingmq ctl drain`` and ``ctl rebalance``: move clients to other nodes, and distribute them evenly again."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from starlingmq.cli.ctl_ask import AskedBroker, AtOption, Lines, Result, asks
from starlingmq.cli.ctl_declared import shows

LOOK_SECONDS: Final = 0.5  # between two polls of another node
LEFT: Final = 1  # exit code: clients or sessions remain


@asks
def drain(
    broker: AskedBroker,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the drain, so that the node accepts clients again.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until other nodes have copies of everything stored here.")
    ] = False,
    node: AtOption = "",
) -> int:
    """Drain a node: redirect its clients to other nodes and hand over their sessions.

    With cluster.copies, it waits until other nodes have copies of everything that is stored here, at most for
    cluster.drain_copy_timeout. The node stays a member and accepts no clients until `ctl drain --cancel` or its next
    start. The exit code is 1 if sessions or clients remain because no other node accepted them, or if copies are
    missing.
    """
    if node or cancel or broker.url:
        found = _drain_at(broker, node, cancel, no_wait)
    else:
        found = broker.ask_long("cluster.drain", no_wait="yes" if no_wait else "")
    broker.tell(found, _lines(found))
    left = found["clients_left"] or found["sessions_left"] or found["only_here"]
    return LEFT if left and not cancel else 0


def _drain_at(broker: AskedBroker, node: str, cancel: bool, no_wait: bool) -> Result:
    """Drain another node, and wait until it is done."""
    found = broker.ask("drain.cancel" if cancel else "drain.begin", node=node)
    while found["draining"] and (not found["done"] or (found["waits_for_copies"] and not no_wait)):
        time.sleep(LOOK_SECONDS)
        found = broker.ask("drain.state", node=node)
    return found


@shows("cluster.rebalance")
def rebalance(found: Result, given: Result) -> Lines:
    for name, count in found["after"].items():
        yield f"{name}: {found['before'].get(name, 0):,} clients before, {count:,} now"
    return 0


def _lines(found: Result) -> Lines:
    if not found["draining"]:
        yield f"{found['node']} accepts clients again"
        return 0
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
    return 0
