"""``starlingmq rule``: check rules, and show what they make of messages."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from starlingmq.admin.table_columns import columns_of
from starlingmq.bridges.link_view import LinkView
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask_broker, broker_address
from starlingmq.cli.declare import CommandError
from starlingmq.cli.tables import WideOption, table
from starlingmq.rules.rule_file import CheckedRule, read_rules
from starlingmq.rules.sql_values import RowFailed

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="File with one rule, settings with a section rules, or a pipeline file.")
]

RULES: Final = columns_of(
    "name, node, state, seconds: for/seconds, waiting, in_flight*, messages_out: rows, refused: no result, again*, "
    "dropped, problem, complaints: last failure*",
    LinkView,
)

app = typer.Typer(help="Check rules, try them on messages, and see how they do.", no_args_is_help=True)


@app.command()
def validate(file: FileArgument, json_: JsonOption = False) -> None:
    """Check rules: their settings, their SQL, and whether their sinks take the columns. Of a pipeline file: whether the
    broker could do what Spark does with it."""
    checked = [CheckedRule(rule) for rule in read_rules(file)]
    if json_:
        columns = {each.rule.name: {name: str(type) for name, type in each.program.columns} for each in checked}
        print(json.dumps({"rules": columns}))
        return
    for each in checked:
        print(f"{file}: {each.summary()}")
    if not checked:
        print(f"{file}: no rules")


@app.command()
def test(
    file: FileArgument,
    topic: Annotated[str, typer.Option("-t", "--topic", help="Topic of the messages.")] = "test",
    payload: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--message", metavar="TEXT", help="Payload; repeatable. Default: each line of stdin is one."
        ),
    ] = None,
    rule: Annotated[str, typer.Option("--rule", metavar="NAME", help="Of several rules in the file, this one.")] = "",
) -> int:
    """Show the rows that a rule makes of messages, a line of JSON each. Nothing is published or sent. The exit code is
    1 if a message has no result."""
    rules = [each for each in read_rules(file) if rule in ("", each.name)]
    if len(rules) != 1:
        raise CommandError(f"{file}: it has {len(rules)} rules of that name; choose one with --rule NAME")
    checked = CheckedRule(rules[0])
    failed = 0
    given = (text.encode() for text in payload) if payload else (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    for each in given:
        try:
            for text in checked.made_of(topic, each, int(time.time() * 1_000_000)):
                print(text)
        except RowFailed as error:
            print(f"no result: {error}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


@app.command("list")
def list_rules(
    data_dir: DataDirOption = None, config: FileOption = None, wide: WideOption = False, json_: JsonOption = False
) -> int:
    """List the rules of a broker or cluster: their state, messages that wait, rows, and messages without a result. The
    exit code is 1 if one has a problem. Pause and resume them with ctl links."""
    found = ask_broker(broker_address(data_dir, config), "links", {}, lambda *_: None)["links"]
    rules = [each | {"name": each["name"].removeprefix("rule:")} for each in found if each["kind"] == "rule"]
    if json_:
        print(json.dumps({"rules": rules}))
    else:
        print(table(RULES, rules, wide) if rules else "no rules; rules in the settings names them")
    return 1 if any(each["problem"] for each in rules) else 0
