"""``starlingmq serve`` as a typer command: for help, and for command lines that ``serve_options.read`` does not
parse.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Final

import typer

from starlingmq.cli.serve_options import OPTIONS, Option, ServeOptions


def command(**given: Any) -> None:
    """Run one broker; prints `ready` and its addresses when it serves clients."""
    from starlingmq.cli.serve import run

    run(ServeOptions(**given))


def _parameter(option: Option) -> inspect.Parameter:
    declared = typer.Option(*option.spellings, metavar=option.metavar or None, help=option.help)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=ServeOptions._field_defaults[option.name],
        annotation=Annotated[option.kind, declared],
    )


PARAMETERS: Final = [_parameter(option) for option in OPTIONS]

# typer reads these two.
command.__signature__ = inspect.Signature(PARAMETERS)  # type: ignore[attr-defined]
command.__annotations__ = {parameter.name: parameter.annotation for parameter in PARAMETERS}
