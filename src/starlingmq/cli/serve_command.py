"""``starlingmq serve`` as a typer command: for help, and for command lines that ``serve_options.read`` does not
parse.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from starlingmq.cli.declare import parameter, shaped
from starlingmq.cli.serve_options import OPTIONS, Option, ServeOptions


def command(**given: Any) -> None:
    """Run one broker; prints `ready` and its addresses when it serves clients."""
    from starlingmq.cli.serve import run

    run(ServeOptions(**given))


def _parameter(option: Option) -> inspect.Parameter:
    declared = typer.Option(*option.spellings, metavar=option.metavar or None, help=option.help)
    return parameter(option.name, ServeOptions._field_defaults[option.name], Annotated[option.kind, declared])


shaped(command, [_parameter(option) for option in OPTIONS])
