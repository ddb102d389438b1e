"""``starlingmq ctl``: operate a broker, or the data directory of a stopped one."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Final

import typer

UNDECLARED: Final = {
    "drain": "starlingmq.cli.ctl_drain",
    "groups": "starlingmq.cli.ctl_look",
    "status": "starlingmq.cli.ctl_status",
    "retained": "starlingmq.cli.ctl_look",
    "metrics": "starlingmq.cli.ctl_look",
    "log": "starlingmq.cli.ctl_look",
    "alarms": "starlingmq.cli.ctl_inspect",
    "connectors": "starlingmq.cli.ctl_inspect",
    "message": "starlingmq.cli.ctl_inspect",
    "ban": "starlingmq.cli.ctl_do",
    "publish": "starlingmq.cli.ctl_do",
    "trace": "starlingmq.cli.ctl_trace",
    "tail": "starlingmq.cli.ctl_trace",
    "health": "starlingmq.cli.ctl_status",
    "version": "starlingmq.cli.ctl_status",
}
"""Commands that are no declared actions, and their modules."""


@cache
def whole_app() -> typer.Typer:
    """With all commands. What it imports takes longer than a command."""
    import starlingmq.cli.ctl_storage  # noqa: F401  for what it shows
    from starlingmq.cli.ctl_access import rule, user
    from starlingmq.cli.ctl_cluster import app as cluster
    from starlingmq.cli.ctl_declared import add_commands
    from starlingmq.cli.ctl_stream import app as stream

    app = _empty_app()
    storage = typer.Typer(
        help="Check, measure and compact a data directory, whether a broker is running on it or not.",
        no_args_is_help=True,
    )
    link = typer.Typer(help="Pause, resume and drain links to other brokers.", no_args_is_help=True)
    groups = {"cluster": cluster, "link": link, "storage": storage, "stream": stream, "user": user, "rule": rule}
    for name, group in groups.items():
        app.add_typer(group, name=name)
    for name in UNDECLARED:
        _add(app, name)
    add_commands({"": app, **groups})
    return app


def app_for(word: str) -> typer.Typer:
    """With the command of that name at least."""
    if word not in UNDECLARED:
        return whole_app()
    app = _empty_app()
    app.callback()(lambda: None)  # otherwise it is not a group, as it has one command
    _add(app, word)
    return app


def _empty_app() -> typer.Typer:
    return typer.Typer(help="Operate a broker and its data directory.", no_args_is_help=True)


def _add(app: typer.Typer, name: str) -> None:
    app.command()(getattr(importlib.import_module(UNDECLARED[name]), name))
