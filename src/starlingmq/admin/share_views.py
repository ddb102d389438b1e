"""Which nodes lead the shares of client ids, and how far their deputies are: for ``ctl cluster shares``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

if TYPE_CHECKING:
    from starlingmq.cluster.cluster_state import ClusterState


class SharesRequest(Struct, frozen=True):
    client: Annotated[str, Meta(max_length=65535, description="A client id whose share is looked up. Empty: none.")] = (
        ""
    )


class ShareNodeView(Struct, frozen=True):
    node: str
    leads: Annotated[int, Meta(description="Shares that the node leads.")]
    deputizes: Annotated[int, Meta(description="Shares whose deputy it is.")]
    behind: Annotated[
        int, Meta(description="Messages about owners from this node that the node has not acknowledged yet.")
    ]
    unknown: Annotated[
        bool, Meta(description="What the node has could not be asked: each claim here counts it as a former owner.")
    ]


class ShareLookup(Struct, frozen=True):
    """The share of one client id."""

    client: str
    share: int
    leader: Annotated[str, Meta(description="Empty: no node.")]
    deputy: Annotated[str, Meta(description="Empty: no node, as in a cluster of one.")]


class SharesView(Struct, frozen=True):
    """``asking`` and what follows concern the shares that this node leads."""

    version: Annotated[int, Meta(description="Version of the table of shares.")] = 0
    listed: Annotated[bool, Meta(description="Whether this node takes part in this version.")] = False
    nodes: list[ShareNodeView] = []
    asking: Annotated[int, Meta(description="Shares whose keys are being collected from the nodes.")] = 0
    copying: Annotated[int, Meta(description="Shares whose deputy has no copy yet.")] = 0
    waiting: Annotated[int, Meta(description="Requests that wait for these shares.")] = 0
    client_ids: Annotated[int, Meta(description="Client ids with an owner key.")] = 0
    granted: Annotated[int, Meta(description="Claims granted since the node started.")] = 0
    lookup: ShareLookup | None = None


def view_shares(state: ClusterState, client: str) -> SharesView:
    from starlingmq.cluster.shares.share_figures import figures_of  # late: only a member of a cluster has them
    from starlingmq.cluster.shares.share_table import share_of

    shares = state.shares
    found = figures_of(shares)
    numbers = sorted({*found.led, *found.deputized, *found.behind, *found.unknown} - {0})
    name_of = state.view.name_of
    nodes = [
        ShareNodeView(
            name_of(number),
            found.led.get(number, 0),
            found.deputized.get(number, 0),
            found.behind.get(number, 0),
            number in found.unknown,
        )
        for number in numbers
    ]
    lookup = None
    if client:
        pair = shares.table.of(client)
        names = ["" if not number else name_of(number) for number in pair[:2]]
        lookup = ShareLookup(client, share_of(client), names[0], names[1])
    return replace(convert(found._asdict(), SharesView), nodes=nodes, lookup=lookup)
