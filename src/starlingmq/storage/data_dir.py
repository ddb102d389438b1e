"""A data directory: its owner, the settings it was created with, and a lock that admits one process.

    LAYOUT     ``starlingmq data layout 2``, then the facts of its creation, as lines ``key: value``
    LOCK       held by flock while a process works here; contains the id of that process
    kv/        the key-value store
    journal/   the journal
    streams/   the logs of streams (docs/STREAMS.md); created with the first stream
    passwords  the password file, if ``auth.password.file`` names it, as in the image and the packages
    bans.json  the bans that operators made; streams.json the stream definitions for all nodes; streams.token
    access.json  the users and rules that operators made at a broker without a cluster; links.json the paused links

Only the user of the broker has access to all of it (``storage.private_files``).

LAYOUT is written before everything else. So if a directory has only LAYOUT and LOCK, and LAYOUT is unreadable, a crash
interrupted its creation, and LAYOUT is written again. Beside data, LAYOUT is changed only by ``upgrade``.

Layouts (docs/UPGRADES.md):

    1   of 0.1.0. Sessions have no owner, users and other fields are missing; all of it is read.
    2   of 0.2.0. A broker writes this number before its first write to a directory of layout 1, because 0.1.0 would
        leave out the new fields: it refuses the directory by this number.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from starlingmq.storage.maintenance.file_copy import sync_directory
from starlingmq.storage.private_files import NotPrivate, make_private, open_to_owner, refuse_foreign

Result = TypeVar("Result")

LAYOUT: Final = 2
OLDEST: Final = 1  # layout that is read
_TITLE: Final = "starlingmq data layout "
PASSWORDS: Final = "passwords"  # the image has its password file here, created before anything else exists,
ACCESS: Final = "access.json"  # as the operator is that the first start in a terminal offers to make
# The last: a file system of its own.
_NO_DATA: Final = frozenset(["LAYOUT", "LAYOUT.new", "LOCK", PASSWORDS, ACCESS, "lost+found"])

STAGE_PREFIX: Final = "stage-"
"""Directories that a backup uses inside the data directory; leftovers are removed when the data directory is opened."""


ASIDE_PREFIX: Final = "aside-"
"""Directories inside the data directory with data that was set aside (``set_aside``)."""

STATE_FILES: Final = (PASSWORDS, ACCESS, "bans.json", "links.json", "streams.json", "streams.token")
"""Small files beside the data that a backup contains. Each is replaced atomically."""

_DATA: Final = ("COPY", "kv.next", "kv.whole", "kv", "streams", "journal")


class DataDirError(Exception):
    """The directory is unusable as it is. One line for the operator: what is wrong, and what to do."""


class DataDir:
    """An open data directory, locked until ``close``.

    ``decided``: settings that are fixed once there is data, such as ``{"journal": "segment"}``, by their names below
    ``storage``. A directory that was created with other values is refused. ``facts``: the values recorded at creation:
    ``decided`` and ``remember``.

    Raises DataDirError, or OSError if the file system fails.
    """

    def __init__(self, path: Path, decided: Mapping[str, str], remember: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._lock = _open_locked(path)
        try:
            self.narrowed = _private(make_private, path)  # number of files and directories to which others had access
            self.layout = LAYOUT
            self.facts = self._read_or_create({**decided, **(remember or {})}, decided)
            self._check_decided(decided)
            self._tidy()
        except BaseException:
            self.close()
            raise

    @property
    def kv(self) -> Path:
        return self.path / "kv"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def streams(self) -> Path:
        return self.path / "streams"

    def upgrade(self) -> bool:
        """Give a directory of an earlier layout the current number, durably: versions of that layout refuse it from now
        on. Whether that was necessary. Call it before anything is written."""
        if self.layout == LAYOUT:
            return False
        write_layout(self.path, self.facts)
        self.layout = LAYOUT
        return True

    def close(self) -> None:
        """Release the lock. May be called again."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _read_or_create(self, facts: Mapping[str, str], decided: Mapping[str, str]) -> dict[str, str]:
        try:
            text = (self.path / "LAYOUT").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            text = ""
        found = read_layout(text, self.path)
        if found is not None and decided.keys() <= found.keys():
            self.layout = int(text.partition("\n")[0].removeprefix(_TITLE))
            return found
        if _has_data(self.path):
            raise DataDirError(f"{self.path}: LAYOUT is missing or damaged; restore the directory from a backup")
        write_layout(self.path, facts)
        return dict(facts)

    def _check_decided(self, decided: Mapping[str, str]) -> None:
        for key, wanted in decided.items():
            made_with = self.facts[key]
            if made_with != wanted:
                raise DataDirError(
                    f"{self.path} was created with storage.{key}: {made_with}, but the settings say "
                    f"{wanted}; set storage.{key}: {made_with}, or use another directory"
                )

    def _tidy(self) -> None:
        for left_over in self.path.glob(STAGE_PREFIX + "*"):
            shutil.rmtree(left_over)


