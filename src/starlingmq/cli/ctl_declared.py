"""Commands of ``starlingmq ctl`` that are made from declared actions (``admin.declared_actions``).

``ctl`` in the declaration is the name of the command and the fields that are its arguments, such as
``cluster/forget name``; the other fields are options, named as the field or as ``ctl`` in the ``extra`` of its
``Meta``. An argument with a question mark may be missing. A list has a table, a limit, and an order where an action
sorts it; any other action prints the line ``said``. ``rows`` makes other entries of a table, and ``shows`` other lines
and an exit code, which its docstring tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter, signature
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer
from msgspec.structs import FieldInfo, fields

from starlingmq.admin.declared_actions import ALL, DECLARED, PAGED, TARGET, Declared, table_of
from starlingmq.admin.printable import plain
from starlingmq.admin.typed_actions import as_text, is_required, taken_apart
from starlingmq.cli import control
from starlingmq.cli.ctl_ask import (
    BROKER_OPTIONS,
    AskedBroker,
    AtOption,
    DescendingOption,
    LimitOption,
    Lines,
    ListOrder,
    NodeOption,
    Result,
    nothing,
    tell_more,
)
from starlingmq.cli.declare import CommandError, parameter, shaped
from starlingmq.cli.progress import progress
from starlingmq.cli.remote import ANSWER_SECONDS
from starlingmq.cli.tables import WideOption, table

SHOWN: Final = 1000
NOT_OPTIONS: Final = ("cursor", "sort", "descending", "everywhere")
OFFLINE: Final = ("storage.check", "storage.compact", "storage.stats")
"""They work on a data directory without a broker, too."""
EverywhereOption = Annotated[bool, typer.Option("--everywhere", help="All nodes.")]
Rows = Callable[[Result], list[Result]]
Show = Callable[..., Lines]

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
        parameters.append(parameter("node", "", NodeOption if declared.scope in (ALL, PAGED) else AtOption))
    if declared.scope == TARGET:
        parameters.append(parameter("everywhere", False, EverywhereOption))
    sorts = declared.scope == PAGED and DECLARED.get(f"{declared.key}.sorted")
    if sorts:
        keys = ", ".join(get_args(taken_apart(get_type_hints(sorts.request, include_extras=True)["sort"])[0]))
        parameters.append(parameter("sort", "", Annotated[str, typer.Option(help=f"Sort by {keys}.")]))
        parameters.append(parameter("descending", False, DescendingOption))
    if declared.scope == PAGED:
        parameters.append(parameter("limit", SHOWN, LimitOption))
    if declared.columns:
        parameters.append(parameter("wide", False, WideOption))
    show = SHOWS.get(declared.name, partial(_shown, declared))
    more = [one for one in signature(show, eval_str=True).parameters.values() if one.kind is Parameter.KEYWORD_ONLY]

    def command(data_dir: str | None, config: str | None, json_: bool, **given: Any) -> int:
        broker = AskedBroker(data_dir, config, json_)
        further = {one.name: given.pop(one.name) for one in more}
        words = {name: as_text(given[name]) for name in given if name not in (*left_out, "wide")}
        words |= {field.name: "no" if given[field.name] else "" for field in own if _is_negative(field)}
        if given.get("everywhere"):
            if given["node"]:
                raise CommandError("--everywhere is all nodes, and --node one of them: leave out one of the two")
            words["node"] = "*"
        if declared.scope == PAGED:
            order = ListOrder(given.get("sort", ""), given.get("descending", False))
            found = broker.listed(declared.name, table_of(declared)[0], given["limit"], order, **words)
        elif declared.name in OFFLINE:
            with progress(json_) as report:
                found = control.ask(control.broker_address(data_dir, config), declared.name, words, report)
        else:
            with progress(json_ or not declared.waits) as report:
                found = broker.ask_within(ANSWER_SECONDS, declared.name, words, report)
        code = broker.tell(found, show(found, given, **further))
        if not json_:
            tell_more(found, declared.key)
        return code

    told = SHOWS[declared.name].__doc__ if declared.name in SHOWS else None
    command.__doc__ = f"{declared.help}. {declared.hint}".rstrip() + f"\n\n{told or ''}".rstrip()
    return shaped(command, [*parameters, *more, *BROKER_OPTIONS])


def _shown(declared: Declared, found: Result, given: Result) -> Lines:
    if declared.columns:
        yield from table_lines(declared, found, given)
    else:
        yield declared.said.format_map({name: _word(one) for name, one in (given | found).items()})
    return 0


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
    return parameter(field.name, default, Annotated[bool if _is_negative(field) else kind, how])
