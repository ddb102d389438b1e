"""The file INCARNATIONS of a data directory: under which incarnations of its node it was used.

etcd notes for each node in step the incarnation in which its copy was last known to be whole
(``cluster.copies.copy_record``). A disk on which that incarnation is not listed is another disk, or an earlier state of
it, so its copies do not count. The law: an incarnation is listed, durably, before anything is stored under it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from starlingmq.storage.maintenance.file_copy import sync_directory

FILE: Final = "INCARNATIONS"


def read_incarnations(directory: Path) -> list[int]:
    """Empty if there is no such file, or it is damaged: then all copies are received again. Raises OSError."""
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=list[int])
    except (FileNotFoundError, msgspec.MsgspecError):
        return []


def write_incarnations(directory: Path, incarnations: Collection[int]) -> None:
    """Durably and atomically. Raises OSError."""
    new = directory / f"{FILE}.new"
    with open(new, "wb") as file:
        file.write(msgspec.json.encode(sorted(incarnations)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, directory / FILE)
    sync_directory(directory)
