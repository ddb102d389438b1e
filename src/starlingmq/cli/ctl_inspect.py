"""``starlingmq ctl``: find what is wrong: alarms, certificates, the rule that decides, a message that waits."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from starlingmq.admin.declared_actions import DECLARED
from starlingmq.admin.printable import plain
from starlingmq.admin.table_columns import columns_of
from starlingmq.cli.ctl_ask import AskedBroker, Lines, NodeOption, Result, asks
from starlingmq.cli.ctl_declared import rows, shows, table_lines
from starlingmq.cli.ctl_look import ClientArgument
from starlingmq.cli.tables import WideOption

DENIED: Final = 1  # exit code
FAILED: Final = 1

ALARMS: Final = columns_of("kind: alarm, severity, nodes, since/age, ended/age, text, next: what to do*, page*")
CONNECTORS: Final = columns_of(
    "name: connector, node, address, accepted/number, failed/number, failing: in a row/number, accepted_at: last "
    "accepted/age, problem: last problem"
)


@asks
def alarms(
    broker: AskedBroker,
    node: NodeOption = "",
    history: Annotated[bool, typer.Option("--history", help="List alarms that have ended, too.")] = False,
    wide: WideOption = False,
) -> None:
    """List the active alarms of all nodes, critical ones first."""
    found = broker.ask("alarms", node=node)
    if history and not broker.json:
        found["alarms"] += found["history"]
    lines = sys.stdout.isatty() and not wide  # in which nothing is cut
    broker.show(found, "alarms", ALARMS, "there are no alarms", wide or not sys.stdout.isatty())
    if lines and not broker.json:
        for one in found["alarms"]:
            title = " ".join(plain(one[part]) for part in ("kind", "subject") if one[part])
            print(f"\n{title}: {plain(one['text'])}\n  what to do: {plain(one['next'])}\n  page: {one.get('page', '')}")


@rows("actions")
def action_rows(found: Result) -> list[Result]:
    """The last ones last, as in a log."""
    return [one | {"time": one["time"][:19].replace("T", " ")} for one in reversed(found["actions"])]


@asks
def connectors(
    broker: AskedBroker,
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
) -> int:
    """List services that the nodes call (auth.http, alarms.webhook, tracing), with requests accepted and failed."""
    if not test:
        found = broker.ask("connectors", node=node)
        broker.show(found, "connectors", CONNECTORS, "no connector is set", wide)
        return 0
    tested = broker.ask("connectors.test", name=test, node=node)
    taken = f"in {tested['milliseconds']} ms"
    said = f"accepted {taken}" if tested["accepted"] else f"failed {taken}: {plain(tested['problem'])}"
    broker.done(tested, f"{test} at {tested['node']}: {said}")
    return 0 if tested["accepted"] else FAILED


@asks
def message(
    broker: AskedBroker,
    client_id: ClientArgument,
    number: Annotated[int, typer.Argument(min=0, metavar="N", help="Position in the queue, from 0.")] = 0,
    window: Annotated[
        bool, typer.Option("--window", help="N is a packet id in the inflight window, not a position in the queue.")
    ] = False,
    node: NodeOption = "",
) -> None:
    """Print the payload of a message that waits for a client, at most 64 KiB of it."""
    place = "window" if window else "queue"
    found = broker.ask("session.message", client_id=client_id, place=place, number=str(number), node=node)
    broker.write_payload(found)


@shows("rules")
def rules(found: Result, given: Result) -> Lines:
    if not found["rules"] and not found["file"]:
        yield "there are no rules (auth.acl.file, ctl rule set), so everything is allowed"
        return 0
    told = {"rules": [one | {"names": one["names"] or "all"} for one in found["rules"]]}
    yield from table_lines(DECLARED["rules"], told, given)
    more = f"; {found['total']} rules in all" if found["total"] > len(found["rules"]) else ""
    yield f"where no rule matches: {found['default']} ({plain(found['file']) or 'there is no file'}{more})"
    return 0


@shows("users")
def users(found: Result, given: Result) -> Lines:
    yield from table_lines(DECLARED["users"], found, given)
    methods = ", ".join(found["methods"]) or "none"
    more = f"; {found['total']:,} users in all" if found["total"] > len(found["users"]) else ""
    yield f"methods: {methods}; {found['anonymous']:,} clients without a user{more}"
    return 0


@shows("rules.test")
def may(found: Result, given: Result) -> Lines:
    """The exit code is 1 if it may not."""
    yield f"{'allowed' if found['allowed'] else 'denied'}: {found['reason']}"
    return 0 if found["allowed"] else DENIED


@shows("settings.change")
def change(found: Result, given: Result) -> Lines:
    for node, one in found["nodes"].items():
        differs = one["before"] != one["after"]
        after = f"-> {one['after']}" if differs else "(no difference)"
        done = " applied" if one["applied"] else " (only checked)" if differs else ""
        yield f"{node}: {found['path']} {one['before']} {after}{done}"
    if any(one["applied"] for one in found["nodes"].values()):
        section, _, name = found["path"].partition(".")
        kept = f"{section}: {{{name}: {given['value']}}}"
        yield f"until the next reload or restart; to keep it, write {kept} to the settings file of each node"
    return 0
