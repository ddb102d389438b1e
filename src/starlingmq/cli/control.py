"""Requests to a data directory: sent to the broker that serves it, or executed here if none is running."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Awaitable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from starlingmq.cli.announce import running
from starlingmq.cli.declare import CommandError
from starlingmq.cli.progress import Report
from starlingmq.cli.remote import ANSWER_SECONDS, NoAnswer, Unreachable, ask_url, is_url
from starlingmq.net.control_path import NAME, reachable

DataDirOption = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        "--url",
        metavar="DIR|URL",
        help="Data directory of the broker, or URL of its HTTP API. Default: the broker that runs here.",
    ),
]
FileOption = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file that contains node.data_dir.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


WAITING: Final = frozenset(
    [
        *(f"cluster.{name}" for name in ("drain", "forget", "give_up", "leave", "rebalance")),
        "storage.check",
        "storage.compact",
        "backup",
    ]
)
"""Actions that may take any time."""

BrokerAddress = Path | str
"""The data directory of a broker, or the URL of its HTTP API."""


def broker_address(data_dir: str | None, config: str | None) -> BrokerAddress:
    """The URL, or what ``directory_of`` returns."""
    if data_dir is not None and is_url(data_dir):
        return data_dir
    return directory_of(data_dir, config)


def directory_of(data_dir: str | None, config: str | None) -> Path:
    """Return the data directory that the options, the settings or the environment name; otherwise that of the one
    broker that runs here. Raises CommandError if there is none, or more than one.
    """
    if data_dir is not None and is_url(data_dir):
        raise CommandError("this command needs a data directory (--data-dir DIR) on this machine, not a URL")
    named = data_dir or _set_directory(config)
    if named is not None:
        return Path(named).absolute()
    found = running()
    if not found:
        raise CommandError(
            "no broker with a data directory is running here; give --data-dir DIR, -c FILE with node.data_dir, or "
            "--url URL of its HTTP API"
        )
    if len(found) > 1:
        print(f"{len(found)} brokers are running here:", file=sys.stderr)
        for one in found:
            print(
                f"  --data-dir {shlex.quote(str(one.directory))}   ({one.name}, process {one.process})", file=sys.stderr
            )
        raise CommandError("choose one of them with --data-dir DIR")
    return found[0].directory


def _set_directory(config: str | None) -> str | None:
    """That of the settings. They take long to load, and without these sources of node.data_dir it has no value."""
    if config is None and not any(name.startswith("STARLINGMQ_NODE") for name in os.environ):
        return None
    from starlingmq.config.settings import load_config

    return load_config(config, (), os.environ).node.data_dir


def ask(directory: BrokerAddress, action: str, arguments: dict[str, str], report: Report) -> dict[str, Any]:
    """Execute an action and return its result. Raises CommandError if the broker refuses, and errors of the storage."""
    if isinstance(directory, str):
        return ask_url(directory, action, arguments)
    connection = _connect(directory, _patience(action, ANSWER_SECONDS))
    if connection is None:
        import asyncio  # late: it takes as long as the rest of a command

        from starlingmq.storage.maintenance.offline import actions

        return asyncio.run(_done(actions(directory)[action](report, arguments)))
    return _ask(connection, directory, action, arguments, report)


def ask_broker(
    directory: BrokerAddress,
    action: str,
    arguments: dict[str, str],
    report: Report,
    seconds: float = ANSWER_SECONDS,
) -> dict[str, Any]:
    """Execute an action that needs a running broker, which must answer or report progress within ``seconds`` if the
    action does not wait for something. Raises CommandError also if no broker is running."""
    if isinstance(directory, str):
        return ask_url(directory, action, arguments, seconds)
    connection = _connect(directory, _patience(action, seconds))
    if connection is None:
        worker = directory / "worker-1"
        other = f"that of a worker, such as {worker}" if worker.is_dir() else "the directory of a running one"
        raise Unreachable(f"{directory}: no broker is running there; start it, or give {other}")
    return _ask(connection, directory, action, arguments, report)


def _ask(
    connection: socket.socket, directory: Path, action: str, arguments: dict[str, str], report: Report
) -> dict[str, Any]:
    with closing(connection):
        request = {"action": action, "arguments": arguments}
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answers:
                return _result(answers, directory, report)
        except TimeoutError:
            raise NoAnswer(str(directory), connection.gettimeout() or 0.0) from None


def _result(answers: Iterable[bytes], directory: Path, report: Report) -> dict[str, Any]:
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


def _patience(action: str, seconds: float) -> float | None:
    return None if action in WAITING else seconds


async def _done(action: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    return await action


def _connect(directory: Path, seconds: float | None) -> socket.socket | None:
    """Connect to the broker of the directory; None if none is running. ``seconds`` is the timeout of the socket."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        with reachable(directory / NAME) as path:
            connection.connect(path)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        connection.close()
        return None
    except BlockingIOError:
        connection.close()
        raise CommandError(
            f"the broker at {directory} does not answer, and many requests wait; see whether its process runs"
        ) from None
    except OSError as error:
        connection.close()
        raise OSError(error.errno, error.strerror, str(directory / NAME)) from None
    return connection
