"""``starlingmq ctl groups``: the queue groups as a node that runs sees them."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from starlingmq.admin.printable import plain
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask_broker, directory_of
from starlingmq.cli.ctl_ask import WIDTH_MIN, listed, warn_of
from starlingmq.cli.progress import progress

GROUPS_MAX: Final = 10_000


def groups(
    prefix: Annotated[str, typer.Argument(help="Only groups with this prefix.")] = "",
    everywhere: Annotated[bool, typer.Option("--everywhere", help="Ask the primary of each group.")] = False,
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """List the queue groups with their strategy, members and waiting messages, best known to each group's primary."""
    if everywhere:
        found = listed("groups.all", "groups", GROUPS_MAX, data_dir, config, prefix=prefix)
        warn_of(found)
    else:
        directory = directory_of(data_dir, config)
        with progress(json_) as report:
            found = ask_broker(directory, "groups", {"prefix": prefix}, report)
    if json_:
        print(json.dumps(found))
        return
    if not found["groups"]:
        print("there are no queue groups")
        return
    table = Table("group", "filter", "strategy", "primary", "members", "here", "cursor", "lag", "lent", "redelivered")
    for column in range(4, 10):
        table.columns[column].justify = "right"
    table.add_column("elsewhere")
    for each in found["groups"]:
        table.add_row(
            escape(plain(each["name"])),
            escape(plain(each["filter"])),
            each["strategy"],
            each["primary"] or "none",
            f"{each['members']:,}",
            f"{each['online_here']:,}",
            f"{each['cursor']:,}" if each["cursor"] >= 0 else "",
            f"{each['lag']:,}",
            f"{each['lent']:,}",
            f"{each['redelivered']:,}",
            "; ".join(elsewhere(name, told) for name, told in sorted(each["nodes"].items())),
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, WIDTH_MIN))
    console.print(table)


def elsewhere(name: str, told: dict[str, int]) -> str:
    """What is known of another node's part in a group."""
    members = f"{name}: {told['members']:,}"
    return f"{members}, {told['waiting']:,} waiting" if told.get("waiting") else members
