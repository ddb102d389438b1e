"""Copies in whole clusters without disks: followers are chosen, and a lost node is taken over in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.cluster.fleet import Fleet, NodeWorld

from starlingmq.cluster.copies.copy_record import CopyRecord, record_from, record_value
from starlingmq.cluster.copies.copy_registry import StoringNode
from starlingmq.cluster.copies.copy_roles import CopyRoles, OpenCopy
from starlingmq.cluster.copies.copy_server import CALM_SECONDS, CopySettings
from starlingmq.cluster.etcd.etcd_requests import Answer
from starlingmq.cluster.peers.process_presence import ProcessPresence
from starlingmq.config.settings import ClusterConfig

LEASE_SECONDS = 10.0
SETTINGS = CopySettings(copies=2, required=1, timeout=60.0, silence=ClusterConfig().member_timeout)


class CopyingProcess:
    """The part of one node's process that concerns copies. Its storage is ready at once."""

    def __init__(self, fleet: CopyingFleet, name: str, incarnation: int) -> None:
        self.fleet = fleet
        me = StoringNode(name, incarnation, name, "")
        incarnations = (incarnation - 1,) if incarnation > 1 else ()
        self.roles = CopyRoles("test", me, incarnations, SETTINGS, lambda origin: 0)
        self.presence = self.roles.presence = ProcessPresence(name, self.roles.registry, LEASE_SECONDS)
        self.etcd = fleet.etcd.session(f"{name} copies")

    def turn(self) -> None:
        now = self.fleet.now
        self.etcd.keep_alive(now)
        self.roles.turn(now)
        for order in self.roles.take_orders():
            if isinstance(order, OpenCopy):
                self.fleet.opened.append((order.origin, self.roles.me.name, now))
                self.roles.opened(order.origin, order.generation, now)
        for request in self.roles.take_requests(now):
            self.etcd.request(request, now)


class CopyingFleet(Fleet):
    """A follower has everything as soon as it is connected."""

    def __init__(self, count: int) -> None:
        self.processes: dict[str, CopyingProcess] = {}
        self.opened: list[tuple[str, str, float]] = []  # origin, server, when
        super().__init__(count)
        self.advance(1.0)

    def begin(self, **settings: Any) -> NodeWorld:
        node = super().begin(**settings)
        self.start(node)
        return node

    def restart(self, place: int, **settings: Any) -> NodeWorld:
        node = super().restart(place, **settings)
        self.start(node)
        return node

    def start(self, node: NodeWorld) -> None:
        earlier = self.processes.get(node.name)
        incarnation = 1 if earlier is None else earlier.roles.me.incarnation + 1
        process = self.processes[node.name] = CopyingProcess(self, node.name, incarnation)
        process.presence.brokers.append(node.cluster.presence())

    def answered(self, name: str, answer: Answer) -> None:
        super().answered(name, answer)
        process = self.processes.get(name.removesuffix(" copies"))
        if name.endswith(" copies") and process is not None:
            process.roles.answered(answer, self.now)

    def advance(self, seconds: float, step: float = 0.01) -> None:
        end = self.now + seconds
        while self.now < end:
            super().advance(min(0.05, end - self.now), step)
            for process in self.processes.values():
                process.turn()
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
        return self.processes[node.name].roles

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


def test_a_node_that_returns_after_it_was_taken_over_gets_its_data_back_once_it_is_in_step() -> None:
    fleet = CopyingFleet(3)
    fleet.isolate(3)
    fleet.advance(15.0)
    successor = fleet.record("n3").server
    assert successor != "n3"
    fleet.heal()
    fleet.restart(2)
    fleet.advance(10.0)
    record = fleet.record("n3")
    assert (record.server, record.generation) == ("n3", 3) and successor in record.followers
    assert set(record.in_step) >= {"n3", successor}
    assert [server for origin, server, when in fleet.opened if origin == "n3"] == ["n3", successor, "n3"]


def test_a_server_that_has_not_joined_yet_is_not_taken_for_the_member_that_was_lost() -> None:
    fleet = CopyingFleet(3)
    witness = fleet.processes["n1"].presence
    fleet.isolate(3)
    fleet.advance(5.0)
    assert fleet.record("n3").server in ("n1", "n2")
    record = fleet.record("n3")
    process = fleet.processes["n3"]
    process.etcd.keep_alive(fleet.now)
    witness.begin_turn(fleet.now)
    witness._registry.records["n3"] = record.handed_to("n3", 2)
    witness.begin_turn(fleet.now)
    assert not witness.is_gone("n3")  # its lease says that it is there
    witness._former["n3"] = (record.generation + 1, 0)
    assert witness.is_gone("n3")  # its member has joined since, and was lost