def read_layout(text: str, path: Path) -> dict[str, str] | None:
    """The facts in the text of LAYOUT; None if it is incomplete. DataDirError for an unknown layout."""
    title, newline, rest = text.partition("\n")
    if not newline or not title.startswith(_TITLE):
        return None
    version = title.removeprefix(_TITLE)
    if version not in map(str, range(OLDEST, LAYOUT + 1)):
        raise DataDirError(
            f"{path} has data layout {version}, but this version of starlingmq supports layouts {OLDEST} to {LAYOUT} "
            "only; use the version that wrote it, or another directory"
        )
    if rest and not rest.endswith("\n"):
        return None
    pairs = (line.partition(": ") for line in rest.splitlines())
    return {key: value for key, _, value in pairs}


def layout_text(facts: Mapping[str, str]) -> str:
    return f"{_TITLE}{LAYOUT}\n" + "".join(f"{key}: {value}\n" for key, value in facts.items())


def write_layout(path: Path, facts: Mapping[str, str]) -> None:
    """Write LAYOUT, durably and atomically."""
    new = path / "LAYOUT.new"
    with open(new, "w", encoding="utf-8") as file:
        file.write(layout_text(facts))
        file.flush()
        os.fsync(file.fileno())
    new.rename(path / "LAYOUT")
    sync_directory(path)


def set_aside(path: Path) -> Path | None:
    """Move the data of a directory that no process has open into a directory of its own inside; None: there is none. If
    it is interrupted, the next call completes it. Raises OSError."""
    there = [path / name for name in _DATA if (path / name).exists()]
    if not there:
        return None
    number = 1
    while (path / f"{ASIDE_PREFIX}{number}" / _DATA[-1]).exists():
        number += 1
    aside = path / f"{ASIDE_PREFIX}{number}"
    aside.mkdir(mode=0o700, exist_ok=True)
    for each in there:
        os.rename(each, aside / each.name)
    sync_directory(aside)
    sync_directory(path)
    return aside


def _has_data(path: Path) -> bool:
    return any(entry.name not in _NO_DATA for entry in path.iterdir())


def _has_only_etcd(path: Path) -> bool:
    return [entry.name for entry in path.iterdir() if entry.name not in _NO_DATA] == ["etcd"]


def _private(what: Callable[[Path], Result], path: Path) -> Result:
    try:
        return what(path)
    except NotPrivate as error:
        raise DataDirError(str(error)) from None


def _open_locked(path: Path) -> int:
    """Create the directory if necessary, and lock it. Returns the descriptor that holds the lock."""
    if path.is_dir() and not _is_readable(path):
        _private(refuse_foreign, path)
        open_to_owner(path)
    if not path.is_dir():
        try:
            path.mkdir(mode=0o700, parents=True)
        except (FileExistsError, NotADirectoryError):
            if not path.is_dir():  # another process has not made it meanwhile
                detail = f"node.data_dir: {path} is no directory, or is below a file; name a directory"
                raise DataDirError(detail) from None
        sync_directory(path.parent)
    elif not (path / "LAYOUT").exists() and _has_only_etcd(path):
        raise DataDirError(
            f"{path} has lost everything but etcd/; restore it, or delete etcd/, too, so that the node begins with an "
            "empty disk (with cluster.copies it gets its data back)"
        )
    elif not (path / "LAYOUT").exists() and _has_data(path):
        raise DataDirError(f"{path} is not empty and is not a data directory; use a new or empty directory")
    else:
        _private(refuse_foreign, path)
        open_to_owner(path)
    lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise DataDirError(
            f"{path} is in use by another process (pid {holder}); stop it, or use another directory"
        ) from None
    except OSError as error:
        os.close(lock)
        raise OSError(error.errno, f"cannot be locked: {error.strerror}", str(path)) from None
    os.ftruncate(lock, 0)
    os.write(lock, b"%d\n" % os.getpid())
    return lock


def refuse_unusable(path: Path) -> None:
    """Raises DataDirError for a data directory of another user, before anything is written to it. A directory with
    other content is left to ``DataDir``: its owner must not be changed."""
    if path.is_dir() and (not _is_readable(path) or (path / "LAYOUT").exists() or not _has_data(path)):
        _private(refuse_foreign, path)


def _is_readable(path: Path) -> bool:
    return os.access(path, os.R_OK | os.X_OK)
