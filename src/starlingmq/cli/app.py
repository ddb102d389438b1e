"""Which module holds a command, and the application made of them.

A command is one module with either a function ``command`` (typer reads its signature; its docstring is the help) or,
for a command with commands below it, a ``typer.Typer`` called ``app``. Only the module that is asked for is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Annotated, Final

import typer
from typer.main import get_command

from starlingmq.cli.version import version_line

COMMANDS: Final = {
    "serve": "starlingmq.cli.serve",
    "pub": "starlingmq.cli.pub",
    "sub": "starlingmq.cli.sub",
    "bench": "starlingmq.cli.bench",
    "cluster": "starlingmq.cli.cluster",
    "demo": "starlingmq.cli.demo",
    "ctl": "starlingmq.cli.ctl",
    "top": "starlingmq.cli.top",
    "backup": "starlingmq.cli.backup",
    "restore": "starlingmq.cli.restore",
    "passwd": "starlingmq.cli.passwd",
    "pipeline": "starlingmq.cli.pipeline",
    "config": "starlingmq.cli.config_cmd",
}


def run(args: list[str], program: str) -> int:
    """Run a command line; returns its exit code and raises what goes wrong."""
    # Options of the program itself take no values: the first word that is no option is the command.
    name = next((word for word in args if not word.startswith("-")), "")
    names = [name] if name in COMMANDS else list(COMMANDS)  # all of them for help, completion and a misspelt one
    result = get_command(build_app(names)).main(args=args, prog_name=program, standalone_mode=False)
    return result if isinstance(result, int) else 0


def build_app(names: Iterable[str]) -> typer.Typer:
    """The application with these commands; their modules are loaded now."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_root)
    for name in names:
        module = importlib.import_module(COMMANDS[name])
        group = getattr(module, "app", None)
        if group is None:
            app.command(name)(module.command)
        else:
            app.add_typer(group, name=name)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        print(version_line())
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and how it runs."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """An MQTT broker: run it, talk to it, measure it."""
