"""The actions of operators, each declared once: ``@action`` over the method that does it at one node.

The doors are made from the declarations: the requests between nodes (``bound``), those of operators at any node
(``for_operators``), the HTTP API and its document (``api.declared_routes``), ``ctl`` and its ``--url``
(``cli.ctl_declared``). The types of the request and the reply are those of the method; limits and descriptions of a
field are its ``Meta``; the first sentence of the docstring is the help.

| scope | done by |
|---|---|
| ``HERE`` | the node that the operator asks |
| ``NODE`` | the node that the argument ``node`` names; "" is the one that is asked. The reply has its name, too. |
| ``ALL`` | each node, or the one that ``node`` names. ``merge`` makes one reply of those of the nodes. |
| ``PAGED`` | as ``ALL``, but one node after the other, up to ``limit`` entries. The reply is a ``ListPart``. |
| ``SORTED`` | as ``ALL``: the first ``limit`` entries of the nodes' ``FoundPart``, by their places |
| ``TARGET`` | as ``ALL``; "" is the node that is asked, or all workers of one machine; "*" is each node. |

Without ``merge``, lists whose entries have a field ``node`` are joined, and other replies are told by the node. Replies
of several nodes have ``missing``: the nodes that did not answer, and why.

| right | of an action | at the HTTP API |
|---|---|---|
| ``VIEW`` | any other | all who may log in |
| ``CONTENT`` | with ``content``: it shows what messages contain | as ``VIEW``, but not ``auth.api.viewers`` |
| ``OPERATE`` | with ``audit`` or ``noted_by``: it changes something | not ``auth.api.viewers`` |
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, defstruct, to_builtins
from msgspec.structs import replace

from starlingmq.admin.node_rpc import CALL_SECONDS, Answers, ListPart, ListRequest, Missing, NodeRpc
from starlingmq.admin.noted_actions import Note, noted
from starlingmq.admin.paging import first_of
from starlingmq.admin.table_columns import Columns, columns_of
from starlingmq.admin.typed_actions import NoArguments, reader_of, typed
from starlingmq.net.control_socket import Action, Report

Scope = Literal["here", "node", "all", "paged", "sorted", "target"]
HERE: Final[Scope] = "here"
NODE: Final[Scope] = "node"
ALL: Final[Scope] = "all"
PAGED: Final[Scope] = "paged"
SORTED: Final[Scope] = "sorted"
TARGET: Final[Scope] = "target"

Right = Literal["view", "content", "operate"]
VIEW: Final[Right] = "view"
CONTENT: Final[Right] = "content"
OPERATE: Final[Right] = "operate"

TAGS: Final = {
    "alarms": ("alarms", "certificates"),
    "cluster": ("cluster", "copies", "drain", "groups", "nodes", "peers", "rebalance", "restart", "routes", "shares"),
    "connectors": ("connectors",),
    "links": ("links",),
    "messages": ("publish", "retained", "topics"),
    "metrics": ("metrics",),
    "overview": ("actions", "droppers", "history", "log", "overview"),
    "sessions": ("activity", "client", "clients", "session", "sessions", "subscriptions"),
    "upkeep": ("bans", "config", "listeners", "reload", "rules", "settings", "storage", "streams", "users"),
}
"""The paths of the HTTP API by their groups in its document."""
TAG_OF: Final = {path: tag for tag, paths in TAGS.items() for path in paths}

Value = str | float
Place = tuple[Value, str, int, int]
"""The value of the sort key, and a name and numbers that tell entries with the same value apart."""
Total = Annotated[int, Meta(description="Number of all entries that match, on the nodes that answered.")]
Complete = Annotated[bool, Meta(description="False: a node has too many entries, and did not look at all of them.")]

E = TypeVar("E")


class FoundPart(Struct, Generic[E], frozen=True):
    """The first entries of one node behind a place. ``places`` are those of the entries."""

    entries: list[E]
    places: list[Place]
    total: int
    complete: bool = True


class ByNode(Struct, Generic[E], frozen=True):
    """The replies of the nodes, by their names."""

    nodes: dict[str, E]
    missing: list[Missing]


Act = TypeVar("Act", bound=Callable[..., Awaitable[Any]])
Merge = Callable[[NodeRpc, Answers[Any], Any], Any]
Order = Callable[[list[Any]], list[Any]]


@dataclass(eq=False)
class Declared:
    """``http``: method and path of the API; "": it is for nodes only. ``tag``: its group, unless ``TAGS`` has it.
    ``body``: the name of its JSON body; "": the request is in the query. ``order`` sorts joined lists, by their names.
    ``ctl``: the command and its arguments (``cli.ctl_declared``), which shows a table with ``columns``
    (``admin.table_columns``) or ``none``, or the line ``said`` with the fields of the request and the reply.
    ``hint``: what its help says further.
    ``download``: the name of a file with the list, a line of JSON for each entry, at ``PATH/download``.
    ``audit``: what it has done, behind the name of the operator, with fields of the request and the reply
    (``admin.noted_actions``); ``noted_by``: the action that notes it, at each node that does it. One of the two is told
    of all that changes something. ``level``: of the line in the log. Below INFO, those of a minute are one
    entry in the list of actions.
    ``seconds``: for one node to answer. ``waits``: the operator waits as long as it takes.
    """

    name: str
    act: Callable[..., Awaitable[Any]]
    http: str
    scope: Scope
    content: bool = False
    tag: str = ""
    status: int = 200
    body: str = ""
    seconds: float = CALL_SECONDS
    waits: bool = False
    merge: Merge | None = None
    order: Mapping[str, Order] = field(default_factory=dict)
    ctl: str = ""
    hint: str = ""
    columns: str = ""
    said: str = ""
    none: str = "none"
    download: str = ""
    audit: str = ""
    noted_by: str = ""
    level: int = logging.INFO

    def __post_init__(self) -> None:
        """Raises TypeError if the declaration of a change says nothing for the log, KeyError for a path without tag."""
        if self.audit and self.noted_by:
            raise TypeError(f"{self.name}: it has audit, or it is noted_by another one")
        if self.http:
            method, path = self.http.split()
            self.tag = self.tag or TAG_OF[path.split("/")[1]]
            if (self.right == OPERATE) == (method == "GET"):
                raise TypeError(f"{self.name}: what changes something has audit or noted_by, and is no GET")

    @property
    def right(self) -> Right:
        return OPERATE if self.audit or self.noted_by else CONTENT if self.content else VIEW

    @cached_property
    def help(self) -> str:
        """The first sentence of its docstring."""
        return " ".join((self.act.__doc__ or "").split()).partition(". ")[0].rstrip(".")

    @cached_property
    def request(self) -> type[Struct]:
        kind: type[Struct] = get_type_hints(self.act, include_extras=True).get("request", NoArguments)
        return kind

    @cached_property
    def returned(self) -> Any:
        return get_type_hints(self.act, include_extras=True)["return"]

    @cached_property
    def reply(self) -> type[Struct]:
        """Of one node. That of a method that returns a list has the list alone, by the name of the action."""
        kind: type[Struct] = self.returned
        if self.returns_list:
            kind = defstruct(f"{self.key.title()}Reply", [(self.key, self.returned)], frozen=True)
        return kind

    @property
    def returns_list(self) -> bool:
        return get_origin(self.returned) is list

    @property
    def key(self) -> str:
        """The name of the list in a reply."""
        return self.name.partition(".")[0]

    @property
    def has_node(self) -> bool:
        return self.scope != HERE


DECLARED: Final[dict[str, Declared]] = {}
"""Those that operators can ask for, by their names."""
DECLARATIONS: Final[list[Declared]] = []
"""All."""


def action(name: str, http: str = "", scope: Scope = HERE, **more: Any) -> Callable[[Act], Act]:
    """Declare the method. It takes ``report`` and ``request``, or what it needs of them. ``more``: other fields of
    ``Declared``."""

    def declare(act: Act) -> Act:
        declared = Declared(name, act, http, scope, **more)
        act.declared = declared  # type: ignore[attr-defined]
        DECLARATIONS.append(declared)
        if http:
            DECLARED[name] = declared
        return act

    return declare


def bound(*instances: object, note: Note | None = None) -> dict[str, Action]:
    """The declared actions of these objects, by name. ``note`` takes the entries of those that change something: it is
    needed if there are any."""
    found: dict[str, Action] = {}
    for instance in instances:
        for name, member in vars(type(instance)).items():
            declared: Declared | None = getattr(member, "declared", None)
            if declared is not None:
                act = _called(getattr(instance, name))
                if declared.returns_list:
                    act = _listing(declared, act)
                if declared.audit:
                    assert note is not None, f"{declared.name} changes something, and nothing takes its entries"
                    act = noted(declared, act, note)
                found[declared.name] = typed(declared.request, act)
    return found


def _called(act: Callable[..., Awaitable[Any]]) -> Callable[[Report, Any], Awaitable[Any]]:
    """With the report and the request, of which a method takes what it names."""
    names = act.__annotations__.keys() & {"report", "request"}
    if len(names) == 2:
        return act
    return lambda report, request: act(**{name: report if name == "report" else request for name in names})


def _listing(
    declared: Declared, act: Callable[[Report, Any], Awaitable[Any]]
) -> Callable[[Report, Any], Awaitable[Any]]:
    async def asked(report: Report, request: Any) -> Any:
        return declared.reply(**{declared.key: await act(report, request)})

    return asked


def for_operators(rpc: NodeRpc, actions: Mapping[str, Action]) -> dict[str, Action]:
    """The declared ones of a node's ``actions``, as operators at this node ask for them."""
    ways = {HERE: _here, NODE: _at, ALL: _everywhere, TARGET: _everywhere, PAGED: _paged, SORTED: _sorted}
    return {name: partial(ways[one.scope], one, rpc) for name in actions if (one := DECLARED.get(name)) is not None}


