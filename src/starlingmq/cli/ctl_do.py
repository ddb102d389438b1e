"""``starlingmq ctl``: what is done to clients, messages and nodes, at whatever node they are."""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated, Final

import typer

from starlingmq.admin.printable import plain
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import ask, done
from starlingmq.cli.ctl_look import ClientArgument
from starlingmq.cli.declare import CommandError
from starlingmq.config.section_types import parse_duration

KindArgument = Annotated[str, typer.Argument(metavar="KIND", help="address, user or client.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The address, user name or client id.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, without wildcards.")]


def kick(
    client_id: ClientArgument,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Close the connection of a client; its session stays as agreed."""
    found = ask("client.kick", data_dir, config, client_id=client_id)
    done(found, json_, f"{plain(client_id)} is disconnected from {', '.join(found['nodes'])}")


def end(
    client_id: ClientArgument,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """End a session with all that waits in it."""
    found = ask("session.end", data_dir, config, client_id=client_id)
    done(found, json_, f"the session of {plain(client_id)} on {', '.join(found['nodes'])}: {found['done']}")


def ban(
    kind: KindArgument,
    name: NameArgument,
    time: Annotated[str, typer.Option("--time", "-t", metavar="DURATION", help="For how long.")] = "1h",
    reason: Annotated[str, typer.Option("--reason", help="Shown to whoever asks who is banned.")] = "by an operator",
    stay: Annotated[bool, typer.Option("--stay", help="Whoever is connected may stay.")] = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Keep an address, a user or a client out of all nodes for a while."""
    try:
        seconds = parse_duration(time)
    except ValueError as error:
        raise CommandError(f"--time: {error}") from None
    if seconds <= 0:
        raise CommandError("--time: for how long? 0 is no time")
    arguments = {"kind": kind, "name": name, "reason": reason, "disconnect": "no" if stay else "yes"}
    found = ask("ban", data_dir, config, seconds=repr(seconds), **arguments)
    done(found, json_, f"{kind} {plain(name)} is banned from {', '.join(found['nodes'])} for {time}")


def unban(
    kind: KindArgument,
    name: NameArgument,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Let somebody in again, at all nodes."""
    found = ask("ban.lift", data_dir, config, kind=kind, name=name)
    done(found, json_, f"{kind} {plain(name)} may come in again")


def publish(
    topic: TopicArgument,
    payload: Annotated[str, typer.Argument(metavar="[PAYLOAD]", help="Text; - reads standard input.")] = "",
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2)] = 0,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Keep it for those who subscribe later.")] = False,
    expiry: Annotated[int, typer.Option("--expiry", min=0, metavar="SECONDS", help="0: it never expires.")] = 0,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Publish a message as the operator: no rule and no hook is asked. Clients use `starlingmq pub`."""
    content = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    found = ask(
        "publish",
        data_dir,
        config,
        topic=topic,
        payload_base64=base64.b64encode(content).decode(),
        qos=str(qos),
        retain="yes" if retain else "",
        expiry=str(expiry),
    )
    done(found, json_, f"published to {found['receivers']:,} receivers")


def unretain(
    topic: TopicArgument,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Forget what is retained for a topic."""
    done(ask("retained.delete", data_dir, config, topic=topic), json_, f"nothing is retained for {plain(topic)}")


def reload(
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="At this node, instead of this one.")] = "",
    everywhere: Annotated[bool, typer.Option("--everywhere", help="At all nodes.")] = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Read the settings and all files anew, and say what counts only after a restart."""
    found = ask("reload", data_dir, config, node="*" if everywhere else node)
    if json_:
        print(json.dumps(found))
        return
    for name, told in found["nodes"].items():
        later = ", ".join(told["restart"])
        print(f"{name}: settings are read" + (f"; these count after a restart: {later}" if later else ""))
    for one in found["missing"]:
        print(f"warning: {one['node']} is missing: {one['why']}", file=sys.stderr)


DEEDS: Final = (kick, end, ban, unban, publish, unretain, reload)
