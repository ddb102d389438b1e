"""Commands of ``starlingmq ctl`` that are made from declared actions (``admin.declared_actions``).

``ctl`` in the declaration is the name of the command and the fields that are its arguments, such as
``cluster/forget name``; the other fields are options, named as the field or as ``ctl`` in the ``extra`` of its
``Meta``. An argument with a question mark may be missing. A list has a table, a limit, and an order where an action
sorts it; any other action prints the line ``said``. ``rows`` makes other entries of a table, and ``shows`` other lines
and an exit code, which its docstring tells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer
from msgspec.structs import FieldInfo, fields

from starlingmq.admin.declared_actions import ALL, DECLARED, PAGED, TARGET, Declared, lists_of
from starlingmq.admin.printable import plain
from starlingmq.admin.typed_actions import as_text, is_required, taken_apart
from starlingmq.cli import control
from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import (
    AtOption,
    DescendingOption,
    LimitOption,
    ListOrder,
    NodeOption,
    Result,
    ask_within,
    nothing,
    sorted_or_listed,
    tell_more,
)
from starlingmq.cli.declare import CommandError
from starlingmq.cli.progress import progress
from starlingmq.cli.remote import ANSWER_SECONDS
from starlingmq.cli.tables import Columns, WideOption, columns_of, table

SHOWN: Final = 1000
KEYWORD: Final = Parameter.KEYWORD_ONLY
NOT_OPTIONS: Final = ("cursor", "sort", "descending", "everywhere")
OFFLINE: Final = ("storage.check", "storage.compact", "storage.stats")
"""They work on a data directory without a broker, too."""
EverywhereOption = Annotated[bool, typer.Option("--everywhere", help="All nodes.")]
LAST: Final = {"data_dir": DataDirOption, "config": FileOption, "json_": JsonOption}


Rows = Callable[[Result], list[Result]]
Shown = tuple[Iterable[str], int]
"""Lines for stdout, made only if they are printed, and the exit code."""
Show = Callable[..., Shown]

ROWS: Final[dict[str, Rows]] = {}
SHOWS: Final[dict[str, Show]] = {}


def rows(name: str) -> Callable[[Rows], Rows]:
    """The entries of the table of this action are those that the function makes of the reply."""
    return lambda make: ROWS.setdefault(name, make)


def shows(name: str) -> Callable[[Show], Show]:
    """The function is called with the reply of this action, and the values of the options. Its parameters that have a
    keyword are further options of the command."""
    return lambda show: SHOWS.setdefault(name, show)


def add_commands(groups: dict[str, typer.Typer]) -> None:
    """Add the commands to the groups by their names; "" is ``ctl`` itself."""
    import starlingmq.admin.all_actions  # noqa: F401  for DECLARED, and late: it takes longer than a command

    for declared in DECLARED.values():
        if declared.ctl:
            group, _, name = declared.ctl.split()[0].rpartition("/")
            groups[group].command(name)(command_of(declared))


def command_of(declared: Declared) -> Callable[..., int]:
    left_out = (*NOT_OPTIONS, "limit") if declared.scope == PAGED else NOT_OPTIONS
    own = [field for field in fields(declared.request) if field.name not in left_out]
    needed = {word.rstrip("?"): not word.endswith("?") for word in declared.ctl.split()[1:]}
    arguments = list(needed)
    parameters = [_parameter(field, needed.get(field.name)) for field in own]
    parameters.sort(key=lambda one: arguments.index(one.name) if one.name in arguments else len(arguments))
    if declared.has_node and declared.name not in OFFLINE:
        parameters.append(_keyword("node", "", NodeOption if declared.scope in (ALL, PAGED) else AtOption))
    if declared.scope == TARGET:
        parameters.append(_keyword("everywhere", False, EverywhereOption))
    sorts = declared.scope == PAGED and DECLARED.get(f"{declared.key}.sorted")
    if sorts:
        keys = ", ".join(get_args(taken_apart(get_type_hints(sorts.request, include_extras=True)["sort"])[0]))
        parameters.append(_keyword("sort", "", Annotated[str, typer.Option(help=f"Sort by {keys}.")]))
        parameters.append(_keyword("descending", False, DescendingOption))
    if declared.scope == PAGED:
        parameters.append(_keyword("limit", SHOWN, LimitOption))
    if declared.columns:
        parameters.append(_keyword("wide", False, WideOption))
    show = SHOWS.get(declared.name, _shown)
    more = [one for one in signature(show, eval_str=True).parameters.values() if one.kind is KEYWORD]
    parameters += [*more, *(_keyword(name, False if name == "json_" else None, kind) for name, kind in LAST.items())]

    def command(data_dir: str | None, config: str | None, json_: bool, **given: Any) -> int:
        further = {one.name: given.pop(one.name) for one in more}
        words = {name: as_text(given[name]) for name in given if name not in (*left_out, "wide")}
        words |= {field.name: "no" if given[field.name] else "" for field in own if _is_negative(field)}
        if given.get("everywhere"):
            if given["node"]:
                raise CommandError("--everywhere is all nodes, and --node one of them: leave out one of the two")
            words["node"] = "*"
        if declared.scope == PAGED:
            found = _listed(declared, given, words, data_dir, config)
        elif declared.name in OFFLINE:
            with progress(json_) as report:
                found = control.ask(control.broker_address(data_dir, config), declared.name, words, report)
        else:
            with progress(json_ or not declared.waits) as report:
                found = ask_within(ANSWER_SECONDS, declared.name, data_dir, config, words, report)
        lines, code = _shown(declared, found, given, words, further)
        if json_:
            print(json.dumps(found))
            return code
        for line in lines:
            print(line)
        tell_more(found, declared.key)
        return code

    code = SHOWS[declared.name].__doc__ if declared.name in SHOWS else None
    command.__doc__ = f"{declared.help}. {declared.hint}".rstrip() + f"\n\n{code or ''}".rstrip()
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _listed(
    declared: Declared, given: dict[str, Any], words: dict[str, str], data_dir: str | None, config: str | None
) -> Result:
    order = ListOrder(given.get("sort", ""), given.get("descending", False))
    key, _ = table_of(declared)
    return sorted_or_listed(declared.name, key, given["limit"], data_dir, config, order, **words)


def _shown(
    declared: Declared, found: Result, given: dict[str, Any], words: dict[str, str], further: dict[str, Any]
) -> Shown:
    if declared.name in SHOWS:
        return SHOWS[declared.name](found, given, **further)
    if not declared.columns:
        told = {name: _word(one) for name, one in (words | found).items()}
        return [declared.said.format_map(told)], 0
    return table_lines(declared, found, given), 0


def table_lines(declared: Declared, found: Result, given: dict[str, Any]) -> Iterator[str]:
    key, columns = table_of(declared)
    entries = ROWS[declared.name](found) if declared.name in ROWS else found[key]
    if entries:
        yield table(columns, entries, given["wide"])
        return
    arguments = [word.rstrip("?") for word in declared.ctl.split()[1:]]
    options = {
        field.name: (_metavar(field) if field.name in arguments else _flags(field)[0], field.default)
        for field in fields(declared.request)
        if field.name != "limit"
    }
    options["node"] = "--node", ""
    filters = {flag: given[name] for name, (flag, default) in options.items() if given.get(name, default) != default}
    yield nothing(key.removesuffix("s"), declared.none, filters)


def table_of(declared: Declared) -> tuple[str, Columns]:
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
    return str(extra.get("ctl", f"--{field.encode_name.replace('_', '-')}")).split()


def _metavar(field: FieldInfo) -> str:
    """The name of an argument."""
    return _flags(field)[0].lstrip("-").replace("-", "_").upper()


def _parameter(field: FieldInfo, is_needed: bool | None) -> Parameter:
    """``is_needed`` None: it is an option."""
    kind, meta = taken_apart(field.type)
    told = "" if meta is None else (meta.extra or {}).get("help", meta.description or "")
    limits: dict[str, Any] = {"min": meta.ge, "max": meta.le} if kind is int and meta is not None else {}
    if is_needed is not None:
        how: Any = typer.Argument(metavar=_metavar(field), help=told, **limits)
    else:
        how = typer.Option(*_flags(field), help=told, **limits)
    default = Parameter.empty if is_required(field) or is_needed else False if _is_negative(field) else field.default
    return _keyword(field.name, default, Annotated[bool if _is_negative(field) else kind, how])


def _keyword(name: str, default: object, annotation: Any) -> Parameter:
    return Parameter(name, KEYWORD, default=default, annotation=annotation)
