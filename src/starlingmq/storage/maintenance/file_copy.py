"""Transfer of a file to another place, synced, with its CRC and with progress reports."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 20
DRAFT: Final = ".partial"

Progress = Callable[[int, int], None]
"""Called after each chunk, in the working thread, with the bytes done and the total. If it raises, the work ends."""

_NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


class CopySteps:
    """The progress of the work. ``total`` is in bytes."""

    __slots__ = ("_done", "_progress", "total")

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = total
        self._done = 0
        self._progress = progress

    def done(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self.total)


def copy(source: Path, target: Path, size: int, steps: CopySteps) -> int:
    """Copy the first ``size`` bytes and fsync them. Returns their CRC-32. OSError (EIO) if the file is shorter."""
    crc, left = 0, size
    with open(source, "rb") as reader, open(target, "xb", opener=_ours_alone) as writer:
        while left:
            chunk = reader.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise OSError(errno.EIO, f"ends {left} bytes too early", str(source))
            writer.write(chunk)
            crc = zlib.crc32(chunk, crc)
            left -= len(chunk)
            steps.done(len(chunk))
        writer.flush()
        os.fsync(writer.fileno())
    return crc


def _ours_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def link(source: Path, target: Path, size: int, steps: CopySteps) -> int:
    """The same for a whole file that will not change, by a hard link where the file system allows it."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return copy(source, target, size, steps)
    crc = 0
    with open(target, "rb") as reader:
        while chunk := reader.read(CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
            steps.done(len(chunk))
        os.fsync(reader.fileno())
    return crc


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power failure."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def draft_of(target: Path) -> Path:
    """The path where a directory that will become ``target`` is prepared: beside it, or inside it if it exists, because
    it may be a file system of its own. Removes what an interrupted attempt left there."""
    draft = target / DRAFT if target.is_dir() else target.with_name(target.name + DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)
    return draft


def is_free(target: Path) -> bool:
    """Whether nothing exists there, or an empty directory."""
    return not target.exists() or (target.is_dir() and not {*os.listdir(target)} - {DRAFT, "lost+found"})


def put_in_place(draft: Path, target: Path, last: str) -> None:
    """Give a complete directory its name, durably. If that takes several steps, the file ``last`` is moved last: a
    directory without it is incomplete."""
    for directory, _, _ in os.walk(draft):
        sync_directory(Path(directory))
    if draft.parent != target:
        draft.rename(target)
        sync_directory(target.parent)
        return
    for name in sorted({*os.listdir(draft)} - {last}):
        (draft / name).rename(target / name)
    sync_directory(target)
    (draft / last).rename(target / last)
    draft.rmdir()
    sync_directory(target)
