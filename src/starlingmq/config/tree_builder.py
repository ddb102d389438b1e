"""Builds a checked tree of Sections from plain YAML values: unknown keys, spellings of quantities, types, bounds.

It knows no particular setting: it walks the types of the given tree. Only sections that the values mention are
described (``msgspec.inspect`` would describe all of them, which takes a tenth of the start of a broker).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import structs

from starlingmq.config.secret_masking import extra_of
from starlingmq.config.section_types import ConfigError, Section, parse_duration, parse_seconds, parse_size

Tree = dict[str, Any]
S = TypeVar("S", bound=Section)
MISSING: Final = re.compile("Object missing required field `([^`]+)`")
MOSQUITTO_CONF: Final = re.compile(
    r"^[ \t]*(acl_file|allow_anonymous|auto_id_prefix|autosave_interval|cafile|certfile|connection|include_dir|keyfile"
    r"|listener|log_dest|log_type|max_\w+|password_file|per_listener_settings|persistence\w*|pid_file|plugin|port"
    r"|protocol|require_certificate|sys_interval)[ \t]+\S",
)
MOSQUITTO_RULES: Final = re.compile(r"^[ \t]*(pattern|topic|user)[ \t]+\S")
INTEGER: Final = re.compile("0|-?[1-9][0-9]{0,17}")

PARSERS: Final[dict[str, Callable[[str], float]]] = {
    "duration": parse_duration,
    "seconds": parse_seconds,
    "size": parse_size,
}


def read_yaml(path: str | Path) -> Tree:
    """The mapping in a YAML file; an empty file is an empty mapping. ConfigError names the file and the line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    try:
        tree = _parse(text, str(path))
    except ConfigError:
        _refuse_mosquitto(text, path)
        raise
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        _refuse_mosquitto(text, path)
        raise ConfigError(f"{path}: expected sections such as 'mqtt:' at the top level, got {_kind(tree)}")
    return tree


