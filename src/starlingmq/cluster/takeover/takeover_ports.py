"""The queries that takeovers make to other parts of the node: links, routes, members and wills."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from starlingmq.cluster.takeover.transfer_frames import Declined, Rebalance


class TakeoverWills(Protocol):
    """Wills that clients have left (``wills.cluster_wills``)."""

    def settle(
        self, client_id: str, node: int, epoch: int, user: str | None, clean: bool, will: int, since: float
    ) -> bool: ...
    def unpublished(self, client_id: str) -> bool: ...
    def leave(self, client_id: str, node: int, epoch: int) -> tuple[bool, int]: ...
    def take_cleared(self, has: Callable[[str], bool]) -> list[tuple[str, int]]: ...


@dataclass(slots=True)
class TakeoverPorts:
    connected: Callable[[int], bool]  # whether the node is connected
    heard_elsewhere: Callable[[int], bool]  # whether connected nodes report that they hear this node
    applied: Callable[[int], int]  # the version of this node's routes that the given node has applied
    confirm: Callable[[int], None]  # asks all nodes to say when they have applied that version
    known: Callable[[int], tuple[int, int]]  # the (epoch, version) of the given node's routes that this node has
    publishers: Callable[[], Iterable[int] | None]  # nodes that may publish by the routes they have; None: unknown
    name_of: Callable[[int], str]  # the name of a node
    on_drain: Callable[[int, Declined | Rebalance], None]  # receives the drain and rebalance messages of other nodes
    wills: TakeoverWills
    link_window: int  # bytes that may be in flight to one node
