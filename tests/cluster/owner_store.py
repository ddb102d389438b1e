"""The owner keys and the wills of a simulated cluster, at the leaders of shares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.etcd.etcd_requests import Put, Txn
from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_leader import LeadState
from starlingmq.cluster.shares.share_table import Pair, ShareTable, encode_table


def owner_keys(clusters: Iterable[ClusterState]) -> list[tuple[str, int]]:
    """Client id and node of each key. ``clusters``: those of all running nodes."""
    return [(client_id, key.node) for book in _led(clusters) for client_id, key in book.entries()]


def will_keys(clusters: Iterable[ClusterState]) -> list[bytes]:
    """The keys of wills, without the prefix of all wills."""
    return [key for book in _led(clusters) for key, _, _ in book.wills.all()]


def table_led_by(clusters: Collection[ClusterState], leader: int, deputy: int) -> tuple[int, Txn]:
    """The version of the next table, and what writes it into etcd: that node leads all shares, the other is the deputy.
    It holds until nodes come, go or restart."""
    nodes = {cluster.number: cluster.view.incarnation for cluster in clusters}
    shares = max([cluster.shares for cluster in clusters], key=lambda shares: shares.table.version)
    table = shares.table  # of no nodes before the first one is written
    version = table.version + 1
    pairs = tuple([Pair(leader, deputy, version, before.since) for before in table.pairs])
    put = Put(shares.keeper._key, encode_table(ShareTable(version, table.nodes or nodes, pairs)))
    return version, Txn("table", (), (put,))


def at_rest(cluster: ClusterState, nodes: int, version: int = 0) -> bool:
    """Whether the node has that table or a later one, of so many nodes, serves the shares that it leads, and waits for
    nothing that it has asked of others."""
    shares = cluster.shares
    if len(shares.table.nodes) != nodes or shares.table.version < version:
        return False
    return all(led.state is LeadState.SERVING for led in shares.leader.led()) and shares.owners.lines.idle()


def _led(clusters: Iterable[ClusterState]) -> Iterator[OwnerBook]:
    """The books of all shares."""
    for cluster in clusters:
        shares = cluster.shares
        if shares.table.nodes.get(cluster.number) != cluster.view.incarnation:
            continue
        for share, pair in enumerate(shares.table.pairs):
            if pair.leader == cluster.number and shares.leader.state(share) is not LeadState.ASKING:
                yield shares.books.books[share]
