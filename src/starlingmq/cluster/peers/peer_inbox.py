"""Messages of other nodes, passed to the core in each turn as far as it has capacity."""

from __future__ import annotations

from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.cluster.view.cluster_ready import ClusterReady
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.delivery.forward_batch import ForwardError


class PeerInbox(Subsystem):
    def __init__(self, view: ClusterView, ready: ClusterReady) -> None:
        self._view = view
        self._ready = ready
        self._more = False  # work for the next turn

    def look(self, now: float) -> None:
        more = False
        for transport in self._view.transports.values():
            more = self._deliver(transport) or more
        self._more = more

    def _deliver(self, transport: PeerTransport) -> bool:
        try:
            return transport.deliver()
        except ForwardError as error:
            self._ready.notices.append(f"node {transport.peer.number} sent a malformed frame: {error}")
            transport.drop_unreadable()
            return True

    def is_pending(self) -> bool:
        return self._more

    def is_empty(self) -> bool:
        """Whether the core has accepted all messages."""
        return not any(transport.waits() for transport in self._view.transports.values())
