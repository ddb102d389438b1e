"""The entry point: it prints the version without loading typer, and reports errors.

Every error is one line ``error: ...`` on stderr: exit code 2 for invalid input and errors of the system, 1 for a bug in
StarlingMQ. ``--debug`` anywhere on the command line shows the traceback as well.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from starlingmq.cli.command_errors import OUR_ERROR, explain
from starlingmq.cli.late_imports import load_when_used
from starlingmq.cli.serve_options import read as read_serve_options
from starlingmq.cli.version import version_line

COMPLETION: Final = "_STARLINGMQ_COMPLETE"  # set by a shell that requests completions
INTERRUPTED: Final = 130
IMPORTED_MAX: Final = 100_000
"""Objects between two looks for reference cycles: a start makes fewer, and hardly any cycles."""


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line (None: that of the process) and return its exit code."""
    args = list(sys.argv[1:] if args is None else args)
    if args == ["--version"]:  # before typer is loaded, which takes longer than the rest
        print(version_line())
        return 0
    try:
        return _run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it; the flush at exit must not report that again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUR_ERROR
    except Exception as error:
        if "--debug" in args:
            traceback.print_exc()
        message, code = explain(error)
        if message:  # none for a command group without a command: its help was printed
            print(f"error: {message}", file=sys.stderr)
        return code


def _run(args: list[str]) -> int:
    if args[:1] == ["serve"] and (options := read_serve_options(args[1:])) is not None and COMPLETION not in os.environ:
        gc.set_threshold(IMPORTED_MAX)
        # protobuf has its messages in C and imports those in Python beside them: half of the time that it takes to load
        load_when_used("ssl", "asyncio.sslproto", "google.protobuf.internal.python_message")
        from starlingmq.cli.serve import run as serve

        serve(options)
        return 0
    from starlingmq.cli.app import run  # imports typer and the command's modules

    return run(args)
