"""Small files in the data directory that survive a restart."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import MsgspecError, json

from starlingmq.storage.maintenance.file_copy import sync_directory

log = logging.getLogger("starlingmq.admin")

T = TypeVar("T")


class EntriesFile(Generic[T]):
    """A list in JSON. ``what``: for the log, such as "bans". ``path`` None: nothing is stored."""

    def __init__(self, what: str, path: Path | None, kind: type[T]) -> None:
        self._what = what
        self._path = path
        self._kind = kind
        self._writing = asyncio.Lock()

    def read(self) -> list[T]:
        """Empty, too, for a file that cannot be read: the log has an ERROR."""
        if self._path is None:
            return []
        try:
            return json.decode(self._path.read_bytes(), type=list[self._kind])  # type: ignore[name-defined]
        except FileNotFoundError:
            return []
        except (OSError, MsgspecError) as error:
            log.error("stored %s cannot be read and are ignored: %s: %s", self._what, self._path, error)
            return []

    async def write(self, entries: Sequence[T]) -> None:
        if self._path is None:
            return
        async with self._writing:
            try:
                await asyncio.to_thread(replace, self._path, json.encode(entries))
            except OSError as error:
                lost = "cannot be stored and will be forgotten at the next restart"
                log.error("%s %s: %s: %s", self._what, lost, self._path, error.strerror)


def replace(path: Path, data: bytes) -> None:
    """Replace the file atomically: afterwards the new one is on the disk. Blocks; raises OSError."""
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)
