"""Builds the hot modules (compiling/modules.py lists them) into machine code with mypyc; the rest is in pyproject.toml.

Without a C compiler, or when compiling fails, the package is built as plain Python: the same files, run interpreted.

STARLINGMQ_PURE=1      do not compile.
STARLINGMQ_COMPILE=1   compile or fail; for those who must know that they measure and test the compiled modules.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # pip runs this file without it

from compiling.modules import hot_modules  # noqa: E402

# To install it, pip calls us three times, and only the last one builds.
BUILDING = {"bdist", "bdist_egg", "bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}


def wanted(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def interpreted(why: str) -> None:
    """The one line that tells why the package will be slower than it could be."""
    if wanted("STARLINGMQ_COMPILE"):
        raise SystemExit(f"error: starlingmq cannot be compiled: {why}")
    print(f"warning: starlingmq is not compiled and runs interpreted, several times slower: {why}", file=sys.stderr)


def missing() -> str:
    """What compiling would need and this machine has not; empty when it has everything."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler} (apt-get install gcc libc6-dev python3-dev)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of Python are not installed (apt-get install python3-dev)"
    return ""


def extensions() -> list[Extension]:
    """All hot modules as one group; none where compiling is not asked for, not wanted or not possible."""
    if wanted("STARLINGMQ_PURE") or BUILDING.isdisjoint(sys.argv):
        return []
    lacking = missing()
    if lacking:
        interpreted(lacking)
        return []
    from mypyc.build import mypycify

    os.chdir(ROOT)
    try:
        # One group: calls between the modules are then calls of C functions and attributes are struct fields.
        # What comes out at level 3 is no faster.
        # What is imported for types alone is read and not judged: pip builds where most of our dependencies are not.
        read = ["--follow-imports=silent", *hot_modules()]
        group = mypycify(read, opt_level="2", debug_level="0", group_name="starlingmq")
    except SystemExit as error:  # how mypycify reports errors of types, already printed
        interpreted(f"mypyc refuses it ({error})")
        return []
    compiled = [extension for extension in group if isinstance(extension, Extension)]
    if os.name == "posix":
        for extension in compiled:
            # mypyc indents each module deeper than the last, and to warn of that GCC reads the file again and again:
            # of 300 seconds it took 190 for nothing else.
            extension.extra_compile_args.append("-Wno-misleading-indentation")
    return compiled


class BuildOrLeave(build_ext):
    """Leave all modules as Python when one cannot be compiled: the group works as a whole or not at all."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            interpreted(f"compiling fails ({type(error).__name__}; what the compiler says is above)")
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOrLeave})
