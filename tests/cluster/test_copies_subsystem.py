"""Copies in whole clusters without disks: followers are chosen, and a lost node is taken over in time."""

from __future__ import annotations

from typing import Any

from tests.cluster.fleet import Fleet, NodeWorld

from starlingmq.cluster.cluster_ready import ClusterReady
from starlingmq.cluster.copies.copy_record import CopyRecord, record_from
from starlingmq.cluster.copies.copy_registry import StoringNode
from starlingmq.cluster.copies.copy_roles import CopyRoles, OpenCopy
from starlingmq.cluster.copies.copy_server import CALM_SECONDS, CopySettings
from starlingmq.config.settings import ClusterConfig

SETTINGS = CopySettings(copies=2, required=1, timeout=60.0, silence=ClusterConfig().member_timeout)


class CopyingFleet(Fleet):
    """Its storage is ready at once: what is opened is open, and a follower has everything."""

    def __init__(self, count: int) -> None:
        self.incarnations: dict[str, int] = {}
        self.opened: list[tuple[str, str, float]] = []  # origin, server, when
        super().__init__(count)
        self.advance(1.0)

    def roles(self, name: str) -> CopyRoles:
        incarnation = self.incarnations[name] = self.incarnations.get(name, 0) + 1
        incarnations = (incarnation - 1,) if incarnation > 1 else ()
        return CopyRoles("test", StoringNode(name, incarnation, name, ""), incarnations, SETTINGS, lambda origin: 0)

    def begin(self, **settings: Any) -> NodeWorld:
        node = super().begin(**settings)
        node.on_cluster_ready = self.carry_copies
        return node

    def restart(self, place: int, **settings: Any) -> NodeWorld:
        node = super().restart(place, **settings)
        node.on_cluster_ready = self.carry_copies
        return node

    def carry_copies(self, node: NodeWorld, ready: ClusterReady) -> None:
        roles = self.roles_of(node)
        for order in ready.copies:
            if isinstance(order, OpenCopy):
                self.opened.append((order.origin, node.name, self.now))
                roles.opened(order.origin, order.generation, self.now)

    def advance(self, seconds: float, step: float = 0.01) -> None:
        end = self.now + seconds
        while self.now < end:
            super().advance(min(0.1, end - self.now), step)
            for node in self.nodes:
                for origin, server in self.roles_of(node).servers.items():
                    for name in server.followers:
                        self._follow(origin, node, name)

    def _follow(self, origin: str, node: NodeWorld, name: str) -> None:
        server = self.roles_of(node).servers[origin]
        for other in self.nodes:
            reaches = (node.cluster.number, other.cluster.number) not in self.cuts
            if other.name == name and reaches:
                generation = server.record.generation
                if self.roles_of(other).accepts(origin, node.name, generation) and not server.followers[name].live:
                    incarnation = self.roles_of(other).me.incarnation
                    self.roles_of(node).attached(origin, name, incarnation, False, self.now)
                    self.roles_of(node).caught_up(origin, name, self.now)

    def roles_of(self, node: NodeWorld) -> CopyRoles:
        (subsystem,) = [each for each in node.cluster.subsystems if hasattr(each, "roles")]
        roles = subsystem.roles
        assert isinstance(roles, CopyRoles)
        return roles

    def record(self, origin: str) -> CopyRecord:
        return record_from(origin, self.etcd.store.get(f"/starlingmq/test/copies/{origin}".encode())[0].value)

    def isolate(self, number: int) -> None:
        for other in (1, 2, 3):
            if other != number:
                self.cut(number, other)


def test_each_node_gets_a_follower_and_all_of_them_are_in_step() -> None:
    fleet = CopyingFleet(3)
    records = [fleet.record(node.name) for node in fleet.nodes]
    assert [record.server for record in records] == ["n1", "n2", "n3"]
    assert [len(record.in_step) for record in records] == [2, 2, 2]
    fleet.advance(9 * CALM_SECONDS, 0.05)
    assert sorted(name for node in fleet.nodes for name in fleet.record(node.name).followers) == ["n1", "n2", "n3"]


def test_a_node_that_no_other_hears_is_taken_over_within_three_seconds() -> None:
    fleet = CopyingFleet(3)
    follower = fleet.record("n3").followers[0]
    lost_at = fleet.now
    fleet.isolate(3)
    fleet.advance(3.5)
    record = fleet.record("n3")
    assert (record.server, record.generation) == (follower, 2)
    (origin, server, when) = fleet.opened[-1]
    assert (origin, server) == ("n3", follower) and when - lost_at < 3.1


def test_a_node_that_one_other_does_not_hear_keeps_its_data() -> None:
    fleet = CopyingFleet(3)
    leader = next(node for node in fleet.nodes if node.cluster.leader.leading)
    other = next(node for node in fleet.nodes if node is not leader)
    fleet.cut(leader.cluster.number, other.cluster.number)
    fleet.advance(15.0)
    assert [fleet.record(node.name).generation for node in fleet.nodes] == [1, 1, 1]


def test_a_node_that_returns_after_it_was_taken_over_follows() -> None:
    fleet = CopyingFleet(3)
    fleet.isolate(3)
    fleet.advance(15.0)
    successor = fleet.record("n3").server
    fleet.heal()
    fleet.restart(2)
    fleet.advance(10.0)
    record = fleet.record("n3")
    assert record.server == successor and record.followers == ("n3",)
    assert ("n3", "n3") not in [(origin, server) for origin, server, when in fleet.opened if when > fleet.now - 10.0]


def test_a_node_that_restarts_at_once_serves_its_data_in_a_new_generation() -> None:
    fleet = CopyingFleet(3)
    fleet.restart(2)
    fleet.advance(1.0)
    record = fleet.record("n3")
    assert (record.server, record.generation, record.in_step["n3"]) == ("n3", 2, 2)


def test_without_copies_a_cluster_has_no_such_subsystem_and_no_such_key() -> None:
    fleet = Fleet(2)
    fleet.advance(5.0)
    assert not any(hasattr(each, "roles") for node in fleet.nodes for each in node.cluster.subsystems)
    assert fleet.etcd.store.get(b"/starlingmq/test/copies/", True) == ()