async def _here(declared: Declared, rpc: NodeRpc, report: Report, arguments: dict[str, str]) -> dict[str, Any]:
    return await rpc.here(declared.name, arguments, report)


async def _at(declared: Declared, rpc: NodeRpc, report: Report, arguments: dict[str, str]) -> dict[str, Any]:
    node = arguments.get("node", "")
    return {"node": node or rpc.name, **await rpc.at(node, declared.name, arguments, declared.seconds)}


async def _everywhere(declared: Declared, rpc: NodeRpc, report: Report, arguments: dict[str, str]) -> dict[str, Any]:
    request, node = reader_of(declared.request)(arguments), arguments.get("node") or None
    if declared.scope == TARGET:
        node = rpc.target(node or "")
    answers = await rpc.everywhere(declared.name, request, declared.reply, node, declared.seconds)
    reply: dict[str, Any] = to_builtins((declared.merge or partial(_merged, declared))(rpc, answers, request))
    return reply


async def _paged(declared: Declared, rpc: NodeRpc, report: Report, arguments: dict[str, str]) -> dict[str, Any]:
    request = reader_of(declared.request)({name: text for name, text in arguments.items() if name != "cursor"})
    wanted = reader_of(ListRequest)(arguments)
    kind: type[ListPart] = declared.reply  # type: ignore[assignment]
    page = await rpc.page(declared.name, request, kind, attrgetter(declared.key), wanted)
    reply: dict[str, Any] = to_builtins(told(declared)(rpc.name, page.entries, page.next, page.missing))
    return reply