def test_a_lost_node_is_waited_for_while_a_node_that_is_there_has_its_data() -> None:
    fleet = CopyingFleet(3)
    fleet.isolate(3)
    fleet.advance(5.0)
    presence = fleet.processes["n1"].presence
    view = presence.brokers[0].view
    record = fleet.record("n3")
    assert presence.is_copied(view, 3)
    presence._registry.records["n3"] = replace(record, in_step={"n3": 1})
    presence._registry.nodes.pop("n3")  # its lease has expired
    assert not presence.is_copied(view, 3)


def test_a_node_that_waits_for_its_data_names_a_successor_if_no_broker_is_open_anywhere() -> None:
    """The data of all nodes is served by one that is gone, as when two machines restart after the loss of a third."""
    record = CopyRecord("n1", 4, "n2", 3, {"n1": 5, "n2": 3}, ("n1",))
    roles = CopyRoles("test", StoringNode("n1", 5, "n1", ""), (), SETTINGS, lambda origin: 0)
    roles.presence = presence = ProcessPresence("n1", roles.registry, LEASE_SECONDS)
    roles.registry.set(roles.registry.key("n1"), record_value(record), 9)
    roles.registry.nodes["n1"] = roles.me
    presence.begin_turn(100.0)
    presence.begin_turn(100.0 + LEASE_SECONDS - 0.1)
    assert not presence.is_leading(), "an open broker may still be found"
    presence.begin_turn(100.0 + LEASE_SECONDS)
    assert presence.is_leading() and presence.is_gone("n2") and presence.is_heard("n1")
    roles.registry.nodes["n2"] = StoringNode("n2", 3, "n2", "")
    assert not presence.is_gone("n2"), "it has its lease"


def test_no_node_waits_for_one_that_waits_for_an_operator() -> None:
    fleet = CopyingFleet(3)
    presence = fleet.processes["n1"].presence
    view, registry = presence.brokers[0].view, presence._registry
    record = fleet.record("n3")
    registry.records["n3"] = replace(record, in_step={"n3": record.in_step["n3"]})
    registry.nodes["n3"] = replace(registry.nodes["n3"], incarnation=2)
    assert presence.is_copied(view, 3)  # it has restarted, and may have its disk
    registry.nodes["n3"] = replace(registry.nodes["n3"], waiting=("n3",))
    assert not presence.is_copied(view, 3)


def test_a_node_that_stops_on_purpose_is_gone_only_when_its_lease_has_expired() -> None:
    fleet = CopyingFleet(3)
    fleet.processes["n3"].roles.stop()
    fleet.advance(0.5)
    fleet.isolate(3)
    fleet.processes.pop("n3")
    fleet.nodes.pop()
    fleet.advance(LEASE_SECONDS / 2)
    assert fleet.record("n3").server == "n3"
    fleet.advance(LEASE_SECONDS * 2)
    assert fleet.record("n3").server != "n3"


def test_a_node_that_has_been_restarted_on_purpose_is_not_gone_before_it_has_taken_its_data_again() -> None:
    fleet = CopyingFleet(3)
    presence = fleet.processes["n1"].presence
    nodes = presence._registry.nodes
    fleet.processes["n3"].roles.stop()
    fleet.advance(0.5)
    fleet.isolate(3)
    fleet.processes.pop("n3")
    fleet.nodes.pop()
    fleet.advance(LEASE_SECONDS / 3)
    nodes["n3"] = StoringNode("n3", 2, "n3", "")  # its new process; the record still has the earlier one
    presence.begin_turn(fleet.now)
    assert not presence.is_gone("n3")
    nodes.pop("n3")
    assert presence.is_gone("n3")


def test_a_node_that_restarts_at_once_serves_its_data_in_a_new_generation() -> None:
    fleet = CopyingFleet(3)
    fleet.restart(2)
    fleet.advance(1.0)
    record = fleet.record("n3")
    assert (record.server, record.generation, record.in_step["n3"]) == ("n3", 2, 2)


def test_a_successor_does_not_wait_for_a_process_that_has_ended() -> None:
    """While the lease of that process lasts. One that was only silent may be back, and have everything."""
    for ended in (True, False):
        fleet = CopyingFleet(3)
        successor = fleet.record("n3").followers[0]
        presence = fleet.processes[successor].presence
        fleet.isolate(3)
        if ended:
            for node in fleet.nodes[:2]:
                assert node.cluster.view.quorum is not None
                node.cluster.view.quorum.process_gone(3, fleet.nodes[2].cluster.view.incarnation, fleet.now)
        while fleet.record("n3").server == "n3":
            fleet.advance(0.1)
        taken_over_at = fleet.now
        assert "n3" in presence._registry.nodes and presence.is_gone("n3") is ended
        assert presence.is_heard("n3") is not ended
        while "n3" in fleet.record("n3").in_step:
            fleet.advance(0.1)
        assert (fleet.now - taken_over_at < 0.6) is ended
