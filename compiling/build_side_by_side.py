"""The setuptools command that compiles the C files of the hot modules, several at a time.

Each object file is stored under a digest of its inputs: its C file, the headers, the compiler and its flags. A build
that was killed, or that changes little, reuses the existing files and compiles the rest.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from setuptools import Extension
from setuptools.command.build_ext import build_ext

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
        with ThreadPoolExecutor(jobs()) as pool:
            objects = list(pool.map(ObjectFiles(self, ext).compiled, sources))
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            extra_postargs=ext.extra_link_args,
            build_temp=self.build_temp,
            target_lang="c",
        )


class ObjectFiles:
    """The object files of one extension, compiled or found."""

    def __init__(self, command: BuildSideBySide, extension: Extension) -> None:
        self.compiler: Any = command.compiler
        self.extension = extension
        self.directory = Path(command.build_temp, "objects")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._common = hashlib.sha256(repr(sorted(self._flags())).encode())
        for header in sorted(extension.depends):
            self._common.update(Path(header).read_bytes())

    def _flags(self) -> Iterator[str]:
        yield from self.compiler.compiler_so
        yield from self.extension.extra_compile_args
        yield from (repr(macro) for macro in self.extension.define_macros)
        yield from (sys.version, sys.platform, version("mypy"))  # mypy contains the headers of its runtime

    def compiled(self, source: str) -> str:
        """Return the path of its object file."""
        digest = self._common.copy()
        digest.update(source.encode() + b"\0" + Path(source).read_bytes())
        kept = self.directory / f"{digest.hexdigest()[:DIGEST_LENGTH]}.o"
        if not kept.exists():
            (made,) = self.compiler.compile(
                [source],
                output_dir=str(self.directory),
                macros=self.extension.define_macros,
                include_dirs=self.extension.include_dirs,
                extra_postargs=self.extension.extra_compile_args,
                depends=self.extension.depends,
            )
            os.replace(made, kept)  # a file under this name is always complete
        return str(kept)