def _refuse_mosquitto(text: str, path: str | Path) -> None:
    """Raise ConfigError for text that is not YAML because it was written for mosquitto: its first line tells."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    text = next(lines, "")
    for form, keyword in (
        ("a mosquitto.conf", MOSQUITTO_CONF),
        ("a rules file (acl_file) of mosquitto", MOSQUITTO_RULES),
    ):
        if keyword.search(text) is not None:
            raise ConfigError(
                f"{path}: this looks like {form}; starlingmq migrate mosquitto reads mosquitto.conf, and writes "
                "settings and rules of the form here"
            )


def yaml_value(text: str, source: str) -> Any:
    """The value of a ``--set`` or an environment variable, read as YAML. An error names ``source``."""
    value = _same_in_json(text)
    return _parse(text, source) if value is None else value


def _parse(text: str, source: str) -> Any:
    from starlingmq.config.yaml_text import parse_yaml  # PyYAML, a megabyte of memory

    return parse_yaml(text, source)


def _same_in_json(text: str) -> str | int | bool | list[str] | None:
    """The value of a text that JSON and YAML read alike, as the options of the command line are; None: YAML decides."""
    try:
        if INTEGER.fullmatch(text):
            return int(text)
        return msgspec.json.decode(text, type=str | bool | list[str])
    except (msgspec.DecodeError, ValueError):
        return None


def set_path(tree: Tree, keys: list[str], value: Any) -> None:
    """Set ``value`` at the path, creating the sections on the way."""
    for depth, key in enumerate(keys[:-1]):
        below = tree.get(key)
        if below is None:
            below = tree[key] = {}
        if not isinstance(below, dict):
            raise ConfigError(f"{'.'.join(keys[: depth + 1])}: is not a section, so it has no key {keys[depth + 1]!r}")
        tree = below
    tree[keys[-1]] = value


def build(root: type[S], tree: Tree) -> S:
    """The Section ``root`` from plain values. Raises ConfigError with one line that starts with the path."""
    try:
        return msgspec.convert(_prepare(root, tree, "", root), root)
    except msgspec.ValidationError as error:
        raise ConfigError(_reworded(error)) from error


def _prepare(kind: Any, value: Any, path: str, root: type[Section]) -> Any:
    """``value`` with its keys checked and its quantities as numbers. msgspec checks types and bounds."""
    if isinstance(value, PurePath):  # of a program
        value = str(value)
    unit, kind = _unwrap(kind)
    if unit and isinstance(value, str):
        return _quantity(unit, value, path)
    origin, members = get_origin(kind), get_args(kind)
    if origin is Literal and value not in members:
        raise ConfigError(f"{path}: {value!r} is not one of {', '.join(sorted(map(str, members)))}")
    if origin in (Union, UnionType):
        section = next((member for member in members if _is_section(member)), None)
        return value if section is None else _prepare(section, value, path, root)
    if origin is tuple and isinstance(value, list):
        return [_prepare(members[0], item, f"{path}[{index}]", root) for index, item in enumerate(value)]
    if _is_section(kind) and isinstance(value, dict):
        return _prepare_section(kind, value, path, root)
    return value


def _prepare_section(kind: type[Section], value: Tree, path: str, root: type[Section]) -> Tree:
    fields = {field.name: field for field in structs.fields(kind)}
    prepared = {}
    for key, below in value.items():
        key_path = f"{path}.{key}" if path else str(key)
        field = fields.get(key)
        if key in kind.REMOVED:
            raise ConfigError(f"{key_path}: no longer a setting, because {kind.REMOVED[key]}; remove it")
        if field is None:
            raise ConfigError(
                f"{key_path}: unknown key; the nearest is {nearest_key(key_path, path, list(fields), root)}"
            )
        # "mqtt:" with nothing below it is a section whose keys are all commented out.
        if below is None and (_is_section(field.type) or get_origin(_unwrap(field.type)[1]) is tuple):
            continue
        prepared[key] = _prepare(field.type, below, key_path, root)
    return prepared


def _quantity(unit: str, text: str, path: str) -> float:
    try:
        return PARSERS[unit](text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _unwrap(kind: Any) -> tuple[str, Any]:
    """The unit of a type, and the type without annotations."""
    return extra_of(kind).get("unit", ""), get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_section(kind: Any) -> bool:
    below = _unwrap(kind)[1]
    return isinstance(below, type) and issubclass(below, msgspec.Struct)


def nearest_key(wrong: str, section: str, siblings: list[str], root: type[Section]) -> str:
    """The key most likely meant: a similar sibling, else the same name elsewhere, else the most similar one of all."""
    import difflib

    name = wrong.rpartition(".")[2]
    prefix = f"{section}." if section else ""
    near = difflib.get_close_matches(name, siblings, 1, 0.6)
    if near:
        return prefix + near[0]
    paths = [setting.path for setting in settings(root)]
    namesakes = [path for path in paths if path.rpartition(".")[2] == name]
    around = [prefix + key for key in siblings] if section and siblings else paths
    return (namesakes or difflib.get_close_matches(wrong, around, 1, 0.0))[0]


class Setting(msgspec.Struct, frozen=True):
    """One key of the tree: its full path, its help, its unit ("" or a key of PARSERS)."""

    path: str
    help: str
    unit: str
    is_section: bool


def settings(root: type[Section], prefix: str = "") -> Iterator[Setting]:
    """All keys of the tree in the order of definition; a section precedes its content."""
    for field in structs.fields(root):
        unit, below = _unwrap(field.type)
        metas = field.type.__metadata__ if below is not field.type else ()
        texts = [meta.description for meta in metas if meta.description is not None]
        path = prefix + field.name
        yield Setting(path, texts[-1] if texts else "", unit, _is_section(below))
        if _is_section(below):
            yield from settings(below, f"{path}.")


def _reworded(error: msgspec.ValidationError) -> str:
    """msgspec says "Expected `int` <= 2 - at `$.mqtt.max_qos`"; this puts the path first, and uses the spelling of the
    settings."""
    complaint, found, location = str(error).rpartition(" - at `$")
    if not found:
        complaint, location = str(error), ""
    path = location.rstrip("`").lstrip(".")
    missing = MISSING.fullmatch(complaint)
    if missing is not None:
        return f"{path}.{missing[1]}: required".lstrip(".")
    complaint = complaint.replace("`object`", "a section").replace("`array`", "a list").replace("`", "")
    return f"{path}: {complaint[:1].lower()}{complaint[1:]}" if path else _one_line(error)


def _kind(value: object) -> str:
    return {"list": "a list", "str": "a text"}.get(type(value).__name__, type(value).__name__)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
