"""The owner keys and the wills of a simulated cluster, wherever it keeps them: in etcd, or at the leaders of shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.sim.etcd_store import Store

from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_leader import LeadState


def owner_keys(store: Store, prefix: bytes, clusters: Iterable[ClusterState]) -> list[bytes]:
    """``clusters``: those of all running nodes."""
    found = [entry.key for entry in store.get(prefix, prefix=True)]
    for cluster, book in _led(clusters):
        found += [cluster.ownership.key(client_id, key.node) for client_id, key in book.entries()]
    return found


def will_keys(store: Store, prefix: bytes, clusters: Iterable[ClusterState]) -> list[bytes]:
    """The keys of wills, without ``prefix``."""
    found = [entry.key[len(prefix) :] for entry in store.get(prefix, prefix=True)]
    for _, book in _led(clusters):
        found += [key for key, _, _ in book.wills.all()]
    return found


def _led(clusters: Iterable[ClusterState]) -> Iterator[tuple[ClusterState, OwnerBook]]:
    """The books of all shares, with the clusters that lead them."""
    for cluster in clusters:
        shares = cluster.shares
        if shares is None or shares.table.nodes.get(cluster.number) != cluster.view.incarnation:
            continue
        for share, pair in enumerate(shares.table.pairs):
            if pair.leader == cluster.number and shares.leader.state(share) is not LeadState.ASKING:
                yield cluster, shares.books.books[share]
