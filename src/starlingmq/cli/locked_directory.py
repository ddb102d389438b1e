"""Temporary directories that are removed even if their process is killed: by the next process that makes one.

The owner holds flock(2) on the directory; the lock ends with the process, whatever ends it. A process that gets the
lock of another's directory removes it. Between ``mkdtemp`` and the lock, a new directory looks abandoned: its maker
checks afterwards that it is still there, and otherwise makes another one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, Self

ATTEMPTS_MAX: Final = 5


class LockedDirectory:
    """A private directory below the system's temporary directory. ``prefix`` of its name: directories of other users,
    or with other names, are never touched."""

    def __init__(self, prefix: str) -> None:
        self.path = ""
        self._prefix = prefix
        self._lock: int | None = None

    def __enter__(self) -> Self:
        remove_abandoned(self._prefix)
        for _ in range(ATTEMPTS_MAX):  # without flock(2) there, the directory is used all the same
            self.path = tempfile.mkdtemp(prefix=self._prefix)
            self._lock = _locked(self.path)
            if self._lock is not None:
                break
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._let_go()

    def restore(self) -> None:
        """Create it again if it was removed, as a cleaner of temporary files does. Raises OSError."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        if self._lock is None or not _is_at(self._lock, self.path):
            self._let_go()
            self._lock = _locked(self.path)

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_abandoned(prefix: str) -> None:
    """Remove this user's directories with that prefix whose processes have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        lock = _locked(str(path))
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: str) -> int | None:
    """A descriptor with the lock of a directory; None if another process has it, or it is not a directory of this
    user."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
    except OSError:
        pass  # locked by another process
    os.close(descriptor)
    return None


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
