"""The results of compiling, by the digest of their inputs, for all checkouts of a user: ``$XDG_CACHE_HOME/starlingmq``.

``libraries/DIGEST/`` is the result of a build, ``objects/DIGEST.o`` one of its object files. Both appear under their
name in one step, so each of them is complete. A build removes those that were not used for a week.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

KEPT_SECONDS: Final = 7 * 24 * 3600.0
OBJECTS: Final = "STARLINGMQ_OBJECTS"
"""The variable of the environment that tells ``setup.py`` where the object files are kept."""

PROGRESS: Final = "STARLINGMQ_PROGRESS"
"""The variable that tells ``setup.py`` to say how far it is."""


class Cache:
    """``instead``: its directory where the user has no cache that can be written."""

    def __init__(self, instead: Path) -> None:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "starlingmq")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryDirectory(dir=directory).cleanup()
        except OSError:
            directory = instead
        self.objects = directory / "objects"
        self._libraries = directory / "libraries"
        self.objects.mkdir(parents=True, exist_ok=True)
        self._libraries.mkdir(exist_ok=True)

    def copy(self, digest: str, target: Path) -> bool:
        """Copy the result of a build. Returns whether it is kept."""
        found = self._libraries / digest
        if not found.is_dir():
            return False
        os.utime(found)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(found, target)
        return True

    def keep(self, digest: str, built: Path) -> None:
        """Keep the result of a build, and remove what is not used any more."""
        target = self._libraries / digest
        with tempfile.TemporaryDirectory(dir=self._libraries) as scratch:
            copied = Path(scratch, digest)
            if not target.exists():
                shutil.copytree(built, copied)
                copied.rename(target)
        self._remove_unused()

    def _remove_unused(self) -> None:
        since = time.time() - KEPT_SECONDS
        for path in (*self._libraries.iterdir(), *self.objects.glob("*.o")):
            if path.stat().st_mtime < since:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
