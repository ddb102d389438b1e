"""Copies, one node at a time: its role for each origin, and what it does when it starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cluster.test_copies import RECORD, SETTINGS

from starlingmq.cluster.copies.copy_record import CopyRecord, new_record, record_from, record_value
from starlingmq.cluster.copies.copy_registry import StoringNode
from starlingmq.cluster.copies.copy_roles import CloseCopy, CopyRoles, OpenCopy, Order, Require, SetAside
from starlingmq.cluster.copies.role_table import Role
from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Delete,
    Get,
    KeyValue,
    LeaseLost,
    Request,
    Txn,
    TxnAnswer,
    Watch,
)


class Lone:
    """One process with an etcd that does what it is asked at once."""

    def __init__(
        self,
        incarnation: int,
        incarnations: tuple[int, ...],
        records: list[CopyRecord],
        whole: tuple[str, ...] | None = None,
        blank: bool = False,
        known: dict[str, int] | None = None,
    ) -> None:
        self.revision = 10
        self.roles = CopyRoles(
            "c", StoringNode("a", incarnation, "m", ""), incarnations, SETTINGS, lambda origin: 0, whole, blank, known
        )
        registry = self.roles.registry
        self.there = {registry.key(each.origin): (record_value(each), 5) for each in records}

    def run(self, *before: Answer) -> list[Order]:
        """Turns until there is nothing more to ask; the orders."""
        orders: list[Order] = []
        waiting: list[Request] = []
        for answer in before:
            self.roles.answered(answer, 1.0)
        for _ in range(9):
            self.roles.turn(1.0)
            orders += self.roles.take_orders()
            waiting = self.roles.take_requests(1.0)
            for request in waiting:
                self._answer(request)
        return orders

    def _answer(self, request: Request) -> None:
        if isinstance(request, Watch):
            return
        assert isinstance(request, Txn)
        found: list[tuple[KeyValue, ...]] = []
        for operation in request.success:
            if isinstance(operation, Get):
                keys = [key for key in self.there if key.startswith(operation.key)]
                found.append(tuple([KeyValue(key, self.there[key][0], 1, self.there[key][1]) for key in keys]))
            elif isinstance(operation, Delete):
                self.revision += 1
                self.there.pop(operation.key, None)
                found.append(())
            else:
                self.revision += 1
                self.there[operation.key] = (getattr(operation, "value", b""), self.revision)
                found.append(())
        self.roles.answered(TxnAnswer(request.tag, True, self.revision, tuple(found)), 1.0)

    def record(self, origin: str) -> CopyRecord:
        return record_from(origin, self.there[self.roles.registry.key(origin)][0])


def test_a_first_start_writes_the_first_record_and_opens_its_own_data() -> None:
    lone = Lone(1, (), [])
    orders = lone.run()
    assert lone.record("a") == new_record("a", 1) and orders == [OpenCopy("a", 1)]
    assert lone.roles.settled


def test_a_node_that_has_left_closes_its_data_and_its_record_is_gone() -> None:
    lone = Lone(1, (), [])
    lone.run()
    lone.roles.forget("a")
    assert lone.run() == [CloseCopy("a")]
    assert lone.roles.registry.records == {}
    assert lone.run() == []  # it writes no new one


@pytest.mark.parametrize("records", [[], [RECORD]], ids=["a new etcd", "etcd restored from a backup"])
def test_a_generation_is_above_the_one_that_the_disk_knows(records: list[CopyRecord]) -> None:
    lone = Lone(8, (7,), records, known={"a": 57})
    assert lone.run() == [OpenCopy("a", 58)]


def test_a_node_that_was_forgotten_sets_its_data_aside_before_it_begins_again() -> None:
    lone = Lone(8, (7,), [])
    mark = lone.roles.registry.forgotten_key("a")
    lone.there[mark] = (b"", 6)
    assert lone.run() == [SetAside()] and lone.roles.registry.records == {}
    lone.roles.began_blank()
    assert lone.run() == [OpenCopy("a", 8)]
    assert lone.record("a") == new_record("a", 8) and mark not in lone.there
    assert not lone.roles.registry.is_forgotten("a")


def test_a_copy_is_obsolete_once_its_node_is_forgotten_or_enough_others_are_in_step() -> None:
    records = [
        replace(RECORD, origin="x", server="y", in_step={"y": 1}, followers=("z",)),
        replace(RECORD, origin="gone", server="a", in_step={"a": 7}, followers=()),
    ]
    lone = Lone(8, (7,), records)
    lone.run()
    registry, roles = lone.roles.registry, lone.roles
    registry.nodes["y"] = StoringNode("y", 1, "m", "")
    assert not any(map(roles.is_obsolete, ("a", "x", "gone", "unknown")))
    registry.nodes["z"] = StoringNode("z", 2, "m", "")
    listed = replace(records[0], in_step={"y": 1, "z": 2})
    registry.set(registry.key("x"), record_value(listed), 50)
    lone.run()
    assert roles.is_obsolete("x")
    roles.forget("gone")
    assert CloseCopy("gone") in lone.run()
    mark = registry.forgotten_key("gone")
    assert mark in lone.there and not roles.is_obsolete("gone")  # etcd has not sent it yet
    registry.set(mark, b"", 60)
    assert roles.is_obsolete("gone")


def test_the_record_of_a_node_that_joins_again_has_a_generation_above_the_earlier_ones() -> None:
    lone = Lone(20, (), [])
    assert lone.run() == [OpenCopy("a", 20)]


def test_a_node_whose_lease_is_lost_while_it_is_written_is_written_again() -> None:
    lone = Lone(1, (), [])
    lone.roles.turn(1.0)
    (request,) = lone.roles.take_requests(1.0)
    lone.roles.answered(LeaseLost(2), 1.0)
    lone._answer(request)  # with the lease that is lost
    key = lone.roles.registry.node_key("a")
    lone.there.pop(key)
    lone.run()
    assert key in lone.there


def test_a_restart_with_its_disk_takes_a_new_generation() -> None:
    lone = Lone(8, (7,), [RECORD])
    assert lone.run() == [OpenCopy("a", 4)]
    assert lone.record("a") == replace(RECORD, generation=4, incarnation=8, in_step={"a": 8, "b": 2})


@pytest.mark.parametrize("incarnations", [(), (5, 6)], ids=["an empty disk", "an old disk"])
def test_a_node_with_another_disk_leaves_the_nodes_in_step_and_opens_nothing(incarnations: tuple[int, ...]) -> None:
    lone = Lone(8, incarnations, [RECORD])
    assert lone.run() == []
    assert lone.record("a") == RECORD.without("a")
    assert lone.roles.roles["a"] is Role.FOLLOWING


def test_a_node_whose_copy_is_broken_leaves_the_nodes_in_step_of_that_origin_alone() -> None:
    other = replace(RECORD, origin="x", server="y", in_step={"y": 1, "a": 7}, followers=("a",))
    lone = Lone(8, (7,), [RECORD, other], whole=("a",))
    lone.run()
    assert lone.record("x").in_step == {"y": 1} and lone.record("a").in_step == {"a": 8, "b": 2}


ALONE = replace(RECORD, in_step={"a": 7})


@pytest.mark.parametrize(
    ("incarnations", "whole"), [((), ("a",)), ((7,), ())], ids=["another disk", "a copy that is not whole"]
)
def test_the_only_node_in_step_serves_nothing_without_its_disk_and_says_so_once(
    incarnations: tuple[int, ...], whole: tuple[str, ...]
) -> None:
    lone = Lone(8, incarnations, [ALONE], whole)
    assert lone.run() == [] and lone.record("a") == ALONE
    assert not lone.roles.settled and lone.roles.waiting == {"a"}
    assert ["give-up a" in notice for notice in lone.roles.take_notices()] == [True]
    assert lone.roles.registry.nodes["a"].waiting == ("a",)


def test_a_node_that_was_killed_before_it_first_served_with_copies_begins() -> None:
    lone = Lone(8, (7,), [ALONE], (), blank=True)
    assert lone.run() == [OpenCopy("a", 4)]


def test_a_data_directory_without_copies_does_not_serve_while_another_node_is_in_step() -> None:
    lone = Lone(8, (7,), [RECORD], (), blank=True)
    assert lone.run() == [] and lone.record("a") == RECORD.without("a")


def test_an_operator_who_gives_up_lets_the_chosen_node_serve_alone_in_a_newer_generation() -> None:
    lone = Lone(8, (), [ALONE])
    lone.run()
    assert lone.roles.give_up("a", "a") == ""
    assert lone.run() == [OpenCopy("a", 4)]
    assert lone.record("a") == replace(RECORD, generation=4, incarnation=8, in_step={"a": 8}, given_up=4)
    assert lone.roles.waiting == set() and lone.roles.settled
    assert lone.roles.registry.nodes["a"].waiting == ()


def test_the_data_of_a_node_is_not_given_up_while_a_node_in_step_is_there() -> None:
    lone = Lone(8, (7,), [RECORD])
    lone.run()
    assert "a has everything" in lone.roles.give_up("a", "a")
    assert "no lease" in lone.roles.give_up("a", "b")
    assert "no copies" in lone.roles.give_up("x", "a")


def test_a_node_that_was_taken_over_follows_and_never_opens() -> None:
    lone = Lone(8, (7,), [RECORD.handed_to("b", 2)])
    assert lone.run() == []
    assert lone.roles.roles["a"] is Role.FOLLOWING
    assert lone.roles.accepts("a", "b", 4) and not lone.roles.accepts("a", "a", 3)


def test_nothing_is_stored_before_the_record_has_this_incarnation() -> None:
    lone = Lone(8, (2,), [replace(RECORD, origin="x", server="y", in_step={"y": 1, "a": 2}, followers=("a",))])
    assert not lone.roles.accepts("x", "y", 3)
    lone.run()
    assert lone.record("x").in_step == {"y": 1, "a": 8} and lone.roles.accepts("x", "y", 3)


def test_a_copy_that_cannot_be_opened_is_served_by_another_node_in_step() -> None:
    lone = Lone(8, (7,), [replace(RECORD, origin="x", server="y", in_step={"y": 1, "a": 7}, followers=("a",))])
    lone.run()
    record = lone.record("x").handed_to("a", 8)
    lone.there[lone.roles.registry.key("x")] = (record_value(record), 20)
    lone.roles.registry.set(lone.roles.registry.key("x"), record_value(record), 20)
    assert OpenCopy("x", record.generation) in lone.run()
    lone.roles.failed("x", record.generation)
    assert lone.run() == []  # no other node in step is there
    lone.roles.registry.nodes["y"] = StoringNode("y", 1, "m", "")
    lone.roles.presence.is_heard = lambda name: True
    assert CloseCopy("x") in lone.run()
    wanted = lone.record("x")
    assert (wanted.server, wanted.in_step) == ("y", record.in_step)


def test_a_server_that_is_deposed_closes_and_fences_itself() -> None:
    lone = Lone(8, (7,), [RECORD])
    lone.run()
    lone.roles.opened("a", 4, 1.0)
    assert [type(order) for order in lone.run()] == [Require]
    taken = lone.record("a").handed_to("b", 2)
    lone.roles.registry.set(lone.roles.registry.key("a"), record_value(taken), 99)
    assert lone.run() == [CloseCopy("a")]
    assert lone.roles.accepts("a", "b", 5) and not lone.roles.accepts("a", "a", 4)


def test_a_newer_generation_of_the_same_server_closes_what_is_open() -> None:
    lone = Lone(8, (7,), [RECORD])
    lone.run()
    lone.roles.opened("a", 4, 1.0)
    lone.run()
    again = lone.record("a").handed_to("b", 2).handed_to("a", 8)
    lone.roles.registry.set(lone.roles.registry.key("a"), record_value(again), 99)
    assert lone.run() == [CloseCopy("a"), OpenCopy("a", 6)]
