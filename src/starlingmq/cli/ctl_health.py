"""``starlingmq ctl health``: the readiness check for nodes without an HTTP listener, and the health of the cluster."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from starlingmq.cli.ctl_ask import AskedBroker, asks
from starlingmq.cli.ctl_status import EXIT_CODES, NOT_READY, health_line
from starlingmq.cli.declare import CommandError

HEALTH_SECONDS: Final = 10.0


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
