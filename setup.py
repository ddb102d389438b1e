"""Builds the hot modules (compiling/modules.py lists them) into machine code with mypyc; the rest is in pyproject.toml.

Without a C compiler, or when compiling fails, the package is built as plain Python: the same files, run interpreted.

STARLINGMQ_PURE=1      do not compile.
STARLINGMQ_COMPILE=1   compile or fail; for those who must know that they measure and test the compiled modules.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).resolve().parent))  # pip runs this file without it

from compiling.build_side_by_side import BuildSideBySide
from compiling.extensions import NotCompiled, extensions
from compiling.requirements import missing

# To install it, pip calls us three times, and only the last one builds.
BUILDING = {"bdist", "bdist_egg", "bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}


def wanted(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def interpreted(why: str) -> None:
    """The one line that tells why the package will be slower than it could be."""
    if wanted("STARLINGMQ_COMPILE"):
        raise SystemExit(f"error: starlingmq cannot be compiled: {why}")
    print(f"warning: starlingmq is not compiled and runs interpreted, several times slower: {why}", file=sys.stderr)


def compiled_extensions() -> list[Extension]:
    """All hot modules; none where compiling is not asked for, not wanted or not possible."""
    if wanted("STARLINGMQ_PURE") or BUILDING.isdisjoint(sys.argv):
        return []
    if lacking := missing():
        interpreted(lacking)
        return []
    try:
        return extensions()
    except NotCompiled as error:
        interpreted(str(error))
        return []


class BuildOrLeave(BuildSideBySide):
    """Leave all modules as Python when one cannot be compiled: the group works as a whole or not at all."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            interpreted(f"compiling fails ({type(error).__name__}; what the compiler says is above)")
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []


setup(ext_modules=compiled_extensions(), cmdclass={"build_ext": BuildOrLeave})
