"""One setting is changed while the broker serves, with the checks of a settings file.

Only settings that a reload applies and that hold one value. Those of ``auth``, files, addresses and URLs are left out:
who may use the API of a broker must not be able to give rights to others, or to let the broker read files or connect.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from starlingmq.config.restart_settings import LIVE_BUT
from starlingmq.config.section_types import ConfigError, Section
from starlingmq.config.settings import Config, checked
from starlingmq.config.tree_builder import build, settings, yaml_value

Value = str | int | float | bool | None
EDITABLE: Final[tuple[Literal["mqtt", "nats", "queue_groups", "limits", "log", "alarms"], ...]] = (
    "mqtt",
    "nats",
    "queue_groups",
    "limits",
    "log",
    "alarms",
)
FIXED: Final = (*LIVE_BUT, "alarms.webhook")
TEXT_MAX: Final = 200


class LiveSetting(Struct, frozen=True):
    """``unit``: "duration", "seconds", "size", or "" for a plain value."""

    path: str
    help: str
    unit: str
    value: Value
    default: Value


def live_settings(config: Config) -> list[LiveSetting]:
    """The settings that ``changed`` takes, in the order of docs/CONFIGURATION.md."""
    found = []
    for name in EDITABLE:
        present, defaults = to_builtins(getattr(config, name)), to_builtins(getattr(Config(), name))
        for one in settings(type(getattr(config, name))):
            path, value = f"{name}.{one.path}", present.get(one.path)
            if "." not in one.path and path not in FIXED and isinstance(value, str | int | float | None):
                found.append(LiveSetting(path, one.help, one.unit, value, defaults[one.path]))
    return found


def changed(config: Config, path: str, text: str) -> Config:
    """The configuration with one setting as ``text`` says, in the spelling of settings files. Raises ConfigError."""
    if path not in {one.path for one in live_settings(config)}:
        raise ConfigError(f"{path}: is not a setting that can be changed while the broker serves")
    if len(text) > TEXT_MAX:
        raise ConfigError(f"{path}: is longer than {TEXT_MAX} characters")
    name, _, key = path.partition(".")
    section: Section = getattr(config, name)
    try:
        section = build(type(section), {**to_builtins(section), key: yaml_value(text, path)})
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{key}: ').removeprefix(f'{path}: ')}") from None
    return checked(replace(config, **{name: section}))
