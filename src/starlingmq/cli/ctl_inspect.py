"""``starlingmq ctl``: find what is wrong: alarms, certificates, the rule that decides, a message that waits."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from starlingmq.admin.declared_actions import DECLARED
from starlingmq.admin.printable import plain
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import NodeOption, Result, ask, show
from starlingmq.cli.ctl_declared import Shown, rows, shows, table_lines
from starlingmq.cli.ctl_look import ClientArgument
from starlingmq.cli.tables import WideOption, columns_of

DENIED: Final = 1  # exit code
FAILED: Final = 1

ALARMS: Final = columns_of("kind: alarm, severity, nodes, since/age, ended/age, text, next: what to do*, page*")
CONNECTORS: Final = columns_of(
    "name: connector, node, address, accepted/number, failed/number, failing: in a row/number, accepted_at: last "
    "accepted/age, problem: last problem"
)


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


@rows("actions")
def action_rows(found: Result) -> list[Result]:
    """The last ones last, as in a log."""
    return [one | {"time": one["time"][:19].replace("T", " ")} for one in reversed(found["actions"])]


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


@shows("rules")
def rules(found: Result, given: dict[str, Any]) -> Shown:
    return _rule_lines(found, given), 0


def _rule_lines(found: Result, given: dict[str, Any]) -> Iterator[str]:
    if not found["rules"] and not found["file"]:
        yield "there are no rules (auth.acl.file, ctl rule set), so everything is allowed"
        return
    told = {"rules": [one | {"names": one["names"] or "all"} for one in found["rules"]]}
    yield from table_lines(DECLARED["rules"], told, given)
    more = f"; {found['total']} rules in all" if found["total"] > len(found["rules"]) else ""
    yield f"where no rule matches: {found['default']} ({plain(found['file']) or 'there is no file'}{more})"


@shows("users")
def users(found: Result, given: dict[str, Any]) -> Shown:
    return _user_lines(found, given), 0


def _user_lines(found: Result, given: dict[str, Any]) -> Iterator[str]:
    yield from table_lines(DECLARED["users"], found, given)
    methods = ", ".join(found["methods"]) or "none"
    more = f"; {found['total']:,} users in all" if found["total"] > len(found["users"]) else ""
    yield f"methods: {methods}; {found['anonymous']:,} clients without a user{more}"


@shows("rules.test")
def may(found: Result, given: dict[str, Any]) -> Shown:
    """The exit code is 1 if it may not."""
    line = f"{'allowed' if found['allowed'] else 'denied'}: {found['reason']}"
    return [line], 0 if found["allowed"] else DENIED


@shows("settings.change")
def change(found: Result, given: dict[str, Any]) -> Shown:
    lines = [_change_line(name, found["path"], one) for name, one in found["nodes"].items()]
    if any(one["applied"] for one in found["nodes"].values()):
        section, _, name = found["path"].partition(".")
        kept = f"{section}: {{{name}: {given['value']}}}"
        lines.append(f"until the next reload or restart; to keep it, write {kept} to the settings file of each node")
    return lines, 0


def _change_line(node: str, path: str, one: Result) -> str:
    after = "(no difference)" if one["before"] == one["after"] else f"-> {one['after']}"
    done = " applied" if one["applied"] else " (only checked)" if one["before"] != one["after"] else ""
    return f"{node}: {path} {one['before']} {after}{done}"
