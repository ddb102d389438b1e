"""A node of the worlds of shares: its claims and its part of the shares, with what it holds as a dict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tests.sim.etcd_model import EtcdModel

from starlingmq.cluster.etcd.etcd_requests import Compare
from starlingmq.cluster.links.control_frames import MemberInfo, Membership
from starlingmq.cluster.links.peer_frames import ShareFrame
from starlingmq.cluster.shares.owner_requests import OwnerRequests
from starlingmq.cluster.shares.share_books import ShareBooks
from starlingmq.cluster.shares.share_messages import WillKey
from starlingmq.cluster.shares.shares import Shares
from starlingmq.cluster.shares.will_requests import WillRequests
from starlingmq.cluster.takeover.ownership import Ownership, OwnershipPorts
from starlingmq.cluster.view.subsystem import NodeLife

LEADER = b"/leader"


class World(Protocol):
    now: float
    etcd: EtcdModel
    nodes: list[ShareNode]
    leading: int  # the node that leads the cluster

    def node(self, number: int) -> ShareNode: ...
    def members(self) -> tuple[MemberInfo, ...]: ...
    def connected(self, one: int, other: int) -> bool: ...
    def silent_for(self, one: int, other: int) -> float: ...
    def gone(self, number: int) -> bool: ...
    def owned(self, node: ShareNode, client_id: str, epoch: int, others: dict[int, int]) -> None: ...
    def carry(self, source: ShareNode, target: int, frame: ShareFrame) -> None: ...


class KnownMembers:
    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def membership(self) -> Membership:
        return Membership(1, self._world.members())


class NodeView:
    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.members = KnownMembers(world)

    def is_connected(self, number: int) -> bool:
        return self._world.connected(self._number, number) and self._world.silent_for(self._number, number) < 1.0


class Leadership:
    """The world elects."""

    def __init__(self, world: World, number: int, life: int) -> None:
        self._world = world
        self._number = number
        self._life = life

    @property
    def leading(self) -> bool:
        return self._world.leading == self._number

    def held(self) -> Compare:
        return Compare(LEADER, "value", "=", b"%d %d" % (self._number, self._life))


class ShareNode:
    """``held``: client id -> epoch of the session here. ``wanted``: clients that wait."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.lives = 0
        self.alive = False
        self.held: dict[str, int] = {}
        self.wanted: dict[str, None] = {}
        self.overtaken: dict[str, int] = {}  # client id -> epoch of another node, while it is claimed here
        self.asked: dict[str, int] = {}  # client id -> the latest epoch in which it was served, when it was claimed
        self._lives_known: list[int] = []
        self._written_before = 0

    def start(self) -> None:
        self.lives += 1
        self.alive = True
        ports = OwnershipPorts(
            lambda _: 0, lambda name: name in self.wanted, lambda _: False, lambda _: b"", lambda *_: None
        )
        owners, books = OwnerRequests(), ShareBooks()
        self.ownership = Ownership(owners, ports)
        view: Any = NodeView(self.world, self.number)
        election: Any = Leadership(self.world, self.number, self.lives)
        holdings: Any = self
        self.shares = Shares(view, "test", 2.0, election, owners, WillRequests(books), books, holdings, self.world.gone)
        self.session = self.world.etcd.session(f"n{self.number}")
        me = MemberInfo(f"n{self.number}", self.number, self.lives, "")
        self.shares.enter(NodeLife(me, 1, {}), self.world.now)
        self.ownership.enter(self.number)

    def crash(self, durable: bool) -> None:
        self._written_before += self.shares.keeper.written
        self.alive = False
        self.wanted.clear()
        self.overtaken.clear()
        self.session.close(self.world.now, False)
        if not durable:
            self.held.clear()

    def written(self) -> int:
        return self._written_before + (self.shares.keeper.written if self.alive else 0)

    # Holdings

    def client_ids(self) -> Iterable[str]:
        return [*self.held, *self.ownership.answered_ids()]

    def held_key(self, client_id: str) -> tuple[int, int]:
        epoch = max(self.held.get(client_id, 0), self.ownership.answered_epoch(client_id))
        return epoch, 0

    def held_wills(self, client_id: str) -> list[WillKey]:
        return []

    def served_epoch(self, client_id: str) -> int:
        return 0

    def has(self, client_id: str) -> bool:
        return client_id in self.held or client_id in self.wanted or self.ownership.claiming(client_id)

    def release(self, client_id: str, epoch: int) -> None:
        if not self.has(client_id):
            self.ownership.release(client_id, self.number, epoch)

    def newest(self) -> int:
        return max(self.held.values(), default=0)

    # A turn

    def turn(self, now: float) -> None:
        lives = [node.lives for node in self.world.nodes]
        if lives != self._lives_known:
            self._lives_known = lives
            self.shares.set_members({})
        self.shares.begin_turn(now)
        for owned in self.ownership.take_owned():
            self.world.owned(self, owned.client_id, owned.epoch, owned.others)
        for client_id, node, epoch in self.ownership.take_rewritten():
            other = self.world.node(node)
            if other.alive and not other.has(client_id):
                self.ownership.release(client_id, node, epoch)
        self.ownership.ask()
        for request in self.shares.take_requests(now):
            self.session.request(request, now)
        for target, frame in self.shares.take_owner_frames(now):
            self.world.carry(self, target, frame)
