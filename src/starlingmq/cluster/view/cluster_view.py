"""This node's knowledge of itself and of the other nodes, as several subsystems need it.

``peers.member_follower`` keeps it up to date; ``peers.peer_connections`` keeps ``transports``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.heartbeat_changes import HeartbeatReader
from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.cluster.membership.members import Members
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.membership.relay import Relay
from starlingmq.cluster.routes.route_table import RouteTable


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another member, as this node sees it."""

    member: MemberInfo
    online: bool
    connected: bool
    through: int  # the relay that frames to it pass through; 0: none
    queued: int  # messages that wait for it
    queued_bytes: int
    unacknowledged: int  # data frames
    behind: bool  # some of its routes are missing here
    heard_at: float | None  # when the last frame of it arrived, directly or through a relay


class ClusterView:
    number: int  # of this node; 0 before it is known
    incarnation: int
    left: bool  # or forgotten, or replaced: ``members.problem`` says which
    leaving: bool  # it leaves as soon as nothing is owed to other nodes
    counts_since: int  # revision of the first membership that counts this incarnation; 0: none yet
    members: Members
    quorum: Quorum | None  # this and the next two are set once the number is known
    relay: Relay | None
    routes: RouteTable | None
    transports: dict[int, PeerTransport]  # to all other nodes, including joining ones
    heartbeats: HeartbeatReader  # of all other nodes
    is_copied: Callable[[int], bool]  # whether a node that is there has a copy of that node's data, and will serve it

    def __init__(self, members: Members) -> None:
        self.number = 0
        self.incarnation = 0
        self.left = False
        self.leaving = False
        self.counts_since = 0
        self.members = members
        self.quorum = None
        self.relay = None
        self.routes = None
        self.transports = {}
        self.heartbeats = HeartbeatReader()
        self.is_copied: Callable[[int], bool] = lambda number: False

    def others(self) -> list[MemberInfo]:
        found = [*self.members.membership.members, *self.members.joining]
        return [member for member in found if member.number != self.number]

    def name_of(self, number: int) -> str:
        members = self.members.membership.members
        return next((member.name for member in members if member.number == number), str(number))

    def is_registered(self) -> bool:
        return self.members.state == "registered"

    def is_connected(self, number: int) -> bool:
        return self.quorum is not None and self.quorum.is_connected(number)

    def is_heard_elsewhere(self, number: int) -> bool:
        return self.quorum is not None and self.quorum.is_connected_to_others(number)

    def is_expected(self, number: int) -> bool:
        """Whether to wait for a node that is not connected: others hear it, or one of them has a copy of its data. A
        node without a majority cannot tell, and answers no CONNECT that waits."""
        has_majority = self.quorum is not None and self.quorum.enough()
        return not has_majority or self.is_heard_elsewhere(number) or self.is_copied(number)

    def applied_by(self, number: int) -> int:
        """The version of this node's routes that the given node has applied."""
        return 0 if self.routes is None else self.routes.applied_by((number,))

    def confirm(self, version: int) -> None:
        """Something waits for ``applied_by`` to reach this version."""
        if self.routes is not None:
            self.routes.confirm(version)

    def known_of(self, number: int) -> tuple[int, int]:
        """Epoch and version of that node's routes, as far as they are here."""
        return (0, 0) if self.routes is None else self.routes.state_of(number)

    # Status

    def status(self) -> list[PeerStatus]:
        return [self._status(member) for member in self.others() if member.number in self.transports]

    def _status(self, member: MemberInfo) -> PeerStatus:
        transport = self.transports[member.number]
        queue = transport.peer.session.queue
        connected = self.is_connected(member.number)
        waiting = 0 if queue is None else len(queue)
        hop = self.relay.next_hop(member.number) if self.relay is not None else None
        return PeerStatus(
            member,
            member.number in self.members.online,
            connected,
            hop if hop is not None and hop != member.number else 0,
            waiting if connected else max(transport.waiting(), waiting + transport.link.unacknowledged()),
            0 if queue is None else queue.bytes,
            transport.link.unacknowledged(),
            transport.behind_since != 0.0,
            None if self.quorum is None else self.quorum.heard_at(member.number),
        )
