"""The traces of an action that changes something: a line in the log of the node that does it, and an entry for the
list of actions (``admin.action_log``). ``noted`` is the one place through which they all go.

| | line | entry |
|---|---|---|
| it is done | the text ``audit`` of its declaration | the same, ``done`` |
| it waits as long as it takes | what is asked for, before | the same, ``begun`` |
| it fails | what is asked for, and why it failed | the same, ``failed: ...`` |
| its reply has ``found`` or ``applied`` false, or it is a check only | none | none |

What is asked for has only those fields of the request that ``audit`` names: others may be secret.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from string import Formatter
from time import time
from typing import Any, Final, Protocol

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from starlingmq.log import printable
from starlingmq.net.control_socket import Report
from starlingmq.net.operators import acting

log = logging.getLogger("starlingmq.admin")

TEXT_MAX: Final = 500  # characters of each text of an entry
DONE: Final = "done"
BEGUN: Final = "begun"
SOMEBODY: Final = "somebody"


class ActionEntry(Struct, frozen=True, omit_defaults=True):
    """``at``: Unix seconds. ``request``: the same in all entries about one request, at all nodes. ``client``: the
    client id that it is about. ``count``: how many actions it stands for, the last of which it tells."""

    at: float
    by: str
    address: str
    request: str
    action: str
    what: str
    outcome: str
    before: str = ""
    after: str = ""
    client: str = ""
    count: int = 1


class NotedDeclaration(Protocol):
    """The part of a declaration (``admin.declared_actions``) that is about the log."""

    name: str
    audit: str
    level: int
    waits: bool


Note = Callable[[ActionEntry, bool], None]
"""Takes an entry, and whether those of its kind may come often."""


def noted(declared: NotedDeclaration, act: Callable[..., Awaitable[Any]], note: Note) -> Callable[..., Awaitable[Any]]:
    """The action, which leaves its line and its entry."""

    def tell(request: Any, what: str, outcome: str, reply: Any = None) -> None:
        operator = acting.get()
        note(
            ActionEntry(
                time(),
                operator.name or SOMEBODY,
                operator.address,
                operator.request,
                declared.name,
                cut(what),
                cut(outcome),
                cut(_shown(getattr(reply, "before", None))),
                cut(_shown(getattr(reply, "after", None))),
                cut(getattr(request, "client_id", "") or getattr(reply, "client_id", "")),
            ),
            declared.level < logging.INFO,
        )

    async def asked(report: Report, request: Any) -> Any:
        if getattr(request, "only_check", False):
            return await act(report, request)
        who = acting.get().name or SOMEBODY
        wanted = _asked_for(declared, request)
        if declared.waits:
            log.log(declared.level, "%s asked for %s", who, wanted)
            tell(request, f"asked for {wanted}", BEGUN)
        try:
            reply = await act(report, request)
        except BaseException as error:
            why = str(error) or type(error).__name__
            log.log(declared.level, "%s asked for %s, which failed: %s", who, wanted, why)
            tell(request, f"asked for {wanted}", f"failed: {why}")
            raise
        if getattr(reply, "found", True) and getattr(reply, "applied", True):
            what = declared.audit.format_map(_facts(reply) | _facts(request))
            log.log(declared.level, "%s %s", who, what)
            tell(request, what, DONE, reply)
        return reply

    return asked


def _asked_for(declared: NotedDeclaration, request: Any) -> str:
    named = {name for _, name, _, _ in Formatter().parse(declared.audit) if name}
    facts = [f"{value!r}" for name, value in _facts(request).items() if name in named]
    return " ".join([declared.name, *facts])


def _facts(told: Any) -> dict[str, Any]:
    return asdict(told) if isinstance(told, Struct) else dict(told)


def _shown(value: Any) -> str:
    """A value before or after a change; "": there is none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_shown(to_builtins(one))}" for name, one in value.items())
    return str(value)


def cut(text: str) -> str:
    """As texts stand in entries: on one line, and bounded."""
    text = printable(text[: TEXT_MAX + 1])
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
