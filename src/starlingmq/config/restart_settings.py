"""The settings that a broker applies while it serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

from msgspec import Struct, structs, to_builtins

from starlingmq.config.settings import Config

S = TypeVar("S", bound=Struct)

LIVE: Final = (
    "mqtt",
    "nats",
    "queue_groups",
    "limits",
    "auth",
    "log",
    "streams.define",
    "bridges",
    "contracts",
    "links",
    "rules",
    "tracing",
    "alarms",
    "node.shutdown_timeout",
)
"""Settings that a reload applies while the broker serves ..."""
LIVE_BUT: Final = ("limits.write_buffer", "mqtt.connect_timeout")
"""... except for these."""


def needs_restart(before: Config, after: Config) -> list[str]:
    """The paths of settings that have changed and take effect only after a restart."""
    return sorted(_differ("", to_builtins(before), to_builtins(after)))


def in_force(started_with: Config, loaded: Config) -> Config:
    """The settings that a broker serves with that has loaded others since its start."""
    found = loaded
    for path in needs_restart(started_with, loaded):
        found = _as_in(started_with, found, path.split("."))
    return found


def _as_in(source: S, section: S, path: list[str]) -> S:
    """The section with the setting at ``path`` as it is in ``source``."""
    name, *below = path
    value, there = getattr(source, name), getattr(section, name)
    if below and isinstance(value, Struct):
        value = _as_in(value, there, below)
    return structs.replace(section, **{name: value})


def _differ(path: str, before: object, after: object) -> Iterator[str]:
    if before == after or (path in LIVE and not any(one.startswith(f"{path}.") for one in LIVE_BUT)):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({**before, **after}):
            below = f"{path}.{key}" if path else key
            if path not in LIVE or below in LIVE_BUT:
                yield from _differ(below, before.get(key), after.get(key))
    else:
        yield path
