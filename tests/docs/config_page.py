"""docs/CONFIGURATION.md: every setting, read from the one tree of settings that the broker reads itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect, to_builtins

from starlingmq.config.restart_settings import LIVE, LIVE_BUT
from starlingmq.config.section_types import format_duration, format_size
from starlingmq.config.settings import Config

HEAD: Final = """# Configuration

Every setting, with what it means, its default and what it may be. This page is written by
`python -m tests.docs.generate` from the settings in `src/starlingmq/config/`; a test holds it to
that. `starlingmq config show` prints the same as a complete file, with the values in force, secrets as `***`.

Where a value comes from, later wins: the default, the YAML file (`serve -c FILE`), the environment, `--set`.

| | how |
|---|---|
| in a file | `mqtt: {retry_interval: 5s}` |
| in the environment | `STARLINGMQ_MQTT__RETRY_INTERVAL=5s` (two underscores part the levels) |
| at the command line | `--set mqtt.retry_interval=5s` |

A key that is not known is an error that names the nearest one: `starlingmq config check -c FILE` says so without
starting anything. Durations are written `500ms`, `30s`, `5m`, `1h`, `7d`, or as seconds; sizes
`512`, `64KiB`, `1MiB`, `2GB`.

**Live**: settings marked so are taken over by a running broker at SIGHUP, `starlingmq ctl reload` or
`POST /api/v1/reload`. The others count after a restart, and the answer of a reload names those that changed.
"""

FORMATS: Final[dict[str, Callable[[Any], str]]] = {
    "duration": format_duration,
    "seconds": format_duration,
    "size": format_size,
}


def page() -> str:
    kind = inspect.type_info(Config)
    assert isinstance(kind, inspect.StructType)
    parts = [HEAD]
    for field in kind.fields:
        about, _, below = _parts(field.type)
        section, is_list = _section(below)
        assert section is not None, field.name
        of_each = " Of each:" if is_list else ""
        parts.append(f"## {field.name}\n\n{about}{of_each}\n")
        parts.append("| setting | default | what it is |\n|---|---|---|")
        prefix = f"{field.name}[]." if is_list else f"{field.name}."
        parts.append("\n".join(_rows(section, prefix, "")) + "\n")
    return "\n".join(parts)


def _rows(section: inspect.StructType, prefix: str, above: str) -> Iterator[str]:
    """The rows of a section; ``prefix`` is its path, of which ``above`` is shown: the heading says the rest."""
    for field in section.fields:
        about, unit, kind = _parts(field.type)
        path = prefix + field.name
        shown = above + field.name
        below, is_list = _section(kind)
        if below is not None:
            of_each = " A list; of each:" if is_list else ""
            yield f"| **`{shown}`** | {'`[]`' if is_list else ''} | {_cell(about)}{of_each} |"
            step = "[]." if is_list else "."
            yield from _rows(below, path + step, shown + step)
            continue
        may = _bounds(kind, unit)
        live = " *Live.*" if _is_live(path) else ""
        yield f"| `{shown}` | {_default(field, unit)} | {_cell(about)}{f' {may}' if may else ''}{live} |"


def _parts(kind: inspect.Type) -> tuple[str, str, inspect.Type]:
    """The sentence of help, the unit, and the type itself."""
    if not isinstance(kind, inspect.Metadata):
        return "", "", kind
    about = (kind.extra_json_schema or {}).get("description", "")
    return about, (kind.extra or {}).get("unit", ""), kind.type


def _section(kind: inspect.Type) -> tuple[inspect.StructType | None, bool]:
    """The section that a value of this type is, if it is one, and whether there is a list of them."""
    kind = _parts(kind)[2]
    if isinstance(kind, inspect.VarTupleType):
        return _section(kind.item_type)[0], True
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((one for one in members if isinstance(one, inspect.StructType)), None), False


def _default(field: inspect.Field, unit: str) -> str:
    if field.required:
        return "required"
    value: Any = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        if field.name == "name":  # of the node: it has the name of the machine in it
            return "`starling@` and the host name"
        value = field.default_factory()
    if value is None:
        return "none"
    if unit:
        return f"`{FORMATS[unit](value)}`"
    value = to_builtins(value)
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if value == "":
        return "empty"
    return f"`{list(value) if isinstance(value, list | tuple) else value}`"


def _bounds(kind: inspect.Type, unit: str) -> str:
    """The bounds of a value, where the sentence of help does not have to name them."""
    if isinstance(kind, inspect.LiteralType):
        return "One of " + ", ".join(f"`{value}`" for value in kind.values) + "."
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return ""
    write: Callable[[Any], str] = FORMATS.get(unit, str)
    least, most = kind.ge, kind.le
    if unit == "duration" and most is not None and most > 86400 * 365:  # the bound that only excludes .inf is not shown
        most = None
    if kind.gt is not None:
        return "More than 0."
    if least and most is not None:
        return f"`{write(least)}` to `{write(most)}`."
    if most is not None:
        return f"`{write(most)}` at most."
    return f"`{write(least)}` or more." if least else ""


def _is_live(path: str) -> bool:
    path = re.sub(r"\[\]", "", path)
    if any(path == one or path.startswith(f"{one}.") for one in LIVE_BUT):
        return False
    return any(path == one or path.startswith(f"{one}.") for one in LIVE)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("$", "\\$") if "|" in text else text
