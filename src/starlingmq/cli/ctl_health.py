"""``starlingmq ctl health``: the readiness check for nodes without an HTTP listener, and the health of the cluster."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import ask_within
from starlingmq.cli.ctl_status import EXIT_CODES, NOT_READY, health_line
from starlingmq.cli.declare import CommandError

HEALTH_SECONDS: Final = 10.0


def health(
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Check the whole cluster; the exit code is 3 if a node is gone.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Seconds for the broker to answer.")
    ] = HEALTH_SECONDS,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> int:
    """Check whether this node accepts clients, and print why not.

    The exit code is 1 if it does not, and 2 if the broker does not run, or does not answer in time.
    """
    found = ask_within(timeout, "health", data_dir, config, {})
    if not cluster:
        print(json.dumps(found) if json_ else "; ".join(found["reasons"]) or "ok")
        return NOT_READY if found["reasons"] else 0
    if found["cluster"] == "none":
        raise CommandError("this broker is not a member of a cluster; leave --cluster out")
    whole = ask_within(timeout, "cluster.status", data_dir, config, {})["health"]
    print(json.dumps(whole) if json_ else health_line(whole))
    return EXIT_CODES[whole["status"]]
