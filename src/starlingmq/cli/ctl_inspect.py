"""``starlingmq ctl``: find what is wrong: alarms, certificates, the rule that decides, a message that waits."""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated, Final, Literal

import typer

from starlingmq.admin.printable import plain
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import AtOption, NodeOption, ask, nothing, show
from starlingmq.cli.ctl_look import ClientArgument
from starlingmq.cli.tables import Column, Columns, WideOption

DENIED: Final = 1  # exit code
FAILED: Final = 1

ALARMS: Final[Columns] = {
    "kind": Column("alarm"),
    "severity": Column("severity"),
    "node": Column("node"),
    "since": Column("since", "age"),
    "ended": Column("ended", "age"),
    "text": Column("text"),
    "next": Column("what to do", wide=True),
    "page": Column("page", wide=True),
}
CONNECTORS: Final[Columns] = {
    "name": Column("connector"),
    "node": Column("node"),
    "address": Column("address"),
    "accepted": Column("accepted", "number"),
    "failed": Column("failed", "number"),
    "failing": Column("in a row", "number"),
    "accepted_at": Column("last accepted", "age"),
    "problem": Column("last problem"),
}
RULES: Final[Columns] = {
    "number": Column("rule", "number"),
    "decision": Column("decision"),
    "actions": Column("actions"),
    "names": Column("for"),
    "applied": Column("clients", "number"),
}
USERS: Final[Columns] = {
    "name": Column("user"),
    "clients": Column("clients", "number"),
    "stored": Column("stored"),
    "api": Column("api"),
}
SETTINGS: Final[Columns] = {
    "path": Column("setting"),
    "value": Column("value"),
    "default": Column("default"),
    "help": Column("meaning", wide=True),
}


