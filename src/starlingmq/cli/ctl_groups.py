"""``starlingmq ctl groups``: the queue groups as a running node sees them."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from starlingmq.cli.ctl_ask import AskedBroker, DescendingOption, ListOrder, asks, nothing, tell_total, warn_of
from starlingmq.cli.declare import CommandError
from starlingmq.cli.tables import WideOption, columns_of, table

GROUPS_MAX: Final = 10_000
COLUMNS: Final = columns_of(
    "name: group, filter, strategy, primary, members/number, online_here: here/number*, cursor/number*, "
    "lag/number, lent/number*, redelivered/number*, elsewhere*"
)


@asks
def groups(
    broker: AskedBroker,
    prefix: Annotated[str, typer.Argument(help="Only groups with this prefix.")] = "",
    everywhere: Annotated[bool, typer.Option("--everywhere", help="Ask the primary of each group.")] = False,
    sort: Annotated[
        str,
        typer.Option(
            help="With --everywhere: sort by name, filter, strategy, primary, members, waiting_here, lag, given or "
            "redelivered."
        ),
    ] = "",
    descending: DescendingOption = False,
    wide: WideOption = False,
) -> None:
    """List the queue groups with their strategy, members and waiting messages.

    A node knows its own part of a group; the group's primary knows all of it (--everywhere).
    """
    if everywhere or broker.url:
        found = broker.listed("groups.led", "groups", GROUPS_MAX, ListOrder(sort, descending), prefix=prefix)
        tell_total(found, "groups")
        warn_of(found)
    elif sort:
        raise CommandError("--sort needs --everywhere: a node knows only its own part of a group")
    else:
        found = broker.ask_long("groups", prefix=prefix)
    if broker.json:
        print(json.dumps(found))
        return
    if not found["groups"]:
        print(nothing("queue group", "there are no queue groups", {"prefix": prefix}))
        return
    entries = [
        {
            **each,
            "primary": each["primary"] or "none",
            "cursor": each["cursor"] if each["cursor"] >= 0 else None,
            "elsewhere": "; ".join(elsewhere(name, told) for name, told in sorted(each["nodes"].items())),
        }
        for each in found["groups"]
    ]
    print(table(COLUMNS, entries, wide))


def elsewhere(name: str, told: dict[str, int]) -> str:
    """Return the members and waiting messages of a group on other nodes."""
    members = f"{name}: {told['members']:,}"
    return f"{members}, {told['waiting']:,} waiting" if told.get("waiting") else members
