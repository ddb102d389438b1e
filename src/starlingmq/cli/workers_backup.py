"""Backup of the data directory of ``serve --workers``: each worker's, and the keys that a cluster keeps in etcd.

    worker-1 worker-2 ...       a backup each
    local-etcd/keys.sqlite      written last: without it the backup is not whole

The keys are the newer part, as where a worker was down for a while.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from starlingmq.cli.control import ask
from starlingmq.cli.declare import CommandError
from starlingmq.cli.progress import Report
from starlingmq.net.local_etcd import DIRECTORY, FILE

KEYS: Final = Path(DIRECTORY, FILE)


def workers_in(directory: Path) -> list[Path]:
    """Return the directories of the workers, or backups of them; none in the data directory of one broker. Raises
    CommandError if both are there.
    """
    found = sorted(each for each in directory.glob("worker-*") if (each / "LAYOUT").exists())
    if found and (directory / "LAYOUT").exists():
        raise CommandError(f"{directory} has the data of one broker and that of workers; move one of them away")
    return found


def backup_workers(directory: Path, target: Path, report: Report) -> Mapping[str, Any]:
    """Return what a backup of one broker returns. Raises CommandError."""
    if not (directory / KEYS).exists():
        raise CommandError(
            f"{directory}: its workers use etcd: back up {directory}/worker-1 and so on one by one, and etcd with its "
            "own tools"
        )
    _make_empty(target)
    began, size = time.monotonic(), 0
    for worker in workers_in(directory):
        size += ask(worker, "backup", {"target": str(target / worker.name)}, report)["bytes"]
    size += _copy_keys(directory, target)
    return {"target": str(target), "bytes": size, "seconds": time.monotonic() - began}


def restore_workers(source: Path, target: Path, report: Report) -> int:
    """Return the size in bytes. Raises CommandError, and BackupError for a damaged backup."""
    from starlingmq.storage.maintenance.data_dir_backup import restore

    if not (source / KEYS).exists():
        raise CommandError(f"{source}: the backup is not whole: {KEYS} is missing; use another backup")
    _make_empty(target)
    size = 0
    for worker in workers_in(source):
        size += restore(worker, target / worker.name, lambda done, total: report("copying", done, total, "bytes"))
    return size + _copy_keys(source, target)


def _make_empty(target: Path) -> None:
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise CommandError(f"{target} is not empty; use a new or empty directory")


def _copy_keys(source: Path, target: Path) -> int:
    """As of one moment, also while workers run."""
    copied = target / KEYS
    copied.parent.mkdir(mode=0o700)
    copied.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(source / KEYS)) as keys, closing(sqlite3.connect(copied)) as copy:
            keys.backup(copy)
    except sqlite3.Error as error:
        raise CommandError(f"{source / KEYS}: {error}") from None
    return copied.stat().st_size
