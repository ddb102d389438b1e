"""``starlingmq ctl stream``: create, list, show, trim and delete streams on a running node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Final

import typer

from starlingmq.admin.table_columns import columns_of
from starlingmq.cli.ctl_ask import AskedBroker, Lines, Result, asks
from starlingmq.cli.declare import CommandError
from starlingmq.cli.progress import amount
from starlingmq.config.section_types import format_duration

COLUMNS: Final = columns_of("name, topics, first/number, next/number, messages/number, bytes: size/bytes, full")
EverywhereOption = Annotated[bool, typer.Option("--everywhere", help="All nodes instead of this one only.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Stream name.")]

app = typer.Typer(help="Manage streams, which keep messages for bulk readers.", no_args_is_help=True)


@app.command()
@asks
def create(
    broker: AskedBroker,
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
) -> None:
    """Create a stream that keeps messages of the given topics."""
    if any("\n" in each for each in topic):
        raise CommandError("--topic: must not contain a line break")
    arguments = {
        "topics": json.dumps(topic),
        "retention_time": retention_time,
        "retention_size": retention_size,
        "when_full": when_full,
    }
    _change(
        broker, "streams.create", name, everywhere, lambda one: f"{name} keeps {', '.join(one['topics'])}", arguments
    )


@app.command(name="list")
@asks
def list_(broker: AskedBroker) -> None:
    """List streams, and the part of each that this node holds."""
    broker.show(_parts(broker), "streams", COLUMNS, "there are no streams")


@app.command()
@asks
def show(broker: AskedBroker, name: NameArgument) -> None:
    """Show a stream: definition, the part on this node, consumers."""
    told = _parts(broker)
    for one in told["streams"]:
        if one["name"] == name:
            broker.tell(one, _lines(one))
            return
    raise CommandError(f"{told['node']} has no stream named {name}; `ctl stream list` lists those that it has")


@app.command()
@asks
def trim(
    broker: AskedBroker,
    name: NameArgument,
    before: Annotated[int | None, typer.Option(min=0, metavar="OFFSET", help="First offset to keep.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Delete all messages.")] = False,
    everywhere: EverywhereOption = False,
) -> None:
    """Delete a stream's messages on this node, in whole segment files: those that end before an offset, or all."""
    if (before is None) != all_:
        raise CommandError("nothing selected; give --before OFFSET, or --all")

    def line(one: Result) -> str:
        return f"{one['trimmed']:,} messages deleted; {name} now starts at {one['first']:,}"

    _change(broker, "streams.trim", name, everywhere, line, {"before": "" if before is None else str(before)})


@app.command()
@asks
def delete(broker: AskedBroker, name: NameArgument, everywhere: EverywhereOption = False) -> None:
    """Delete a stream and its messages on this node."""
    _change(broker, "streams.delete", name, everywhere, lambda one: f"{name} was deleted", {})


def _here(broker: AskedBroker) -> str:
    """The name of the node that is asked."""
    return str(broker.ask("listeners")["node"])


def _parts(broker: AskedBroker) -> Result:
    """The parts of streams at the node that is asked."""
    return broker.ask("stream.all", node=_here(broker))


def _change(
    broker: AskedBroker,
    action: str,
    name: str,
    everywhere: bool,
    line: Callable[[Result], str],
    arguments: dict[str, str],
) -> None:
    node = "" if everywhere else _here(broker)
    found = broker.ask(action, name=name, node=node, **arguments)
    if everywhere:
        broker.done(found, f"{name}: done at {', '.join(found['nodes'])}")
    else:
        broker.done(found["nodes"][node], line(found["nodes"][node]))


def _lines(found: Result) -> Lines:
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
    return 0
