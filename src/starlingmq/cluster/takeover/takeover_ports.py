"""What takeovers ask the rest of the node: its links, routes, members and wills."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlingmq.cluster.takeover.transfer_frames import Declined, Rebalance
from starlingmq.cluster.wills.cluster_wills import ClusterWills


@dataclass(slots=True)
class TakeoverPorts:
    connected: Callable[[int], bool]  # whether a node is connected
    heard_elsewhere: Callable[[int], bool]  # whether connected nodes say that they are connected to that one
    applied: Callable[[int], int]  # which version of this node's routes a node has applied
    known: Callable[[int], tuple[int, int]]  # which (epoch, version) of a node's routes this node has
    publishers: Callable[[], Iterable[int] | None]  # nodes that may publish by the routes they have; None: not known
    name_of: Callable[[int], str]  # the name of a node
    on_drain: Callable[[int, Declined | Rebalance], None]  # takes what a node says of draining
    wills: ClusterWills
