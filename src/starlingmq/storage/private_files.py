"""What is kept is for the user of the broker alone: directories 0700, files 0600, whatever an earlier life left.

| owner of the directory | result |
|---|---|
| the user of this process | group and others lose all access, here and below |
| root, and nobody else may write to it (a volume of Kubernetes) | the same, below |
| anybody else | refused |
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOREIGN: Final = frozenset(["lost+found"])  # the file system's own
OTHERS: Final = 0o077


class NotPrivate(Exception):
    """One line: whose it is, and what to do."""


def refuse_foreign(root: Path) -> None:
    """Raises NotPrivate for a directory of somebody else."""
    found = os.stat(root)
    us = os.geteuid()
    if found.st_uid != us and (found.st_uid != 0 or found.st_mode & stat.S_IWOTH):
        raise NotPrivate(_refusal(root, found.st_uid, us, root))


def make_private(root: Path) -> int:
    """Take access from group and others. How many directories and files had to be changed.

    Raises NotPrivate, or OSError where the file system refuses.
    """
    refuse_foreign(root)
    found = os.stat(root)
    us = os.geteuid()
    changed = _narrow(root, found.st_mode) if found.st_uid == us else 0
    for path, one in _below(root, {(found.st_dev, found.st_ino)}):
        if one.st_uid != us:
            raise NotPrivate(_refusal(path, one.st_uid, us, root))
        changed += _narrow(path, one.st_mode)
    return changed


def _below(directory: Path, seen: set[tuple[int, int]]) -> Iterator[tuple[Path, os.stat_result]]:
    """Links are followed: parts of a data directory may be on another disk. A directory comes before its entries."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name in FOREIGN or not (entry.is_dir() or entry.is_file()):
                continue
            found = entry.stat()
            yield Path(entry.path), found
            if entry.is_dir() and (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                yield from _below(Path(entry.path), seen)


def _narrow(path: Path, mode: int) -> int:
    if not mode & OTHERS:
        return 0
    os.chmod(path, stat.S_IMODE(mode) & ~OTHERS)
    return 1


def _refusal(path: Path, owner: int, us: int, root: Path) -> str:
    return (
        f"{path} belongs to user {owner}, but this process runs as user {us}; run it as user {owner}, or "
        f"change the owner of the directory (chown -R {us} {root})"
    )
