"""``starlingmq ctl trace`` and ``tail``: follow messages through the nodes, and print messages live."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import Annotated, NamedTuple

import typer
from msgspec import convert, to_builtins

from starlingmq.admin.printable import plain
from starlingmq.cli.ctl_ask import AskedBroker, Result, asks, warn_of
from starlingmq.cli.declare import CommandError
from starlingmq.cli.remote import follow_url

RateOption = Annotated[
    int, typer.Option("--rate", min=1, max=1000, metavar="N", help="Maximum messages per second and node.")
]
CountOption = Annotated[int, typer.Option("--count", "-C", min=0, metavar="N", help="Stop after this number of lines.")]
WaitOption = Annotated[float, typer.Option("--wait", "-W", min=0, metavar="SECONDS", help="Stop after this time.")]


class Poll(NamedTuple):
    """``events`` are steps or messages, ``lost`` those that were left out. ``missing``: nodes; None: as before."""

    events: Sequence[Result] = ()
    lost: int = 0
    missing: list[dict[str, str]] | None = None


Polls = Generator[Poll, None, None]


@asks
def trace(
    broker: AskedBroker,
    client: Annotated[str, typer.Option("--client", metavar="ID", help="Messages from or to this client.")] = "",
    topic: Annotated[
        str, typer.Option("--topic", "-t", metavar="FILTER", help="Messages whose topic matches this filter.")
    ] = "",
    rate: RateOption = 100,
    count: CountOption = 0,
    seconds: WaitOption = 0.0,
) -> None:
    """Trace messages through all nodes: accepted, matched, forwarded, arrived, delivered, acknowledged, dropped and
    why. Prints one line per step, with --json one object, until interrupted."""
    if not client and not topic:
        raise CommandError("nothing selected; give --client ID, --topic FILTER, or both")
    from starlingmq.admin.traces import TraceStep, words

    def line(told: Result) -> str:
        return json.dumps(told) if broker.json else words(convert(told, TraceStep))

    chosen = {"client_id": client, "topic": topic, "rate": str(rate)}
    url = broker.url
    found = _steps(broker, chosen) if url is None else _events(url, "/trace", chosen)
    _print(found, line, count, seconds)


@asks
def tail(
    broker: AskedBroker,
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="Topic filter; + and # are wildcards.")],
    rate: RateOption = 100,
    count: CountOption = 0,
    seconds: WaitOption = 0.0,
) -> None:
    """Print messages as they are published on any node, up to 4 KiB of each. One line per message, with --json one
    object, until interrupted."""
    from starlingmq.admin.traces import TailMessage, TraceStep, message_of

    url = broker.url

    def line(told: Result) -> str:
        message = message_of(convert(told, TraceStep)) if url is None else convert(told, TailMessage)
        if broker.json:
            return json.dumps(to_builtins(message))
        shown = message.payload_base64 if message.payload is None else message.payload
        return plain(f"{message.at} {message.node} {message.topic} (QoS {message.qos}): {shown}")

    if url is None:
        found = _steps(broker, {"topic": filter, "rate": str(rate), "tail": "yes"})
    else:
        found = _events(url, "/tail", {"filter": filter, "rate": str(rate)})
    _print(found, line, count, seconds)


def _print(found: Polls, line: Callable[[Result], str], count: int, seconds: float) -> None:
    until = time.monotonic() + seconds if seconds else None
    missing: list[dict[str, str]] = []
    shown = 0
    with closing(found):
        for poll in found:
            for told in poll.events:
                print(line(told))
                shown += 1
                if count and shown >= count:
                    return
            sys.stdout.flush()
            if poll.lost:
                print(f"warning: {poll.lost:,} messages or steps were left out", file=sys.stderr)
            if poll.missing is not None and poll.missing != missing:
                missing = poll.missing
                warn_of({"missing": missing})
            if until is not None and time.monotonic() >= until:
                return


def _events(url: str, path: str, chosen: dict[str, str]) -> Polls:
    """The polls of a broker that sends events over HTTP."""
    for name, data in follow_url(url, path, chosen):
        if name in ("message", "step"):
            yield Poll([data])
        else:
            yield Poll(lost=data["count"] if name == "dropped" else 0, missing=data if name == "missing" else None)


def _steps(broker: AskedBroker, chosen: dict[str, str]) -> Polls:
    """The polls of a broker that is asked on its control socket."""
    begun = broker.ask("trace.begin", **chosen)
    try:
        yield Poll(missing=begun["missing"])
        while True:
            found = broker.ask("trace.next", trace=begun["trace"])
            yield Poll(found["events"], found["lost"], found["missing"])
    finally:
        with suppress(CommandError):  # the broker may have ended
            broker.ask("trace.end", trace=begun["trace"])
