"""Only the user of the broker has access to stored data: directories 0700, files 0600, whatever an earlier process
left.

| owner of the directory | result |
|---|---|
| the user of this process | group and others lose all access, here and below; directories become 0700 |
| root, if this user, but not every user, may write to it (a volume of Kubernetes) | the same, below |
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
OWNER: Final = 0o700


class NotPrivate(Exception):
    """One line: the owner, and what to do."""


def refuse_foreign(root: Path) -> None:
    """Raises NotPrivate for a directory of another user."""
    found = os.stat(root)
    us = os.geteuid()
    if found.st_uid == us:
        return
    usable = os.access(root, os.R_OK | os.W_OK | os.X_OK)
    if found.st_uid != 0 or found.st_mode & stat.S_IWOTH or not usable:
        raise NotPrivate(refusal(root, found.st_uid, us, root))


def open_to_owner(root: Path) -> None:
    """Let the owner, if it is the user of this process, work in the directory, whatever its mode."""
    found = os.stat(root)
    if found.st_uid == os.geteuid() and found.st_mode & OWNER != OWNER:
        os.chmod(root, stat.S_IMODE(found.st_mode) | OWNER)


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
            raise NotPrivate(refusal(path, one.st_uid, us, root))
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
    wanted = mode & ~OTHERS | (OWNER if stat.S_ISDIR(mode) else 0)
    if wanted == mode:
        return 0
    try:
        os.chmod(path, stat.S_IMODE(wanted))
    except FileNotFoundError:
        return 0
    return 1 if mode & OTHERS else 0


def refusal(path: Path, owner: int, us: int, root: Path) -> str:
    """One line about a file or directory of another user below ``root``, and what to do."""
    said = f"{path} belongs to user {user_name(owner)}, but this process runs as user {user_name(us)}; "
    change = f"change the owner of the directory (chown -R {user_name(us)} {root})"
    if us == 0:  # a broker of the owner could not use what root leaves there
        return f"{said}run it as that user ({run_as(owner)} starlingmq ...)"
    return f"{said}{change}" if owner == 0 else f"{said}run it as user {user_name(owner)}, or {change}"


def run_as(user: int) -> str:
    """The beginning of a command line with which root runs something as that user."""
    name = user_name(user)
    if name == str(user):  # runuser wants a name
        return f"setpriv --reuid={user} --clear-groups"
    return f"runuser -u {name} --"


def user_name(user: int) -> str:
    """The number of a user without a name."""
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
