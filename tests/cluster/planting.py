"""The state machines of routes and links from their source, with some of it replaced: smaller bounds, planted bugs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "starlingmq.cluster."
MODULES = ("frames", "route_facts", "own_routes", "peer_routes", "routes", "links")
"""In the order in which they import each other. ``frames`` is taken as it is."""


class PlantingError(Exception):
    """The text to replace is not there once. Never taken for a mistake that a world has found."""


Replacement = tuple[str, str, str]  # module, text that is there once, text in its place

SMALL: tuple[Replacement, ...] = (
    ("own_routes", "FRAME_RECORDS: Final = 1024", "FRAME_RECORDS: Final = 3"),
    ("own_routes", "CHUNK_RECORDS: Final = 1024", "CHUNK_RECORDS: Final = 2"),
    ("own_routes", "HISTORY_LENGTH: Final = 64", "HISTORY_LENGTH: Final = 4"),
    ("routes", "TURN_RECORDS: Final = 1024", "TURN_RECORDS: Final = 5"),
    ("routes", "PEER_RECORDS: Final = 1024", "PEER_RECORDS: Final = 2"),
)
"""Bounds that a dozen routes reach."""


@cache
def load(replacements: Sequence[Replacement] = ()) -> dict[str, Any]:
    """The modules by name, interpreted, as if their source were that."""
    real = {name: importlib.import_module(PACKAGE + name) for name in MODULES}
    loaded: dict[str, Any] = {"frames": real["frames"]}
    try:
        for name in MODULES[1:]:
            path = Path(importlib.import_module("starlingmq").__path__[0], "cluster", f"{name}.py")
            source = path.read_text(encoding="utf-8")
            for module, old, new in replacements:
                if module == name:
                    if source.count(old) != 1:
                        raise PlantingError(f"{name}.py has {source.count(old)} times {old!r}")
                    source = source.replace(old, new)
            loaded[name] = sys.modules[PACKAGE + name] = ModuleType(PACKAGE + name)
            exec(compile(source, str(path), "exec"), loaded[name].__dict__)
    finally:
        for name, module_before in real.items():
            sys.modules[PACKAGE + name] = module_before
    return loaded
