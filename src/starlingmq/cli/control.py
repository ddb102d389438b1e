"""Requests to a data directory: sent to the broker that serves it, or executed here if none is running."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from starlingmq.cli.declare import CommandError
from starlingmq.config.settings import load_config
from starlingmq.net.control_socket import NAME, reachable

Report = Callable[[str, int, int, str], None]

DataDirOption = Annotated[str | None, typer.Option("--data-dir", metavar="DIR", help="Data directory of the broker.")]
FileOption = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file that contains node.data_dir.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def directory_of(data_dir: str | None, config: str | None) -> Path:
    """Return the data directory that the options, the settings or the environment name. Raises CommandError if none
    does.
    """
    named = data_dir or load_config(config, (), os.environ).node.data_dir
    if named is None:
        raise CommandError(
            "no data directory given; use --data-dir DIR, -c FILE with node.data_dir, or STARLINGMQ_NODE__DATA_DIR"
        )
    return Path(named).absolute()


def ask(directory: Path, action: str, arguments: dict[str, str], report: Report) -> dict[str, Any]:
    """Execute an action and return its result. Raises CommandError if the broker refuses, and errors of the storage."""
    connection = _connect(directory)
    if connection is None:
        from starlingmq.storage.maintenance.offline import actions  # late: it loads the engines

        return asyncio.run(_done(actions(directory)[action](report, arguments)))
    return _ask(connection, directory, action, arguments, report)


def ask_broker(directory: Path, action: str, arguments: dict[str, str], report: Report) -> dict[str, Any]:
    """Execute an action that needs a running broker. Raises CommandError also if none is running."""
    connection = _connect(directory)
    if connection is None:
        raise CommandError(f"{directory}: no broker is running there; start it, or give the directory of a running one")
    return _ask(connection, directory, action, arguments, report)


def _ask(
    connection: socket.socket, directory: Path, action: str, arguments: dict[str, str], report: Report
) -> dict[str, Any]:
    with closing(connection):
        request = {"action": action, "arguments": arguments}
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answers:
            for line in answers:
                answer = json.loads(line)
                if "result" in answer:
                    result: dict[str, Any] = answer["result"]
                    return result
                if "error" in answer:
                    raise CommandError(answer["error"])
                progress = answer["progress"]
                report(progress["what"], progress["done"], progress["total"], progress["unit"])
    raise CommandError(f"{directory}: the broker stopped before it answered")


async def _done(action: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    return await action


def _connect(directory: Path) -> socket.socket | None:
    """Connect to the broker of the directory; None if none is running."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(directory / NAME) as path:
            connection.connect(path)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise OSError(error.errno, error.strerror, str(directory / NAME)) from None
    return connection
