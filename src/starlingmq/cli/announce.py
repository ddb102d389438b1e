"""Where a running broker announces its control socket, so that ``ctl`` finds it without being told the directory.

``serve`` writes a file ``PID.json`` with the name and the data directory of the broker, and removes it at the end. The
files are in a directory of the user, which no other user may read or write: ``$XDG_RUNTIME_DIR/starlingmq``, or
``/tmp/starlingmq-UID``; under systemd it is the unit's runtime directory. Root and the user of the service also look
into ``/run/starlingmq``.

An announcement gives no rights: the control socket asks for the user (net/control_socket.py). One of a process that was
killed is recognized, because no process listens at its socket.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from starlingmq.net.control_path import NAME, reachable

SYSTEM: Final = Path("/run/starlingmq")
SIZE_MAX: Final = 65_536  # bytes of an announcement; a path of 4096 bytes takes up to 24,576
FILES_MAX: Final = 1000


class RunningBroker(NamedTuple):
    name: str
    directory: Path
    process: int


@contextmanager
def announced(name: str, data_dir: str | None) -> Iterator[None]:
    """While the block lasts, others find this broker. Without a data directory there is no control socket."""
    path = None if data_dir is None else _write(name, Path(data_dir).absolute())
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def running() -> list[RunningBroker]:
    """The brokers of this user that answer."""
    found: dict[Path, RunningBroker] = {}
    for directory in _directories():
        if not _is_private(directory):
            continue
        for path in sorted(directory.glob("*.json"))[:FILES_MAX]:
            broker = _read(path)
            if broker is not None and _answers(broker.directory):
                found.setdefault(broker.directory, broker)
    return sorted(found.values())


def _write(name: str, data_dir: Path) -> Path | None:
    """None if there is no place for it; then commands need ``--data-dir``."""
    directory = _directories()[0]
    text = json.dumps({"name": name, "directory": str(data_dir)})
    with suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(directory):
            return None
        path = directory / f"{os.getpid()}.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(text)
        return path
    return None


def _directories() -> list[Path]:
    """The first one is that of this process."""
    user = os.geteuid()
    named = [os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]]
    home = os.environ.get("XDG_RUNTIME_DIR", "")
    # every user may write to /tmp, so _is_private checks the owner of the directory
    shared = f"/tmp/starlingmq-{user}"  # noqa: S108  # nosec B108
    named.append(f"{home}/starlingmq" if home else shared)
    directories = [Path(name) for name in named if name]
    return [*directories, SYSTEM] if os.access(SYSTEM, os.R_OK | os.X_OK) else directories


def _is_private(directory: Path) -> bool:
    """Whether only this user, or for root the user of a service, can have written there."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    trusted = found.st_uid == os.geteuid() or directory == SYSTEM
    return stat.S_ISDIR(found.st_mode) and trusted and not found.st_mode & 0o022


def _read(path: Path) -> RunningBroker | None:
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(SIZE_MAX))
        return RunningBroker(str(told["name"]), Path(told["directory"]), int(path.stem))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _answers(directory: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with reachable(directory / NAME) as path:
                connection.connect(path)
        except OSError:
            return False
    return True
