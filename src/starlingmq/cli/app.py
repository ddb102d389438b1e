"""The table of commands and their modules, and the typer application built from it.

A command is a module with either a function ``command`` (typer reads its signature; its docstring is the help) or, for
a command with subcommands, a ``typer.Typer`` called ``app`` or made by ``app_for``. Only the module of the command that
runs is loaded.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import typer
from typer.main import get_command

from starlingmq.cli.version import version_line

PROGRAM: Final = "starlingmq"
COMPLETION: Final = "_STARLINGMQ_COMPLETE"
"""Set by a shell that requests completions of a command line."""


HELP: Final = {"help_option_names": ["-h", "--help"]}  # -h has another meaning in pub, sub and bench: the host


class Command(NamedTuple):
    module: str
    summary: str
    """The first paragraph of the command's help (tests/cli/test_startup.py compares them), so that a list loads no
    command.
    """


COMMANDS: Final = {
    "serve": Command(
        "starlingmq.cli.serve_command", "Run one broker; prints `ready` and its addresses when it serves clients."
    ),
    "pub": Command("starlingmq.cli.pub", "Publish messages to a topic: `starlingmq pub -t greeting -m hello`."),
    "sub": Command("starlingmq.cli.sub", "Print the messages of topics: `starlingmq sub -t 'sensors/#' -v`."),
    "bench": Command(
        "starlingmq.cli.bench", "Measure a broker: `starlingmq bench --publishers 10 --subscribers 10 --rate 5000`."
    ),
    "cluster": Command("starlingmq.cli.cluster", "Run a cluster on this machine."),
    "demo": Command(
        "starlingmq.cli.demo",
        "Run three nodes, a fleet of devices, NATS workers and Spark on this machine; kill a node, cut a link, "
        "repair both, and report what clients noticed. Ctrl-C stops everything.",
    ),
    "ctl": Command("starlingmq.cli.ctl", "Operate a broker and its data directory."),
    "top": Command(
        "starlingmq.cli.top",
        "Watch the activity of clients, nodes and topics on all nodes; c, n, t change the view, s the order, q quits.",
    ),
    "backup": Command(
        "starlingmq.cli.backup", "Back up all persistent data as of one moment, also from a running broker."
    ),
    "restore": Command("starlingmq.cli.restore", "Create a data directory from a backup, which is verified."),
    "migrate": Command(
        "starlingmq.cli.migrate",
        "Read the settings and data of another broker, and write them as settings and data of StarlingMQ.",
    ),
    "passwd": Command(
        "starlingmq.cli.passwd",
        "Set or delete a password in the file of auth.password.file. The password is prompted for, never an argument.",
    ),
    "pipeline": Command("starlingmq.cli.pipeline", "Run pipelines: a stream, SQL steps, and a sink."),
    "rule": Command("starlingmq.cli.rule", "Check rules, try them on messages, and see how they do."),
    "config": Command("starlingmq.cli.config_cmd", "Check and show settings."),
    "doctor": Command(
        "starlingmq.cli.doctor",
        "Check this machine and the settings before a broker runs with them, and say what to do about each problem.",
    ),
    "completion": Command(
        "starlingmq.cli.completion",
        "Print the script that completes commands and options in a shell: `source <(starlingmq completion bash)`.",
    ),
    "man": Command("starlingmq.cli.man", "Write manual pages of all commands into a directory, from their help texts."),
}


def run(args: list[str]) -> int:
    """Run a command line and return its exit code. Errors are raised."""
    # Options of the program itself take no values, so the first word that is not an option is the command.
    first = next((place for place, word in enumerate(args) if not word.startswith("-")), len(args))
    name, word, *_ = [*args[first:], "", ""]
    if name in COMMANDS:
        app = build_app([name], word)
    elif os.environ.get(COMPLETION):  # the command itself completes its options
        app = build_app(COMMANDS)
    else:
        app = list_of_commands()
    result = get_command(app).main(args=args, prog_name=PROGRAM, standalone_mode=False)
    return result if isinstance(result, int) else 0


def build_app(names: Iterable[str], word: str = "") -> typer.Typer:
    """Build the application with these commands, and load their modules. ``word``: the one that follows the name, for a
    group that need not load all its commands."""
    app = _empty_app()
    for name in names:
        module = importlib.import_module(COMMANDS[name].module)
        group = module.app_for(word) if hasattr(module, "app_for") else getattr(module, "app", None)
        if group is None:
            app.command(name)(module.command)
        else:
            app.add_typer(group, name=name)
    return app


def list_of_commands() -> typer.Typer:
    """Build the application for its own help and for unknown commands, without loading any command's module."""
    app = _empty_app()
    for name, command in COMMANDS.items():
        app.command(name, help=command.summary)(_not_loaded)
    return app


def _empty_app() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP)
    app.callback()(_root)
    return app


def _not_loaded() -> None:
    """Placeholder for a command that is only listed."""


def _print_version(asked: bool) -> None:
    if asked:
        print(version_line())
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and whether it is compiled."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Run an MQTT and NATS broker, use it as a client, and measure it."""
