"""``starlingmq ctl``: actions on clients, messages and nodes, on any node of the cluster."""

from __future__ import annotations

import base64
import sys
from typing import Annotated

import typer

from starlingmq.admin.printable import plain
from starlingmq.cli.ctl_ask import AskedBroker, Lines, Result, asks
from starlingmq.cli.ctl_declared import shows
from starlingmq.cli.declare import CommandError
from starlingmq.config.section_types import parse_duration

KindArgument = Annotated[str, typer.Argument(metavar="KIND", help="address, user or client.")]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Address or network (10.0.0.0/8), user name or client id.")
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic without wildcards.")]


@asks
def ban(
    broker: AskedBroker,
    kind: KindArgument,
    name: NameArgument,
    time: Annotated[str, typer.Option("--time", "-t", metavar="DURATION", help="Duration of the ban.")] = "1h",
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown in the list of bans.")] = "by an operator",
    stay: Annotated[bool, typer.Option("--stay", help="Do not disconnect matching clients.")] = False,
) -> None:
    """Ban an address, user or client id on all nodes."""
    try:
        seconds = parse_duration(time)
    except ValueError as error:
        raise CommandError(f"--time: {error}") from None
    if seconds <= 0:
        raise CommandError("--time: must be more than 0")
    arguments = {"kind": kind, "name": name, "reason": reason, "disconnect": "no" if stay else "yes"}
    found = broker.ask("ban", seconds=repr(seconds), **arguments)
    broker.done(found, f"{kind} {plain(found['name'])} is banned on {', '.join(found['nodes'])} for {time}")


@asks
def publish(
    broker: AskedBroker,
    topic: TopicArgument,
    payload: Annotated[str, typer.Argument(metavar="[PAYLOAD]", help="Payload as text; - reads standard input.")] = "",
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2)] = 0,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Retain the message.")] = False,
    expiry: Annotated[int, typer.Option("--expiry", min=0, metavar="SECONDS", help="Message expiry; 0: never.")] = 0,
) -> None:
    """Publish a message as the operator, without rules and hooks. Clients use `starlingmq pub`."""
    content = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    found = broker.ask(
        "publish",
        topic=topic,
        payload_base64=base64.b64encode(content).decode(),
        qos=str(qos),
        retain="yes" if retain else "",
        expiry=str(expiry),
    )
    broker.done(found, f"published to {found['receivers']:,} receivers")


@shows("reload")
def reload(found: Result, given: Result) -> Lines:
    for name, told in found["nodes"].items():
        later = ", ".join(told["restart"])
        yield f"{name}: settings reloaded" + (f"; these need a restart: {later}" if later else "")
        for line in told.get("certificates", ()):  # a node of an older version does not say it
            yield f"{name}: {line}"
        for line in told["warnings"]:
            print(f"warning: {name}: {line}", file=sys.stderr)
    return 0
