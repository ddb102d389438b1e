"""Only the user of the broker has access to stored data: directories 0700, files 0600, whatever an earlier process
left.

| owner of the directory | result |
|---|---|
| the user of this process | group and others lose all access, here and below |
| root, if no other user may write to it (a volume of Kubernetes) | the same, below |
| another user | refused |
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

FOREIGN: Final = frozenset(["lost+found"])  # belongs to the file system
OTHERS: Final = 0o077


class NotPrivate(Exception):
    """One line: the owner, and what to do."""


def refuse_foreign(root: Path) -> None:
    """Raises NotPrivate for a directory of another user."""
    found = os.stat(root)
    us = os.geteuid()
    if found.st_uid != us and (found.st_uid != 0 or found.st_mode & stat.S_IWOTH):
        raise NotPrivate(_refusal(root, found.st_uid, us, root))


def make_private(root: Path) -> int:
    """Remove the access of group and others. Returns the number of directories and files that were changed. Files may
    be deleted meanwhile: a copy of another node's data is being received below.

    Raises NotPrivate, or OSError if the file system fails.
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
    """Links are followed, since parts of a data directory may be on another disk. A directory precedes its entries."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name in FOREIGN or not (entry.is_dir() or entry.is_file()):
                continue
            with suppress(FileNotFoundError):
                found = entry.stat()
                yield Path(entry.path), found
                if entry.is_dir() and (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    yield from _below(Path(entry.path), seen)


def _narrow(path: Path, mode: int) -> int:
    if not mode & OTHERS:
        return 0
    try:
        os.chmod(path, stat.S_IMODE(mode) & ~OTHERS)
    except FileNotFoundError:
        return 0
    return 1


def _refusal(path: Path, owner: int, us: int, root: Path) -> str:
    return (
        f"{path} belongs to user {owner}, but this process runs as user {us}; run it as user {owner}, or "
        f"change the owner of the directory (chown -R {us} {root})"
    )
