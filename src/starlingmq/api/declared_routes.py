"""The routes of declared actions (``admin.declared_actions``): parameters or JSON body, reply, right, and document.

A field of the request is a parameter of the query, or of the body if the action has one; ``node`` is a parameter where
the action has a node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from inspect import Parameter as Argument
from inspect import Signature
from typing import Annotated, Any, Final, get_args

from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, Parameter
from msgspec import Meta, Struct, defstruct, json
from msgspec.structs import FieldInfo, asdict, fields

import starlingmq.admin.all_actions  # noqa: F401  for DECLARED
from starlingmq.admin.declared_actions import CONTENT, DECLARED, NODE, TARGET, Declared, told
from starlingmq.admin.printable import PAGE_MAX
from starlingmq.admin.typed_actions import After, Cursor, Limit, as_text, is_required, taken_apart
from starlingmq.api.guard import SHOWS_CONTENT
from starlingmq.api.served import served

LINES: Final = "application/jsonl"
LIMITS: Final = ("ge", "gt", "le", "lt", "min_length", "max_length", "description")
NODES: Final = {
    NODE: "The node to use. Default: the node that receives the request.",
    TARGET: "The node to use, * for all. Default: the node that receives the request, with workers all.",
}
ALL_NODES: Final = "Only this node. Default: all nodes of the cluster."


def _limits(meta: Meta) -> dict[str, Any]:
    return {name: getattr(meta, name) for name in LIMITS}


PAGES: Final[dict[Any, Any]] = {
    After: Annotated[str, Parameter(**_limits(get_args(Cursor)[1]))],
    Limit: Annotated[int, Parameter(ge=1, le=PAGE_MAX, description="Maximum number of entries per page.")],
}


def routes() -> dict[str, list[HTTPRouteHandler]]:
    """By their tags."""
    found: dict[str, list[HTTPRouteHandler]] = {}
    for declared in DECLARED.values():
        handlers = found.setdefault(declared.tag, [])
        handlers.append(_route(declared))
        if declared.download:
            handlers.append(_download(declared))
    return found


def _route(declared: Declared) -> HTTPRouteHandler:
    method, path = declared.http.split()
    asked = _asked(declared)
    asked.__annotations__ |= {"return": told(declared)}
    return HTTPRouteHandler(
        path,
        http_method=method,  # type: ignore[arg-type]
        status_code=declared.status,
        summary=declared.help,
        opt={SHOWS_CONTENT: True} if declared.right == CONTENT else {},
    )(asked)


def _download(declared: Declared) -> HTTPRouteHandler:
    path = declared.http.split()[1]
    ask = _asked(declared)

    async def download(**given: Any) -> Any:
        lines = (json.encode(one) + b"\n" for one in (await ask(**given))[declared.key])
        named = {"content-disposition": f'attachment; filename="{declared.download}"'}
        return Response(b"".join(lines), headers=named, media_type=LINES)

    download.__signature__ = ask.__signature__.replace(return_annotation=Response[bytes])  # type: ignore[attr-defined]
    download.__annotations__ = ask.__annotations__ | {"return": Response[bytes]}
    return HTTPRouteHandler(
        f"{path}/download", http_method="GET", media_type=LINES, summary=f"{declared.help}: a file with lines of JSON"
    )(download)


def _asked(declared: Declared) -> Callable[..., Awaitable[Any]]:
    """The handler, with the parameters of the action."""
    names = {field.encode_name: field.name for field in fields(declared.request)}

    async def asked(request: Request[Any, Any, Any], **given: Any) -> Any:
        body = given.pop("data", None)
        texts = {
            names.get(name, name): as_text(value)
            for name, value in (given | _fields(body)).items()
            if value is not None
        }
        return await served().ask(declared.name, request, **texts)

    arguments = [Argument("request", Argument.KEYWORD_ONLY, annotation=Request[Any, Any, Any]), *_arguments(declared)]
    asked.__name__ = declared.act.__name__.strip("_")
    asked.__signature__ = Signature(arguments, return_annotation=told(declared))  # type: ignore[attr-defined]
    asked.__annotations__ = {one.name: one.annotation for one in arguments}
    return asked


def _fields(body: Struct | None) -> dict[str, Any]:
    return {} if body is None else asdict(body)


def _arguments(declared: Declared) -> Iterator[Argument]:
    own = [one for one in fields(declared.request) if not declared.body or one.name != "node"]
    node = Meta(max_length=1000, description=NODES.get(declared.scope, ALL_NODES))
    if declared.body:
        shape: list[Any] = [
            (one.name, one.type) if is_required(one) else (one.name, one.type, one.default) for one in own
        ]
        if declared.has_node:
            shape.append(("node", Annotated[str, node], ""))
        body = defstruct(declared.body, shape, frozen=True, forbid_unknown_fields=True)
        yield Argument("data", Argument.KEYWORD_ONLY, annotation=JSONBody[body])  # type: ignore[valid-type, misc]
        own = [one for one in fields(declared.request) if one.name == "node"]
    for field in own:
        default = Argument.empty if is_required(field) else "" if field.type is After else field.default
        yield Argument(field.encode_name, Argument.KEYWORD_ONLY, default=default, annotation=_parameter(field))
    if declared.has_node and not declared.body:
        annotation = Annotated[str, Parameter(max_length=1000, description=node.description)]
        yield Argument("node", Argument.KEYWORD_ONLY, default="", annotation=annotation)


def _parameter(field: FieldInfo) -> Any:
    """The type of a parameter, with the limits of the field."""
    if field.type in (After, Limit):
        return PAGES[field.type]
    kind, meta = taken_apart(field.type)
    return Annotated[kind, Parameter() if meta is None else Parameter(**_limits(meta))]
