"""``starlingmq ctl status`` and ``ctl version``: a broker and its cluster at a glance."""

from __future__ import annotations

import json
from typing import Any, Final

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import ask, warn_of
from starlingmq.cli.ctl_cluster import EXIT_CODES, health_line
from starlingmq.cli.ctl_look import NODES, gone_nodes, node_rows
from starlingmq.cli.declare import CommandError
from starlingmq.cli.tables import WideOption, duration, table
from starlingmq.cli.version import version_line

NOT_READY: Final = 1  # exit code


def status(
    wide: WideOption = False, data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False
) -> int:
    """Show the health of the broker and its cluster, and an overview of each node.

    The exit code is 0 if all nodes are reachable, 3 if a node is gone, and 1 if this node does not accept clients.
    """
    found = ask("overviews", data_dir, config)
    if json_:
        print(json.dumps(found))
    else:
        print(_first_line(_own(found)))
        print(table(NODES, node_rows(found), wide))
        warn_of(found)
    return _exit_code(_own(found))


def version(data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False) -> None:
    """Print the version of this command, and of the running nodes."""
    try:
        found = ask("overviews", data_dir, config)
        nodes = {one["node"]: one["version"] for one in found["nodes"]}
        gone = gone_nodes(found)
    except CommandError:  # the version of the command is known without a broker
        if data_dir is not None or config is not None:
            raise
        nodes, gone = {}, {}
    if json_:
        print(
            json.dumps(
                {"command": version_line(), "nodes": {name: told for name, told in nodes.items() if name not in gone}}
            )
        )
        return
    print(version_line())
    for name, told in nodes.items():
        print(f"node {name}: {gone.get(name, told)}")


def _own(found: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = next(one for one in found["nodes"] if one["node"] == found["node"])
    return own


def _first_line(own: dict[str, Any]) -> str:
    if own["cluster"] is not None:
        return health_line(own["cluster"])
    if own["ready"]["reasons"]:
        return f"UNAVAILABLE: {'; '.join(own['ready']['reasons'])}."
    return f"HEALTHY: {own['node']} accepts clients; running for {duration(own['uptime'])}."


def _exit_code(own: dict[str, Any]) -> int:
    if own["cluster"] is not None and own["cluster"]["status"] != "healthy":
        return EXIT_CODES[own["cluster"]["status"]]
    return NOT_READY if own["ready"]["reasons"] else 0
