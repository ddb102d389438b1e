"""``starlingmq ctl``: operate a broker, or the data directory of a stopped one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import typer

from starlingmq.cli.ctl_access import rule, user
from starlingmq.cli.ctl_ask import Result
from starlingmq.cli.ctl_cluster import app as cluster
from starlingmq.cli.ctl_declared import Shown, add_commands, shows
from starlingmq.cli.ctl_do import DEEDS
from starlingmq.cli.ctl_drain import drain
from starlingmq.cli.ctl_groups import groups
from starlingmq.cli.ctl_health import health
from starlingmq.cli.ctl_inspect import INSPECTIONS
from starlingmq.cli.ctl_look import LOOKS
from starlingmq.cli.ctl_status import status, version
from starlingmq.cli.ctl_stream import app as stream
from starlingmq.cli.ctl_trace import tail, trace
from starlingmq.cli.progress import amount

DAMAGED: Final = 1  # exit code

app = typer.Typer(help="Operate a broker and its data directory.", no_args_is_help=True)
storage = typer.Typer(
    help="Check, measure and compact a data directory, whether a broker is running on it or not.", no_args_is_help=True
)
app.add_typer(storage, name="storage")
app.add_typer(cluster, name="cluster")
app.add_typer(user, name="user")
app.add_typer(rule, name="rule")
UNDECLARED: Final = (drain, groups, status, *LOOKS, *INSPECTIONS, *DEEDS, trace, tail, health, version)
for command in UNDECLARED:
    app.command()(command)
app.add_typer(stream, name="stream")


@shows("storage.check")
def check(found: Result, given: Result) -> Shown:
    """The exit code is 1 if there is damage."""
    return _check_lines(found), DAMAGED if found["damage"] else 0


@shows("storage.stats")
def stats(found: Result, given: Result) -> Shown:
    return _stats_lines(found), 0


@shows("storage.compact")
def compact(found: Result, given: Result) -> Shown:
    before, after = found["before"]["used"], found["after"]["used"]
    return [f"{amount(before, 'bytes')} before, {amount(after, 'bytes')} now"], 0


def _check_lines(found: dict[str, Any]) -> Iterator[str]:
    yield from found["damage"]
    if found["omitted"]:
        yield f"and {found['omitted']:,} more"
    yield from (f"note: {note}" for note in found["notes"])
    yield (
        f"{found['records']:,} records ({amount(found['bytes'], 'bytes')}), {found['values']:,} values, "
        f"{found['sessions']:,} sessions, {found['references']:,} references: "
        + (f"{len(found['damage']) + found['omitted']:,} damaged" if found["damage"] else "whole")
    )


def _stats_lines(found: dict[str, Any]) -> Iterator[str]:
    journal, checkpoint = found["journal"], found["checkpoint"]
    yield (
        f"state          {found['state']}, {('a broker is running' if found['serving'] else 'no broker is running')}"
    )
    if found["durability"] is not None:
        yield f"durability     {found['durability']}"
    yield f"sessions       {found['sessions']:,} with {found['subscriptions']:,} subscriptions"
    yield f"messages       {found['queued']:,} queued, {found['inflight']:,} in flight, {found['retained']:,} retained"
    yield (
        f"journal        {journal['engine']}, {amount(journal['bytes'], 'bytes')} in {journal['segments']:,} segments, "
        f"records {journal['first']:,} to {journal['next']:,}"
    )
    yield f"reclaimable    {journal['unneeded_segments']:,} segments, {amount(journal['unneeded_bytes'], 'bytes')}"
    age = checkpoint["age_seconds"]
    yield (
        f"checkpoint     at record {checkpoint['offset']:,}, {checkpoint['behind']:,} behind, "
        + ("written before the start" if age is None else f"{age:,.0f} s ago")
        + (f"; the last one failed: {checkpoint['failure']}" if checkpoint["failure"] else "")
    )
    for each in found["streams"]:
        yield f"stream         {each['name']}: {each['messages']:,} messages, {amount(each['bytes'], 'bytes')}"
    yield f"key-value      {amount(found['kv_bytes'], 'bytes')}"
    yield f"disk           {amount(found['used'], 'bytes')} used, {amount(found['free'], 'bytes')} free"


@cache
def whole_app() -> typer.Typer:
    """With all commands."""
    add_commands({"": app, "cluster": cluster, "storage": storage, "stream": stream, "user": user, "rule": rule})
    return app


def app_for(word: str) -> typer.Typer:
    """With the command of that name at least."""
    return app if word in {"stream", *(command.__name__ for command in UNDECLARED)} else whole_app()
