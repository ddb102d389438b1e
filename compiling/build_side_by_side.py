"""The setuptools command that compiles the C files of the hot modules, several at a time.

Each object file is stored under a digest of its inputs: its C file, the headers, the compiler and its flags. A build
that was killed, or that changes little, reuses the existing files and compiles the rest.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Final

from setuptools import Extension
from setuptools.command.build_ext import build_ext

from compiling.cache import OBJECTS
from compiling.modules import level_of

DIGEST_LENGTH: Final = 32


def jobs() -> int:
    """Number of compilers that run at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BuildSideBySide(build_ext):
    """``build_ext`` with a thread for each core: for the C files of a library, and for the extension modules."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or jobs()

    def build_extension(self, ext: Extension) -> None:
        sources = sorted(map(str, ext.sources), key=lambda path: -Path(path).stat().st_size)  # the longest first
        if len(sources) == 1 or os.name != "posix":
            super().build_extension(ext)
            return
        kept = Path(os.environ.get(OBJECTS) or Path(self.build_temp, "objects"))
        kept.mkdir(parents=True, exist_ok=True)
        # Other checkouts may keep theirs there now: each compiles in a directory of its own.
        with tempfile.TemporaryDirectory(dir=kept) as scratch, ThreadPoolExecutor(jobs()) as pool:
            objects = list(pool.map(ObjectFiles(self, ext, kept, scratch).compiled, sources))
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            extra_postargs=ext.extra_link_args,
            build_temp=self.build_temp,
            target_lang="c",
        )


class ObjectFiles:
    """The object files of one extension, compiled or found."""

    def __init__(self, command: BuildSideBySide, extension: Extension, directory: Path, scratch: str) -> None:
        self.compiler: Any = command.compiler
        self.extension = extension
        self.directory = directory
        self._scratch = scratch
        self._precompiled: dict[tuple[str, ...], list[str]] = {}
        self._lock = Lock()
        self._common = hashlib.sha256(repr(list(self._identity())).encode())
        beside = {header for source in extension.sources for header in Path(source).parent.glob("*.h")}
        for header in sorted(beside.union(map(Path, extension.depends))):
            self._common.update(header.read_bytes())

    def _identity(self) -> Iterator[str]:
        yield from self.compiler.compiler_so
        yield from self.extension.extra_compile_args
        yield from (repr(macro) for macro in self.extension.define_macros)
        yield from (sys.version, sys.platform, version("mypy"))  # mypy contains the headers of its runtime
        yield subprocess.run([self.compiler.compiler_so[0], "--version"], capture_output=True, text=True).stdout

    def compiled(self, source: str) -> str:
        """Return the path of its object file."""
        level = level_of(source)
        digest = self._common.copy()
        digest.update(f"{source} {level}".encode() + b"\0" + Path(source).read_bytes())
        kept = self.directory / f"{digest.hexdigest()[:DIGEST_LENGTH]}.o"
        if not kept.exists():
            (made,) = self.compiler.compile(
                [source],
                output_dir=self._scratch,
                macros=self.extension.define_macros,
                include_dirs=self.extension.include_dirs,
                extra_postargs=[*self.extension.extra_compile_args, *level, *self._headers(level)],
                depends=self.extension.depends,
            )
            os.replace(made, kept)  # a file under this name is always complete
        os.utime(kept)  # the cache removes files that are not used
        return str(kept)

    def _headers(self, level: tuple[str, ...]) -> list[str]:
        """Return the flags with which gcc reads the headers of all C files, a third of a second for each, only once."""
        with self._lock:
            if level not in self._precompiled:
                self._precompiled[level] = list(self._precompile(level))
            return self._precompiled[level]

    def _precompile(self, level: tuple[str, ...]) -> Iterator[str]:
        shared = [path for path in self.extension.depends if Path(path).name.startswith("__native_internal_")]
        if shared and "gcc" in Path(self.compiler.compiler_so[0]).name:
            header = Path(self._scratch, f"all{''.join(level)}.h")
            header.write_text("".join(f'#include "{Path(path).resolve()}"\n' for path in shared), encoding="ascii")
            command = [*self.compiler.compiler_so, *self.extension.extra_compile_args, *level]
            command += [f"-I{directory}" for directory in (*self.extension.include_dirs, *self.compiler.include_dirs)]
            made = subprocess.run([*command, "-x", "c-header", str(header), "-o", f"{header}.gch"])
            if made.returncode == 0:
                yield from ("-include", str(header))
