"""Modules that are imported by name only, and loaded when one of their attributes is first used.

asyncio imports ``ssl``, and with it OpenSSL, which takes a tenth of the memory of a broker without TLS.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # the base classes add nothing here, and importing them loads importlib.resources, tempfile and shutil
    Loader = MetaPathFinder = object

_lock: Final = threading.RLock()  # of all of them: loading one may load another one


class _LateModule(ModuleType):
    """A module that is not loaded yet. Afterwards it is an ordinary one, also for those who have imported it before."""

    def __getattr__(self, name: str) -> object:
        """Called for an attribute that is missing."""
        if name.startswith("__"):  # the import asks for them, before and after it sets its own
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _lock:
            spec = self.__spec__
            if type(self) is _LateModule and spec is not None and isinstance(spec.loader, _LateLoader):
                spec.loader = self.__loader__ = spec.loader.loader
                spec.loader.exec_module(self)
                object.__setattr__(self, "__class__", ModuleType)  # an ordinary module from here on
        return ModuleType.__getattribute__(self, name)


class _LateLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet."""


class _LateFinder(MetaPathFinder):
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec


def load_when_used(*names: str) -> None:
    """From now on, importing one of these modules of Python code does not load it."""
    sys.meta_path.insert(0, _LateFinder(frozenset(names)))
