"""Compiles the hot modules of a checkout next to their sources, so that no process ever sees only some of them.

Invariant: the library (``modules.LIBRARY``) exists only when all extension modules next to the sources belong to it. A
process without the library runs interpreted from its first import to its end (``starlingmq/__init__.py``). So:

1. Everything is built in ``build/``. A killed build has changed nothing; the next one continues from its objects.
2. The old library is removed. New processes now run interpreted; older ones have it loaded.
3. The extension modules are moved in, and those that no longer have a source are removed.
4. The library is moved in, in one step. New processes run compiled.

After a kill between 2 and 4, the checkout is interpreted until the next build, which continues at 2.

The result is kept in the user's cache under the digest of its inputs, and so are the object files: another clone with
the same sources compiles nothing, and one with other sources compiles the files that differ.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Final

from compiling.cache import OBJECTS, PROGRESS, Cache
from compiling.modules import LIBRARY, PACKAGE, ROOT, hot_modules, module_name

SUFFIX: Final = str(sysconfig.get_config_var("EXT_SUFFIX"))
IMPORTED: Final = re.compile(r"^\s*(?:from|import) (starlingmq[\w.]*)(?: import ([\w, ]+))?", re.MULTILINE)

TYPED: Final = ("mypy", "librt", "msgspec", "zlib-ng")
"""mypyc, and the packages whose types it reads."""


class Checkout:
    """The sources below ``root``, and where their compiled modules are. ``progress``: a build says how far it is."""

    def __init__(self, root: Path = ROOT, progress: bool = False) -> None:
        self.root = root
        self.progress = progress
        self.sources = root / PACKAGE.parent
        self.library = self.sources / f"{LIBRARY}{SUFFIX}"
        self.built = root / "build" / "compiled"
        self.fingerprint_file = root / "build" / "compiled.fingerprint"

    @cached_property
    def cache(self) -> Cache:
        return Cache(self.root / "build")

    def up_to_date(self) -> bool:
        """Whether the compiled modules exist and match the sources."""
        try:
            return self.library.exists() and self.fingerprint_file.read_text(encoding="ascii") == self.fingerprint()
        except FileNotFoundError:
            return False

    def fingerprint(self) -> str:
        """Return a digest of the inputs of the compiled modules: their sources, the modules of this package that these
        import, the compilers.
        """
        tools = (sys.version, SUFFIX, *map(version, TYPED), os.environ.get("CC"), os.environ.get("CFLAGS"))
        digest = hashlib.sha256(repr(tools).encode())
        inputs = {self.root / path for path in hot_modules(self.root)}
        inputs |= {path for hot in list(inputs) for path in self._imported_by(hot)}
        inputs.add(self.root / "setup.py")
        inputs |= {path for path in (self.root / "compiling").iterdir() if path.suffix in (".py", ".ini")}
        for path in sorted(inputs):
            digest.update(str(path.relative_to(self.root)).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()

    def _imported_by(self, path: Path) -> Iterator[Path]:
        for module, names in IMPORTED.findall(path.read_text(encoding="utf-8")):
            place = self.sources.joinpath(*module.split("."))
            candidates = [place, *(place / name.strip() for name in names.split(","))]
            yield from (found for found in (c.with_suffix(".py") for c in candidates) if found.is_file())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Allow one build at a time; a second one waits, and then finds everything done."""
        self.built.parent.mkdir(exist_ok=True)
        with open(self.built.parent / "compiling.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def build(self) -> bool:
        """Build everything in ``build/``; False if compiling is impossible, which setup.py has explained."""
        shutil.rmtree(self.built, ignore_errors=True)
        command = [sys.executable, "setup.py", "--quiet", "build_ext"]
        command += ["--build-lib", str(self.built), "--build-temp", str(self.root / "build" / "objects")]
        environment = {**os.environ, OBJECTS: str(self.cache.objects), PROGRESS: "1" if self.progress else ""}
        subprocess.run(command, cwd=self.root, env=environment, check=True, stdin=subprocess.DEVNULL)
        return (self.built / self.library.name).exists()

    def leave_interpreted(self) -> None:
        """Step 2: disable the compiled modules."""
        self.library.unlink(missing_ok=True)
        self.fingerprint_file.unlink(missing_ok=True)

    def move_in(self) -> None:
        """Steps 2 to 4."""
        self.leave_interpreted()
        wanted = {self._extension(path) for path in hot_modules(self.root)}
        for old in (self.root / PACKAGE).rglob("*.so"):
            if old not in wanted:
                old.unlink()
        for path in sorted(wanted):
            os.replace(self.built / path.relative_to(self.sources), path)
        os.replace(self.built / self.library.name, self.library)

    def _extension(self, path: str) -> Path:
        """Return the extension module of a source."""
        return self.sources.joinpath(*module_name(path).split(".")).with_suffix(SUFFIX)

    def compile(self) -> bool:
        """Compile if necessary. Returns whether the compiled modules are up to date; if not, the checkout runs
        interpreted.
        """
        with self.locked():
            if self.up_to_date():
                return True
            fingerprint = self.fingerprint()
            done = self.cache.copy(fingerprint, self.built) or self.build()
            if done and self.fingerprint() != fingerprint:
                print("the sources have changed while they were compiled: compile again", file=sys.stderr)
                done = False
            if done:
                self.cache.keep(fingerprint, self.built)
                self.move_in()
                self.fingerprint_file.write_text(fingerprint, encoding="ascii")
            else:
                self.leave_interpreted()
            return done