def alarms(
    node: NodeOption = "",
    history: Annotated[bool, typer.Option("--history", help="List alarms that have ended, too.")] = False,
    wide: WideOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List the active alarms of all nodes, critical ones first."""
    found = ask("alarms", data_dir, config, node=node)
    if history and not json_:
        found["alarms"] += found["history"]
    lines = sys.stdout.isatty() and not wide  # in which nothing is cut
    show(found, json_, "alarms", ALARMS, "there are no alarms", wide or not sys.stdout.isatty())
    if lines and not json_:
        for one in found["alarms"]:
            title = " ".join(plain(one[part]) for part in ("kind", "subject") if one[part])
            print(f"\n{title}: {plain(one['text'])}\n  what to do: {plain(one['next'])}\n  page: {one.get('page', '')}")


def connectors(
    test: Annotated[
        str,
        typer.Option(
            "--test",
            metavar="NAME",
            help="Call this one once, at this node or that of --node; the exit code is 1 if it fails.",
        ),
    ] = "",
    node: NodeOption = "",
    wide: WideOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> int:
    """List services that the nodes call (auth.http, alarms.webhook, tracing), with requests accepted and failed."""
    if not test:
        found = ask("connectors", data_dir, config, node=node)
        show(found, json_, "connectors", CONNECTORS, "no connector is set", wide)
        return 0
    tested = ask("connectors.test", data_dir, config, name=test, node=node)
    taken = f"in {tested['milliseconds']} ms"
    said = f"accepted {taken}" if tested["accepted"] else f"failed {taken}: {plain(tested['problem'])}"
    print(json.dumps(tested) if json_ else f"{test} at {tested['node']}: {said}")
    return 0 if tested["accepted"] else FAILED


def rules(
    node: AtOption = "",
    wide: WideOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List the rules of the ACL file in their order, and how many clients each applied to."""
    found = ask("rules", data_dir, config, node=node)
    if not json_:
        for one in found["rules"]:
            one["actions"] = ", ".join(one["actions"])
            one["names"] = "; ".join(f"{name}: {value}" for name, value in one["names"].items()) or "all"
    none = "there is no file of rules (auth.acl.file), so everything is allowed"
    show(found, json_, "rules", RULES, none if not found["file"] else f"{found['file']} has no rules", wide)
    if not json_ and found["file"]:
        more = f"; {found['total']} rules in all" if found["total"] > len(found["rules"]) else ""
        print(f"where no rule matches: {found['default']} ({plain(found['file'])}{more})")


def users(
    part: Annotated[str, typer.Argument(metavar="PART", help="List those whose name contains this.")] = "",
    node: AtOption = "",
    wide: WideOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List the users of the password file and of connected clients, with their clients at this node and their rights
    at the HTTP API."""
    found = ask("users", data_dir, config, q=part, node=node)
    show(found, json_, "users", USERS, nothing("user", "there are no users", {"PART": part}), wide)
    if not json_:
        methods = ", ".join(found["methods"]) or "none"
        more = f"; {found['total']:,} users in all" if found["total"] > len(found["users"]) else ""
        print(f"methods: {methods}; {found['anonymous']:,} clients without a user{more}")


def may(
    client_id: ClientArgument,
    action: Annotated[
        Literal["publish", "subscribe", "group", "connect"], typer.Argument(help="What the client does.")
    ],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic, or topic filter.")] = "",
    user: Annotated[
        str, typer.Option("--user", help="User name. Default: that of the client, if it is connected.")
    ] = "",
    address: Annotated[
        str, typer.Option("--address", help="Address without a port. Default: that of the connected client.")
    ] = "",
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="QoS of the message.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="The message is retained.")] = False,
    group: Annotated[str, typer.Option("--group", help="Name of the group, for the action group.")] = "",
    node: AtOption = "",
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> int:
    """Test whether a client may do something, and which rule decides; the exit code is 1 if it may not."""
    found = ask(
        "rules.test",
        data_dir,
        config,
        client_id=client_id,
        does=action,
        topic=topic,
        username=user,
        address=address,
        qos=str(qos),
        retain="yes" if retain else "",
        group=group,
        node=node,
    )
    print(json.dumps(found) if json_ else f"{'allowed' if found['allowed'] else 'denied'}: {found['reason']}")
    return 0 if found["allowed"] else DENIED


def message(
    client_id: ClientArgument,
    number: Annotated[int, typer.Argument(min=0, metavar="N", help="Position in the queue, from 0.")] = 0,
    window: Annotated[
        bool, typer.Option("--window", help="N is a packet id in the inflight window, not a position in the queue.")
    ] = False,
    node: NodeOption = "",
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Print the payload of a message that waits for a client, at most 64 KiB of it."""
    place = "window" if window else "queue"
    found = ask("session.message", data_dir, config, client_id=client_id, place=place, number=str(number), node=node)
    if json_:
        print(json.dumps(found))
    else:
        sys.stdout.buffer.write(base64.b64decode(found["payload_base64"]))


def settings(
    part: Annotated[str, typer.Argument(metavar="PART", help="List those whose path contains this.")] = "",
    node: AtOption = "",
    wide: WideOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List the settings that can be changed while the broker serves."""
    found = ask("settings", data_dir, config, node=node)
    found["settings"] = [one for one in found["settings"] if part in one["path"]]
    show(found, json_, "settings", SETTINGS, nothing("setting", "there are no settings", {"PART": part}), wide)


def change(
    path: Annotated[str, typer.Argument(help="Path of the setting, such as mqtt.max_qos.")],
    value: Annotated[str, typer.Argument(help="Value as in a settings file, such as 10s or 64KiB.")],
    check: Annotated[bool, typer.Option("--check", help="Print the difference, and change nothing.")] = False,
    everywhere: Annotated[bool, typer.Option("--everywhere", help="At all nodes.")] = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Change a setting until the next reload or restart; write it to the settings file, too."""
    only = "yes" if check else ""
    found = ask(
        "settings.change",
        data_dir,
        config,
        path=path,
        value=value,
        only_check=only,
        node="*" if everywhere else "",
    )
    if json_:
        print(json.dumps(found))
        return
    for name, one in found["nodes"].items():
        after = "(no difference)" if one["before"] == one["after"] else f"-> {one['after']}"
        done = " applied" if one["applied"] else " (only checked)" if one["before"] != one["after"] else ""
        print(f"{name}: {path} {one['before']} {after}{done}")


INSPECTIONS: Final = (alarms, connectors, rules, users, may, message, settings)