async def _sorted(declared: Declared, rpc: NodeRpc, report: Report, arguments: dict[str, str]) -> dict[str, Any]:
    request: Any = reader_of(declared.request)(arguments)
    kind: type[FoundPart[Any]] = declared.reply  # type: ignore[assignment]
    answers = await rpc.everywhere(declared.name, request, kind, arguments.get("node"), declared.seconds)
    parts = list(answers.results.values())
    rows = [
        (place, replace(entry, node=node))
        for node, part in answers.results.items()
        for place, entry in zip(part.places, part.entries, strict=True)
    ]
    more = any(len(part.places) == request.limit for part in parts)
    entries, following = first_of(rows, request.limit, request.descending, more)
    total, complete = sum(part.total for part in parts), all(part.complete for part in parts)
    reply: dict[str, Any] = to_builtins(told(declared)(rpc.name, entries, total, complete, following, answers.missing))
    return reply


def _merged(declared: Declared, rpc: NodeRpc, answers: Answers[Any], request: Struct) -> Any:
    lists = lists_of(declared.reply)
    if not lists:
        return ByNode(answers.results, answers.missing)
    found = {
        name: [replace(entry, node=node) for node, reply in answers.results.items() for entry in getattr(reply, name)]
        for name in lists
    }
    joined = [declared.order[name](entries) if name in declared.order else entries for name, entries in found.items()]
    return told(declared)(rpc.name, *joined, answers.missing)


@cache
def lists_of(reply: type[Struct]) -> dict[str, Any]:
    """The lists of a reply with their types, if their entries have a field ``node``."""
    hints = get_type_hints(reply, include_extras=True)
    return {
        name: kind
        for name, kind in hints.items()
        if get_origin(kind) is list and "node" in getattr(get_args(kind)[0], "__struct_fields__", ())
    }


def table_of(declared: Declared) -> tuple[str, Columns]:
    """The name of the list in the reply, and its columns."""
    hints = lists_of(declared.reply) or get_type_hints(declared.reply)
    key = declared.key if declared.key in hints else next(iter(hints))
    return key, columns_of(declared.columns, get_args(hints[key])[0])


@cache
def told(declared: Declared) -> Any:
    """The type of the reply to an operator."""
    reply = declared.reply
    if declared.merge is not None:
        return get_type_hints(declared.merge)["return"]
    key, missing = declared.key, ("missing", list[Missing])
    if declared.scope == SORTED:
        (entry,) = get_args(reply)
        shape = [
            (key, list[entry]),  # type: ignore[valid-type]
            ("total", Total),
            ("complete", Complete),
            ("next", str | None),
        ]
        return defstruct(f"Sorted{key.title()}", [("node", str), *shape, missing], frozen=True)
    if declared.scope == PAGED:
        shape = [(key, get_type_hints(reply)[key]), ("next", str | None)]
        return defstruct(f"{key.removesuffix('s').title()}Page", [("node", str), *shape, missing], frozen=True)
    if get_origin(reply) is ByNode:
        return _by_node(*get_args(reply))
    if not isinstance(reply, type) or not issubclass(reply, Struct):
        return dict[str, Any]
    if declared.scope == HERE or (declared.scope == NODE and "node" in reply.__struct_fields__):
        return reply
    if declared.scope == NODE:
        return defstruct(f"{reply.__name__}At", [("node", str)], bases=(reply,), frozen=True, kw_only=True)
    if lists := lists_of(reply):
        return defstruct(f"Listed{next(iter(lists)).title()}", [("node", str), *lists.items(), missing], frozen=True)
    return _by_node(reply)


def _by_node(reply: type[Any]) -> Any:
    """``ByNode`` with a name for the document."""
    shape = [("nodes", dict[str, reply]), ("missing", list[Missing])]  # type: ignore[valid-type]
    return defstruct(f"{reply.__name__}ByNode", shape, frozen=True)
