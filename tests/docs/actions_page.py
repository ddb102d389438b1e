"""docs/ACTIONS.md: every action of operators, read from the declarations that the doors are made from."""

from __future__ import annotations

from typing import Final

import starlingmq.admin.all_actions  # noqa: F401  for DECLARED
from starlingmq.admin.declared_actions import ALL, DECLARED, HERE, NODE, PAGED, SORTED, TARGET, Declared

HEAD: Final = """# Operator actions

Each action can be asked for over HTTP at any node, below `/api/v1`, on the control socket of a broker, and where a
command is named with `starlingmq ctl`. This page is written by `python -m tests.docs.generate` from the declarations.

| right | who has it at the HTTP API |
|---|---|
| view | all users that may log in |
| content | as view, without `auth.api.viewers`: the reply has the content of messages |
| operate | all users without `auth.api.viewers` |

[HTTP](HTTP.md) has the rules that hold for all of them; `/docs` of a broker shows their parameters and replies.
"""
NODES: Final = {
    HERE: "",
    NODE: "one, by `node`",
    ALL: "all, or one by `node`",
    PAGED: "all, or one by `node`",
    SORTED: "all, or one by `node`",
    TARGET: "one by `node`, `*` for all",
}


def page() -> str:
    tags = dict.fromkeys(one.tag for one in DECLARED.values())
    return "\n".join([HEAD, *(_section(tag) for tag in sorted(tags))])


def _section(tag: str) -> str:
    head = f"## {tag.title()}\n\n| HTTP | action | right | nodes | ctl |\n|---|---|---|---|---|"
    rows = [_row(one) for one in sorted(DECLARED.values(), key=lambda one: one.http.split()[::-1]) if one.tag == tag]
    return "\n".join([head, *rows, ""])


def _row(one: Declared) -> str:
    command = f"`{one.ctl.split()[0].replace('/', ' ')}`" if one.ctl else ""
    return f"| `{one.http}` | {one.help} | {one.right} | {NODES[one.scope]} | {command} |"
