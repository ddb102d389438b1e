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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final

from setuptools import Extension
from setuptools.command.build_ext import build_ext

from compiling.cache import OBJECTS, PROGRESS
from compiling.modules import level_of

DIGEST_LENGTH: Final = 32
TOLD_SECONDS: Final = 10.0  # between two lines of progress

WITHOUT: Final = tuple(
    f"-fno-{each}"
    for each in (
        *("gcse", "rerun-cse-after-loop", "tree-pre", "code-hoisting", "tree-vrp", "tree-dominator-opts"),
        *("tree-loop-im", "ivopts", "tree-slsr", "store-merging", "ipa-cp", "ipa-icf", "ipa-sra", "schedule-insns2"),
    )
)
"""Passes of gcc's -O2 that take a quarter of its time and find little in the C of mypyc, where a call of a function of
Python stands between nearly all statements: a message takes up to 3 % fewer instructions without them.
"""


def jobs() -> int:
    """Number of compilers that run at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BuildSideBySide(build_ext):
    """``build_ext`` with a thread for each core: for the C files of a library, and for the extension modules."""

    _objects: ObjectFiles

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or jobs()

    def build_extensions(self) -> None:
        kept = Path(os.environ.get(OBJECTS) or Path(self.build_temp, "objects"))
        kept.mkdir(parents=True, exist_ok=True)
        # Other checkouts may keep theirs there now: each compiles in a directory of its own.
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            self._objects = ObjectFiles(self.compiler, kept, scratch)
            super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        if os.name != "posix":
            super().build_extension(ext)
            return
        sources = sorted(map(str, ext.sources), key=lambda path: -Path(path).stat().st_size)  # the longest first
        compiled = self._objects.of(ext)
        objects, told = [], monotonic()
        with ThreadPoolExecutor(min(jobs(), len(sources))) as pool:
            for made in pool.map(compiled, sources):
                objects.append(made)
                if os.environ.get(PROGRESS) and monotonic() > told + TOLD_SECONDS:
                    print(f"compiled {len(objects)} of {len(sources)} files", flush=True)
                    told = monotonic()
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            extra_postargs=ext.extra_link_args,
            build_temp=self.build_temp,
            target_lang="c",
        )


class ObjectFiles:
    """The object files of a build, compiled or found. ``scratch``: a directory that only this build uses."""

    def __init__(self, compiler: Any, directory: Path, scratch: str) -> None:
        self.compiler = compiler
        self.directory = directory
        self._scratch = scratch
        self._precompiled: dict[tuple[str, ...], list[str]] = {}
        self._lock = Lock()
        self._is_gcc = "gcc" in Path(compiler.compiler_so[0]).name
        says = subprocess.run([compiler.compiler_so[0], "--version"], capture_output=True, text=True).stdout
        # mypy contains the headers of its runtime.
        self._tools = (*compiler.compiler_so, sys.version, sys.platform, version("mypy"), says)

    def of(self, extension: Extension) -> Callable[[str], str]:
        """Return the function that gives the path of the object file of one of its sources."""
        inputs = (*self._tools, *extension.extra_compile_args, *map(repr, extension.define_macros))
        common = hashlib.sha256(repr(list(inputs)).encode())
        beside = {header for source in extension.sources for header in Path(source).parent.glob("*.h")}
        for header in sorted(beside.union(map(Path, extension.depends))):
            common.update(header.read_bytes())

        def compiled(source: str) -> str:
            level = level_of(source) or (WITHOUT if self._is_gcc else ())
            digest = common.copy()
            digest.update(f"{source} {level}".encode() + b"\0" + Path(source).read_bytes())
            kept = self.directory / f"{digest.hexdigest()[:DIGEST_LENGTH]}.o"
            if not kept.exists():
                (made,) = self.compiler.compile(
                    [source],
                    output_dir=self._scratch,
                    macros=extension.define_macros,
                    include_dirs=extension.include_dirs,
                    extra_postargs=[*extension.extra_compile_args, *level, *self._headers(extension, level)],
                    depends=extension.depends,
                )
                os.replace(made, kept)  # a file under this name is always complete
            os.utime(kept)  # the cache removes files that are not used
            return str(kept)

        return compiled

    def _headers(self, extension: Extension, level: tuple[str, ...]) -> list[str]:
        """Return the flags with which gcc reads the headers of all C files, a third of a second for each, only once."""
        own = [Path(path).resolve() for path in extension.depends if Path(path).name.startswith("__native_internal_")]
        flags = (*extension.extra_compile_args, *level)
        flags += tuple(f"-I{directory}" for directory in (*extension.include_dirs, *self.compiler.include_dirs))
        key = (*map(str, own), *flags)
        with self._lock:
            if key not in self._precompiled:
                self._precompiled[key] = list(self._precompile(own or [Path("Python.h")], flags))
            return self._precompiled[key]

    def _precompile(self, headers: list[Path], flags: tuple[str, ...]) -> Iterator[str]:
        if not self._is_gcc:
            return
        header = Path(self._scratch, f"all{len(self._precompiled)}.h")
        header.write_text("".join(f'#include "{path}"\n' for path in headers), encoding="ascii")
        command = [*self.compiler.compiler_so, *flags, "-x", "c-header", str(header), "-o", f"{header}.gch"]
        if subprocess.run(command).returncode == 0:
            yield from ("-include", str(header))
