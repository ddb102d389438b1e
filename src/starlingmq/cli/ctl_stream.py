"""``starlingmq ctl stream``: create, list, show, trim and delete streams on a running node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask_broker, broker_address
from starlingmq.cli.ctl_ask import ask, done
from starlingmq.cli.declare import CommandError
from starlingmq.cli.progress import amount, progress
from starlingmq.cli.tables import columns_of, table
from starlingmq.config.section_types import format_duration

COLUMNS: Final = columns_of("name, topics, first/number, next/number, messages/number, bytes: size/bytes, full")
EverywhereOption = Annotated[bool, typer.Option("--everywhere", help="All nodes instead of this one only.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Stream name.")]

app = typer.Typer(help="Manage streams, which keep messages for bulk readers.", no_args_is_help=True)


@app.command()
def create(
    name: NameArgument,
    topic: Annotated[
        list[str], typer.Option("--topic", "-t", metavar="FILTER", help="Topic filter of messages to keep; repeatable.")
    ],
    retention_time: Annotated[
        str, typer.Option("--retention-time", metavar="DURATION", help="Minimum retention time; 0: unlimited.")
    ] = "7d",
    retention_size: Annotated[
        str, typer.Option("--retention-size", metavar="SIZE", help="Maximum size on each node; 0: unlimited.")
    ] = "0",
    when_full: Annotated[
        str, typer.Option("--when-full", help="When full: drop_oldest, or refuse QoS 1 and 2 messages (0x97).")
    ] = "drop_oldest",
    everywhere: EverywhereOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Create a stream that keeps messages of the given topics."""
    if any("\n" in each for each in topic):
        raise CommandError("--topic: must not contain a line break")
    arguments = {
        "name": name,
        "topics": "\n".join(topic),
        "retention_time": retention_time,
        "retention_size": retention_size,
        "when_full": when_full,
    }
    if everywhere:
        _everywhere("streams.create", arguments | {"topics": json.dumps(topic)}, data_dir, config, json_)
        return
    found = _ask("stream.create", arguments, data_dir, config, json_)
    print(json.dumps(found) if json_ else f"{name} keeps {', '.join(found['topics'])}")


@app.command(name="list")
def list_(data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False) -> None:
    """List streams, and the part of each that this node holds."""
    found = _ask("stream.list", {}, data_dir, config, json_)
    if json_:
        print(json.dumps(found))
        return
    print(table(COLUMNS, found["streams"]) if found["streams"] else "there are no streams")


@app.command()
def show(
    name: NameArgument, data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False
) -> None:
    """Show a stream: definition, the part on this node, consumers."""
    found = _ask("stream.show", {"name": name}, data_dir, config, json_)
    print(json.dumps(found) if json_ else "\n".join(_lines(found)))


@app.command()
def trim(
    name: NameArgument,
    before: Annotated[int | None, typer.Option(min=0, metavar="OFFSET", help="First offset to keep.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Delete all messages.")] = False,
    everywhere: EverywhereOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete a stream's messages on this node, in whole segment files: those that end before an offset, or all."""
    if (before is None) != all_:
        raise CommandError("nothing selected; give --before OFFSET, or --all")
    arguments = {"name": name, "before": "" if before is None else str(before)}
    if everywhere:
        _everywhere("streams.trim", arguments, data_dir, config, json_)
        return
    found = _ask("stream.trim", arguments, data_dir, config, json_)
    print(
        json.dumps(found)
        if json_
        else f"{found['trimmed']:,} messages deleted; {name} now starts at {found['first']:,}"
    )


@app.command()
def delete(
    name: NameArgument,
    everywhere: EverywhereOption = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete a stream and its messages on this node."""
    if everywhere:
        _everywhere("streams.delete", {"name": name}, data_dir, config, json_)
        return
    found = _ask("stream.delete", {"name": name}, data_dir, config, json_)
    print(json.dumps(found) if json_ else f"{name} was deleted")


def _everywhere(action: str, arguments: dict[str, str], data_dir: str | None, config: str | None, json_: bool) -> None:
    found = ask(action, data_dir, config, **arguments)
    done(found, json_, f"{arguments['name']}: done at {', '.join(found['nodes'])}")


def _ask(
    action: str, arguments: dict[str, str], data_dir: str | None, config: str | None, quiet: bool
) -> dict[str, Any]:
    with progress(quiet) as report:
        return ask_broker(broker_address(data_dir, config), action, arguments, report)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    age, size = found["retention_time"], found["retention_size"]
    yield f"topics         {', '.join(found['topics'])}"
    yield (
        f"retention      {(format_duration(age) if age else 'unlimited')}, "
        f"{(amount(size, 'bytes') if size else 'unlimited size')}; when full: "
        f"{found['when_full'].replace('_', ' ')}"
    )
    yield (
        f"on {found['node']}: {found['messages']:,} messages, offsets {found['first']:,} to {found['next']:,}, "
        f"{amount(found['bytes'], 'bytes')} in {found['files']:,} files" + (", full" if found["full"] else "")
    )
    if found["dropped"]:
        yield f"dropped        {found['dropped']:,} since the start"
    for each in found["consumers"]:
        yield (
            (
                f"consumer       {each['name']}: at {each['next']:,}, {each['lag']:,} behind, last heard "
                f"{each['heard_seconds']:,.0f} s ago"
            )
            + (", pins retention" if each["pins"] else "")
        )
