"""Runs the .py files of this package although compiled modules lie beside them, or are moved there later.

This happens with STARLINGMQ_PURE=1, and in a process that began before all compiled modules existed. Python prefers an
extension module to a source file of the same name. A finder before the usual ones answers for this package alone, and
knows source files only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final

PACKAGE: Final = __package__ or "starlingmq"


@cache
def _finder(directory: str) -> FileFinder:
    """It remembers the files of its directory as long as that does not change."""
    return FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES))


class SourceOnlyFinder:
    """A meta path finder for the submodules of PACKAGE that sees only their source files."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{PACKAGE}."):
            return None
        for directory in path or ():
            spec = _finder(directory).find_spec(name)
            # A spec without a loader is a directory without __init__.py, which the usual finders handle.
            if spec is not None and spec.loader is not None:
                return spec
        return None


def install() -> None:
    """Put the finder first, once."""
    if SourceOnlyFinder not in sys.meta_path:
        sys.meta_path.insert(0, SourceOnlyFinder)
