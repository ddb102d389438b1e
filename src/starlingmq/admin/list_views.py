"""Lists as the dashboard shows those that have no view of their own there: by what their declarations say."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import fields

from starlingmq.admin.declared_actions import DECLARED, Declared, action, table_of
from starlingmq.admin.table_columns import Kind
from starlingmq.admin.typed_actions import taken_apart


class ListColumn(Struct, frozen=True):
    field: str
    title: str
    kind: Kind


class ListView(Struct, frozen=True):
    name: Annotated[str, Meta(description="Name of the list in the reply.")]
    group: Annotated[str, Meta(description="Group of its path in this document.")]
    path: str
    columns: list[ListColumn]
    filters: Annotated[dict[str, str], Meta(description="Parameters with a text, and what each selects.")]


def _is_whole(declared: Declared) -> bool:
    """Whether it is a list without a question, such as that for one topic."""
    return not any(each.required for each in fields(declared.request))


def _view(declared: Declared) -> ListView:
    name, columns = table_of(declared)
    shown = [ListColumn(field, one.title, one.kind) for field, one in columns.items()]
    asked = {one.encode_name: taken_apart(one.type) for one in fields(declared.request)}
    filters = {name: meta.description or "" for name, (kind, meta) in asked.items() if kind is str and meta is not None}
    return ListView(name, declared.tag, declared.http.split()[1], shown, filters)


class ListActions:
    @action("lists", "GET /lists", tag="overview")
    async def lists(self) -> list[ListView]:
        """List the lists that have columns, with their filters, as the dashboard shows them."""
        return [_view(one) for one in DECLARED.values() if one.columns and _is_whole(one)]
