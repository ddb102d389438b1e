"""Other nodes of the cluster as operators see them."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

PEER_COLUMNS: Final = (
    "node: from, peer: to, connected, through, round_trip_ms: round trip (ms), queued, queued_bytes: bytes/bytes*, "
    "unacknowledged: frames in flight*, heard_seconds: heard/seconds"
)


class PeerInfo(Struct, frozen=True):
    """How a node reaches ``peer``. ``node`` is set in lists of several nodes."""

    peer: str
    connected: Annotated[
        bool, Meta(description="Whether the node is connected to the peer, or to the node that serves the peer's data.")
    ]
    through: Annotated[
        str, Meta(description="The node that relays frames between the two; empty if they are connected directly.")
    ]
    queued: Annotated[int, Meta(description="Messages queued for the peer.")]
    queued_bytes: int
    unacknowledged: Annotated[int, Meta(description="Message frames in flight.")]
    round_trip_ms: Annotated[
        float | None, Meta(description="Round-trip time of an empty request, at most a few seconds old.")
    ]
    heard_seconds: Annotated[float | None, Meta(description="Seconds since the last data from the peer.")]
    node: str = ""
    served_by: Annotated[
        str, Meta(description="The node that serves the peer's data, because the peer is gone; empty: none.")
    ] = ""
