"""Commands of ``starlingmq ctl`` that are made from declared actions (``admin.declared_actions``).

``ctl`` in the declaration is the name of the command and the fields that are its arguments, such as
``cluster/forget name``; the other fields are options, named as the field or as ``ctl`` in the ``extra`` of its
``Meta``. A list has a table, a limit, and an order where an action sorts it; any other action prints the line ``said``.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer
from msgspec.structs import FieldInfo, fields

import starlingmq.admin.all_actions  # noqa: F401  for DECLARED
from starlingmq.admin.declared_actions import ALL, DECLARED, PAGED, Declared, lists_of
from starlingmq.admin.printable import plain
from starlingmq.admin.typed_actions import as_text, is_required, taken_apart
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import (
    AtOption,
    DescendingOption,
    LimitOption,
    ListOrder,
    NodeOption,
    ask,
    ask_within,
    done,
    listed,
    nothing,
    show,
    sorted_or_listed,
)
from starlingmq.cli.progress import progress
from starlingmq.cli.remote import ANSWER_SECONDS
from starlingmq.cli.tables import Columns, WideOption, columns_of

SHOWN: Final = 1000
NOT_OPTIONS: Final = ("by", "cursor", "limit", "sort", "descending")
LAST: Final = {"data_dir": DataDirOption, "config": FileOption, "json_": JsonOption}


def add_commands(groups: dict[str, typer.Typer]) -> None:
    """Add the commands to the groups by their names; "" is ``ctl`` itself."""
    for declared in DECLARED.values():
        if declared.ctl:
            group, _, name = declared.ctl.split()[0].rpartition("/")
            groups[group].command(name)(command_of(declared))


def command_of(declared: Declared) -> Callable[..., None]:
    own = [field for field in fields(declared.request) if field.name not in NOT_OPTIONS]
    arguments = declared.ctl.split()[1:]
    parameters = [_parameter(field, field.name in arguments) for field in own]
    parameters.sort(key=lambda one: arguments.index(one.name) if one.name in arguments else len(arguments))
    if declared.has_node:
        parameters.append(_keyword("node", "", NodeOption if declared.scope in (ALL, PAGED) else AtOption))
    sorts = declared.scope == PAGED and DECLARED.get(f"{declared.key}.sorted")
    if sorts:
        keys = ", ".join(get_args(taken_apart(get_type_hints(sorts.request, include_extras=True)["sort"])[0]))
        parameters.append(_keyword("sort", "", Annotated[str, typer.Option(help=f"Sort by {keys}.")]))
        parameters.append(_keyword("descending", False, DescendingOption))
    if declared.scope == PAGED:
        parameters.append(_keyword("limit", SHOWN, LimitOption))
    if declared.columns:
        parameters.append(_keyword("wide", False, WideOption))
    parameters += [_keyword(name, False if name == "json_" else None, kind) for name, kind in LAST.items()]

    def command(data_dir: str | None, config: str | None, json_: bool, **given: Any) -> None:
        words = {name: as_text(given[name]) for name in given if name not in (*NOT_OPTIONS, "wide")}
        words |= {field.name: "no" if given[field.name] else "" for field in own if _is_negative(field)}
        if declared.scope == PAGED:
            _list(declared, given, words, data_dir, config, json_)
        elif declared.columns:
            found = ask(declared.name, data_dir, config, **words)
            key, columns = _table(declared)
            show(found, json_, key, columns, declared.none, given["wide"])
        else:
            with progress(json_ or not declared.waits) as report:
                found = ask_within(ANSWER_SECONDS, declared.name, data_dir, config, words, report)
            done(found, json_, declared.said.format_map({name: _word(one) for name, one in (words | found).items()}))

    command.__doc__ = f"{declared.help}."
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _list(
    declared: Declared,
    given: dict[str, Any],
    words: dict[str, str],
    data_dir: str | None,
    config: str | None,
    json_: bool,
) -> None:
    key, columns = _table(declared)
    if "sort" in given:
        order = ListOrder(given["sort"], given["descending"])
        found = sorted_or_listed(declared.name, key, given["limit"], data_dir, config, order, **words)
    else:
        found = listed(declared.name, key, given["limit"], data_dir, config, **words)
    flags = {field.name: _flags(field)[0] for field in fields(declared.request)} | {"node": "--node"}
    filters = {flags[name]: given[name] for name in words}
    show(found, json_, key, columns, nothing(key.removesuffix("s"), declared.none, filters), given["wide"])


def _table(declared: Declared) -> tuple[str, Columns]:
    """The name of the list in the reply, and its columns."""
    hints = lists_of(declared.reply) or get_type_hints(declared.reply)
    key = declared.key if declared.key in hints else next(iter(hints))
    return key, columns_of(declared.columns, get_args(hints[key])[0])


def _word(value: object) -> str:
    return ", ".join(map(_word, value)) if isinstance(value, list) else plain(str(value))


def _is_negative(field: FieldInfo) -> bool:
    """Whether the option is a flag for "no"."""
    return bool(taken_apart(field.type)[0] == bool | None)


def _flags(field: FieldInfo) -> list[str]:
    meta = taken_apart(field.type)[1]
    extra = (meta.extra or {}) if meta is not None else {}
    return str(extra.get("ctl", f"--{field.name.replace('_', '-')}")).split()


def _parameter(field: FieldInfo, is_argument: bool) -> Parameter:
    kind, meta = taken_apart(field.type)
    told = "" if meta is None else (meta.extra or {}).get("help", meta.description or "")
    limits: dict[str, Any] = {"min": meta.ge, "max": meta.le} if kind is int and meta is not None else {}
    if is_argument:
        how: Any = typer.Argument(metavar=field.name.upper(), help=told, **limits)
    else:
        how = typer.Option(*_flags(field), help=told, **limits)
    default = Parameter.empty if is_required(field) else False if _is_negative(field) else field.default
    return _keyword(field.name, default, Annotated[bool if _is_negative(field) else kind, how])


def _keyword(name: str, default: object, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
