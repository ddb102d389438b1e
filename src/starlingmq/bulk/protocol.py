"""The protocol between readers of streams and the service, over Arrow Flight; only these two import it.

    do_get     a ``Ticket``: its rows, as batches of ``schema_of`` its columns, each with a ``Progress`` as metadata
    do_action  ``nodes``    -> Nodes: the servers of streams
               ``streams``  -> list of Bounds: the streams readable here; with a Wanted: this stream only
               ``seek``     Seek -> offset: of the first message published then or later
               ``limit``    Limit -> offset: the end of so many bytes
               ``commit``   Commit -> lag, in messages
    An error that the reader handles carries a ``StreamProblem``.

A stream has an id on each node. It changes when the stream is deleted and created again, or the node loses its disk. A
request with the id of an earlier answer is refused when the stream now has another id. The header ``NODE`` names the
node that a call is for: another node at that address refuses the call as unavailable.

All messages are JSON. The reader sends the token if the service requires one: ``authorization: Bearer TOKEN``; and user
and password if the broker's rules require them: the header ``USER`` is ``Basic``, as in HTTP. A call about a stream
that this user may not read is refused (FlightUnauthorizedError).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from starlingmq.config.plain_names import NAME_BYTES_MAX

REQUEST_BYTES_MAX: Final = 1 << 20  # size of a ticket, or of the body of an action
FILTERS_MAX: Final = 1000

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("client_id", pa.string(), nullable=False),
        pa.field(
            "properties",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.string(), False)]),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
    ]
)

Offset = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
StreamId = Annotated[str, msgspec.Meta(max_length=64)]
StreamName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Consumer = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Filters = Annotated[list[Annotated[str, msgspec.Meta(max_length=65535)]], msgspec.Meta(max_length=FILTERS_MAX)]

ColumnName = Literal["topic", "payload", "qos", "retain", "client_id", "properties", "timestamp", "node", "offset"]

USER: Final = "x-starlingmq-user"
NODE: Final = "x-starlingmq-node"
TRIMMED: Final = "trimmed"
MISSING: Final = "missing"
REPLACED: Final = "replaced"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """``start`` <= offset < ``end``, of topics that one of ``filters`` matches (none: all). ``forgive``: deleted rows
    are skipped and reported as lost. ``columns``: those that are sent, in this order; none: all.
    """

    stream: StreamName
    start: Offset
    end: Offset
    filters: Filters = []
    forgive: bool = False
    id: StreamId = ""
    columns: Annotated[list[ColumnName], msgspec.Meta(max_length=len(SCHEMA))] = []


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """After this batch, all rows before ``next`` were sent, except ``lost`` rows since the previous batch."""

    next: int
    lost: int = 0


class NodeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """``away``: a member of the cluster that is not connected now; it may hold a partition of the stream."""

    name: str
    address: str  # host:port, "" for a node without a server
    away: bool = False


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """``node``: the node that answers. ``nodes``: all nodes that it knows, itself included. ``cluster``: the list is
    complete.
    """

    node: str
    nodes: list[NodeAddress]
    cluster: bool = False


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    stream: StreamName


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The readable range: ``first`` <= offset < ``next``. ``begin``: the first offset that the stream ever had here.
    ``earlier``: ids that the stream had before a restore, each with the offset up to which its rows are unchanged.
    """

    stream: str
    first: int
    next: int
    topics: list[str]
    id: str = ""
    begin: int = 0
    earlier: dict[str, int] = {}


class Seek(msgspec.Struct, frozen=True, kw_only=True):
    """``when`` in Unix seconds."""

    stream: StreamName
    when: float


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    stream: StreamName
    start: Offset
    bytes: Offset


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """``consumer`` has read everything before ``next``; ``pins``: retention keeps the rest."""

    stream: StreamName
    consumer: Consumer
    next: Offset
    pins: bool = False
    id: StreamId = ""


class StreamProblem(msgspec.Struct, frozen=True, kw_only=True):
    """``code`` TRIMMED: ``first`` is the oldest offset kept; MISSING: no such stream there; REPLACED: the stream has
    another id than the request.
    """

    code: str
    message: str
    first: int = 0


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of these columns; of all, if there are none."""
    return pa.schema([SCHEMA.field(name) for name in columns]) if columns else SCHEMA
