"""``starlingmq ctl trace`` and ``tail``: follow messages through the nodes, and print messages live."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer
from msgspec import convert, to_builtins

from starlingmq.admin.printable import plain
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import ask
from starlingmq.cli.declare import CommandError

RateOption = Annotated[
    int, typer.Option("--rate", min=1, max=1000, metavar="N", help="Maximum messages per second and node.")
]
CountOption = Annotated[int, typer.Option("--count", "-C", min=0, metavar="N", help="Stop after this number of lines.")]
WaitOption = Annotated[float, typer.Option("--wait", "-W", min=0, metavar="SECONDS", help="Stop after this time.")]


def trace(
    client: Annotated[str, typer.Option("--client", metavar="ID", help="Messages from or to this client.")] = "",
    topic: Annotated[
        str, typer.Option("--topic", "-t", metavar="FILTER", help="Messages whose topic matches this filter.")
    ] = "",
    rate: RateOption = 100,
    count: CountOption = 0,
    seconds: WaitOption = 0.0,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Trace messages through all nodes: accepted, matched, forwarded, arrived, delivered, acknowledged, dropped and
    why. Prints one line per step, with --json one object, until interrupted."""
    if not client and not topic:
        raise CommandError("nothing selected; give --client ID, --topic FILTER, or both")
    from starlingmq.admin.traces import TraceStep, words

    def line(told: dict[str, Any]) -> str:
        return json.dumps(told) if json_ else words(convert(told, TraceStep))

    chosen = {"client_id": client, "topic": topic, "rate": str(rate)}
    _follow(chosen, line, count, seconds, data_dir, config)


def tail(
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="Topic filter; + and # are wildcards.")],
    rate: RateOption = 100,
    count: CountOption = 0,
    seconds: WaitOption = 0.0,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Print messages as they are published on any node, up to 4 KiB of each. One line per message, with --json one
    object, until interrupted."""
    from starlingmq.admin.traces import TraceStep, message_of

    def line(told: dict[str, Any]) -> str:
        message = message_of(convert(told, TraceStep))
        if json_:
            return json.dumps(to_builtins(message))
        shown = message.payload_base64 if message.payload is None else message.payload
        return plain(f"{message.at} {message.node} {message.topic} (QoS {message.qos}): {shown}")

    _follow({"topic": filter, "rate": str(rate), "tail": "yes"}, line, count, seconds, data_dir, config)


def _follow(
    chosen: dict[str, str],
    line: Callable[[dict[str, Any]], str],
    count: int,
    seconds: float,
    data_dir: str | None,
    config: str | None,
) -> None:
    begun = ask("trace.begin", data_dir, config, **chosen)
    until = time.monotonic() + seconds if seconds else None
    missing = begun["missing"]
    _warn(missing)
    shown = 0
    try:
        while until is None or time.monotonic() < until:
            found = ask("trace.next", data_dir, config, trace=begun["trace"])
            for told in found["events"]:
                print(line(told))
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
        print(f"warning: no answer from {one['node']}: {one['why']}", file=sys.stderr)
