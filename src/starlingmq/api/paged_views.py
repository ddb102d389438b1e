"""Common parameters of lists: page size, cursor, and node."""

from __future__ import annotations

from typing import Annotated, Final

from litestar.params import Parameter

from starlingmq.admin.printable import PAGE_MAX

PAGE: Final = 100

Limit = Annotated[int, Parameter(ge=1, le=PAGE_MAX, description="Maximum number of entries per page.")]
Cursor = Annotated[
    str | None, Parameter(max_length=200_000, description="Position to continue from: ``next`` of the previous page.")
]
Search = Annotated[str, Parameter(max_length=1000, description="Only entries whose client id contains this text.")]
Node = Annotated[str, Parameter(max_length=1000, description="Only this node. Default: all nodes of the cluster.")]
AtNode = Annotated[
    str, Parameter(max_length=1000, description="The node to use. Default: the node that receives the request.")
]
Descending = Annotated[bool, Parameter(description="Whether the highest value comes first.")]
