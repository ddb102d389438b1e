"""The state machines of routes and links from their source, with some of it replaced: smaller bounds, planted bugs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from tests.planting import PlantDoesNotApply, replace, source_of

from starlingmq.cluster.links import peer_frames, peer_link
from starlingmq.cluster.routes import own_routes, peer_routes, route_facts, route_table

MODULES = {
    "route_facts": route_facts,
    "own_routes": own_routes,
    "peer_routes": peer_routes,
    "routes": route_table,
    "links": peer_link,
}
"""By the name that plants use, in the order in which they import each other. ``frames`` is taken as it is."""

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
    return {"frames": peer_frames, **load_from(MODULES, replacements)}


def load_from(modules: Mapping[str, ModuleType], replacements: Sequence[Replacement]) -> dict[str, Any]:
    """The same of any modules, in the order in which they import each other."""
    loaded: dict[str, Any] = {}
    for module, old, _ in replacements:
        if module not in modules:
            raise PlantDoesNotApply(f"{module} is not among the modules that are planted: {old!r}")
    try:
        for name, real in modules.items():
            source = source_of(real)
            for module, old, new in replacements:
                if module == name:
                    source = replace(real, source, old, new)
            loaded[name] = sys.modules[real.__name__] = ModuleType(real.__name__)
            exec(compile(source, str(real.__name__), "exec"), loaded[name].__dict__)
    finally:
        for real in modules.values():
            sys.modules[real.__name__] = real
    _check_that_all_is_planted(modules, loaded)
    return loaded


def _check_that_all_is_planted(modules: Mapping[str, ModuleType], loaded: dict[str, Any]) -> None:
    """A loaded module that uses the sound twin of another loaded one runs without the mistake in it."""
    planted = {real.__name__: loaded[name] for name, real in modules.items()}
    for name, module in loaded.items():
        for each, value in vars(module).items():
            origin = planted.get(getattr(value, "__module__", None) or "")
            if origin is not None and getattr(origin, getattr(value, "__name__", each), value) is not value:
                raise PlantDoesNotApply(f"{name} uses {each} of {origin.__name__} without the mistakes in it")
