"""What lists have in common: how much of them at a time, from where on, and of which nodes."""

from __future__ import annotations

from typing import Annotated, Final

from litestar.params import Parameter

from starlingmq.admin.printable import PAGE_MAX

PAGE: Final = 100

Limit = Annotated[int, Parameter(ge=1, le=PAGE_MAX, description="Entries of one page.")]
Cursor = Annotated[
    str | None, Parameter(max_length=200_000, description="Where to go on: ``next`` of the page before.")
]
Search = Annotated[str, Parameter(max_length=1000, description="Only those that have this in their client id.")]
Node = Annotated[str, Parameter(max_length=1000, description="Only this node; without it all nodes of the cluster.")]
AtNode = Annotated[str, Parameter(max_length=1000, description="The node that is meant; without it the one asked.")]
