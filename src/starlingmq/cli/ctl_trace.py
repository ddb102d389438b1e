"""``starlingmq ctl trace``: the way of messages through the nodes, live."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Annotated

import typer

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import ask
from starlingmq.cli.declare import CommandError


def trace(
    client: Annotated[str, typer.Option("--client", metavar="ID", help="Messages from this client, or to it.")] = "",
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="FILTER", help="Messages of these topics.")] = "",
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=1000, metavar="N", help="Messages a second of each node, at most.")
    ] = 100,
    count: Annotated[int, typer.Option("--count", "-C", min=0, metavar="N", help="End after so many lines.")] = 0,
    seconds: Annotated[
        float, typer.Option("--wait", "-W", min=0, metavar="SECONDS", help="End after this time.")
    ] = 0.0,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show what becomes of messages, at all nodes: accepted, matched, forwarded, arrived, delivered, acknowledged,
    dropped and why. A line for each step, with --json an object; until it is interrupted."""
    if not client and not topic:
        raise CommandError("what is to be traced? --client ID, or --topic FILTER, or both")
    from starlingmq.admin.traces import words

    begun = ask("trace.begin", data_dir, config, client_id=client, topic=topic, rate=str(rate))
    until = time.monotonic() + seconds if seconds else None
    missing = begun["missing"]
    _warn(missing)
    shown = 0
    try:
        while until is None or time.monotonic() < until:
            found = ask("trace.next", data_dir, config, trace=begun["trace"])
            for told in found["events"]:
                print(json.dumps(told) if json_ else words(told))
                shown += 1
                if count and shown >= count:
                    return
            sys.stdout.flush()
            if found["lost"]:
                print(f"warning: {found['lost']:,} messages or steps were left out", file=sys.stderr)
            if found["missing"] != missing:
                missing = found["missing"]
                _warn(missing)
    finally:
        with suppress(CommandError):  # the broker may have ended
            ask("trace.end", data_dir, config, trace=begun["trace"])


def _warn(missing: list[dict[str, str]]) -> None:
    for one in missing:
        print(f"warning: {one['node']} is missing: {one['why']}", file=sys.stderr)
