"""Copies, one node at a time: the record, the choice of followers, who is named, and what a server requires."""

from __future__ import annotations

from dataclasses import replace

import pytest

from starlingmq.cluster.copies.copy_record import CopyRecord, CopyRecordError, new_record, record_from, record_value
from starlingmq.cluster.copies.copy_registry import CopyRegistry, StoringNode, node_value
from starlingmq.cluster.copies.copy_roles import CloseCopy, CopyRoles, OpenCopy, Order, Require
from starlingmq.cluster.copies.copy_server import CALM_SECONDS, LAG_SECONDS, CopyServer, CopySettings
from starlingmq.cluster.copies.follower_choice import copies_per_node, misplaced_follower, next_follower
from starlingmq.cluster.copies.role_table import Role
from starlingmq.cluster.copies.successors import successor
from starlingmq.cluster.etcd.etcd_requests import Answer, Delete, Get, KeyValue, Request, Txn, TxnAnswer, Watch

SETTINGS = CopySettings(copies=2, required=1, timeout=60.0, silence=2.0)
RECORD = CopyRecord("a", 3, "a", 7, {"a": 7, "b": 2}, ("b",))


def nodes(*places: tuple[str, str, str]) -> dict[str, StoringNode]:
    return {name: StoringNode(name, 1, machine, zone) for name, machine, zone in places}


# The record


def test_a_record_is_read_as_it_was_written() -> None:
    assert record_from("a", record_value(RECORD)) == RECORD


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        record_value(replace(RECORD, in_step={})),
        record_value(replace(RECORD, in_step={"c": 1})),
        record_value(replace(RECORD, followers=("a", "b"))),
        record_value(replace(RECORD, generation=0)),
    ],
)
def test_a_value_that_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(CopyRecordError, match="copies/a"):
        record_from("a", value)


def test_naming_a_successor_raises_the_generation_and_leaves_the_nodes_in_step() -> None:
    named = RECORD.handed_to("b", 2)
    assert (named.generation, named.server, named.incarnation) == (4, "b", 2)
    assert named.in_step == RECORD.in_step and named.followers == ("a",)


def test_a_node_that_is_named_serves_only_in_the_incarnation_that_is_in_step() -> None:
    assert RECORD.handed_to("b", 2).is_served_by("b", 2)
    assert not RECORD.handed_to("b", 3).is_served_by("b", 3)


def test_an_older_state_of_a_key_is_ignored() -> None:
    registry = CopyRegistry("c")
    key = registry.key("a")
    registry.set(key, record_value(RECORD), 9)
    registry.set(key, record_value(new_record("a", 1)), 8)
    registry.set(key, None, 7)
    registry.load([], 8)
    assert registry.records == {"a": RECORD} and registry.revision("a") == 9
    registry.load([], 10)
    assert registry.records == {} and registry.revision("a") == 0


def test_an_invalid_record_is_reported_and_the_earlier_one_stays() -> None:
    registry = CopyRegistry("c")
    registry.set(registry.key("a"), record_value(RECORD), 9)
    registry.set(registry.key("a"), b"?", 10)
    assert registry.records == {"a": RECORD}
    assert ["copies/a" in problem for problem in registry.take_problems()] == [True]


# The choice of followers


@pytest.mark.parametrize(
    ("places", "chosen"),
    [
        ([("a", "m1", "z1"), ("b", "m2", "z1"), ("c", "m1", "z2")], "c"),
        ([("a", "m1", "z1"), ("b", "m1", "z1"), ("c", "m2", "z1")], "c"),
        ([("a", "m1", "z1"), ("b", "m2", "z1"), ("c", "m3", "z1")], "b"),
        ([("a", "m1", "z1")], ""),
    ],
)
def test_another_zone_comes_first_then_another_machine_then_the_node_with_fewest(
    places: list[tuple[str, str, str]], chosen: str
) -> None:
    alone = new_record("a", 1)
    assert next_follower(alone, (), nodes(*places), {"b": 1, "c": 2}) == chosen


def test_the_zone_of_a_follower_that_is_replaced_is_free_again() -> None:
    there = nodes(("a", "m1", "z1"), ("b", "m2", "z2"), ("c", "m3", "z1"), ("d", "m4", "z2"))
    assert next_follower(RECORD, ("b",), there, {}) == "d"


def test_many_nodes_store_about_as_many_copies_each() -> None:
    there = nodes(*[(f"n{number}", f"m{number}", "") for number in range(6)])
    records: dict[str, CopyRecord] = {name: new_record(name, 1) for name in there}
    for name, record in list(records.items()):
        chosen = next_follower(record, (), there, copies_per_node(records.values()))
        records[name] = replace(record, followers=(chosen,))
    assert sorted(copies_per_node(records.values()).values()) == [2] * 6


@pytest.mark.parametrize(
    ("places", "stored", "moved"),
    [
        ([("a", "m1", "z1"), ("b", "m2", "z1"), ("c", "m3", "z2")], {"c": 9}, "b"),
        ([("a", "m1", "z1"), ("b", "m1", "z1"), ("c", "m2", "z1")], {"c": 9}, "b"),
        ([("a", "m1", "z1"), ("b", "m2", "z2"), ("c", "m2", "z1")], {"b": 9}, ""),
        ([("a", "m1", "z1"), ("b", "m2", "z1"), ("c", "m3", "z1")], {"b": 3, "c": 1}, "b"),
        ([("a", "m1", "z1"), ("b", "m2", "z1"), ("c", "m3", "z1")], {"b": 3, "c": 2}, ""),
        ([("a", "m1", "z1"), ("b", "m2", "z1")], {"b": 3}, ""),
    ],
)
def test_a_follower_is_moved_to_another_zone_or_machine_or_to_a_node_with_far_fewer_copies(
    places: list[tuple[str, str, str]], stored: dict[str, int], moved: str
) -> None:
    assert misplaced_follower(RECORD, nodes(*places), stored) == moved


# Successors


def test_a_successor_is_in_step_in_the_incarnation_it_has_now_and_heard() -> None:
    record = replace(RECORD, in_step={"a": 7, "b": 1, "c": 1, "d": 9}, followers=("b", "c", "d", "e"))
    there = nodes(*[(name, name, "") for name in "bcde"])

    def named(gone: str, heard: str) -> str:
        found = successor(record, gone.__contains__, heard.__contains__, there, {"c": 1})
        return "" if found is None else found.server

    assert named("a", "bcde") == "b"
    assert named("a", "cde") == "c"
    assert named("ab", "bcde") == "c"
    assert named("a", "de") == ""
    assert named("", "bcde") == ""


def test_a_server_that_is_not_in_step_is_replaced_although_it_is_there() -> None:
    record = RECORD.without("a")
    found = successor(record, lambda name: False, lambda name: True, nodes(("b", "b", "")), {})
    assert found is None, "b has another incarnation than the one in step"
    found = successor(
        replace(record, in_step={"b": 1}), lambda name: False, lambda name: True, nodes(("b", "", "")), {}
    )
    assert found is not None and found.server == "b"


# The server


class Serving:
    def __init__(self, record: CopyRecord, restarted: bool = False, required: int = 1, copies: int = 2) -> None:
        self.now = 100.0
        self.gone: set[str] = set()
        self.nodes = nodes(*[(name, name, "") for name in "abcd"])
        settings = replace(SETTINGS, required=required, copies=copies)
        self.server = CopyServer(record, restarted, settings, self.gone.__contains__, self.now)

    def look(self, written: int, seconds: float = 0.25) -> CopyRecord | None:
        self.now += seconds
        self.server.tick(written, self.now)
        return self.server.proposal(self.nodes, {}, self.now)

    def attach(self, name: str, incarnation: int = 1) -> None:
        assert self.server.attached(name, incarnation, False, self.now)
        self.server.caught_up(name)

    def confirm(self, record: CopyRecord | None) -> None:
        assert record is not None
        self.server.renewed(record, self.now)


def test_a_follower_is_required_before_it_is_proposed_and_proposed_once_it_has_stored_all() -> None:
    serving = Serving(replace(RECORD, in_step={"a": 7}))
    server = serving.server
    serving.look(written=10)
    serving.attach("b")
    assert serving.look(written=10) is None and server.required() == (), "it has not kept up yet"
    server.stored("b", 10)
    assert serving.look(written=12) is None and server.required() == ("b",)
    server.stored("b", 12)
    assert serving.look(written=13) is None, "13 was written before it was required"
    server.stored("b", 13)
    proposed = serving.look(written=14)
    assert proposed is not None and proposed.in_step == {"a": 7, "b": 1}
    serving.confirm(proposed)
    assert server.required() == ("b",) and serving.look(written=14) is None


def test_a_follower_that_lags_is_required_until_the_record_has_lost_it() -> None:
    serving = Serving(RECORD)
    serving.attach("b", 2)
    serving.server.stored("b", 5)
    assert serving.look(written=5) is None
    assert serving.look(written=6) is None
    proposed = serving.look(written=9, seconds=LAG_SECONDS)
    assert proposed is not None and proposed.in_step == {"a": 7}
    assert serving.server.required() == ("b",)
    serving.confirm(proposed)
    assert serving.server.required() == ()


def test_a_slow_follower_that_goes_on_storing_stays_in_step() -> None:
    serving = Serving(RECORD)
    serving.attach("b", 2)
    for number in range(100):
        serving.server.stored("b", max(0, number - 2))
        assert serving.look(written=number, seconds=2.0) is None


def test_a_follower_without_a_connection_stays_in_step_while_nothing_is_written() -> None:
    serving = Serving(RECORD)
    serving.attach("b", 2)
    serving.server.stored("b", 5)
    serving.look(written=5)
    serving.server.detached("b", serving.now)
    assert serving.look(written=5, seconds=30.0) is None
    proposed = serving.look(written=6)
    assert proposed is not None and proposed.in_step == {"a": 7}


def test_too_few_copies_refuse_new_changes_and_keep_the_node_in_step() -> None:
    serving = Serving(RECORD, required=2)
    assert serving.look(written=1, seconds=5.0) is None
    assert serving.server.refusal == "1 of the required 2 nodes are in step" and serving.server.required() == ("b",)
    serving.attach("b", 2)
    serving.server.stored("b", 1)
    serving.look(written=1)
    assert serving.server.refusal == ""


def test_a_follower_that_is_away_for_long_is_replaced_and_leaves_once_the_other_is_in_step() -> None:
    serving = Serving(RECORD)
    serving.attach("b", 2)
    serving.server.stored("b", 5)
    serving.look(written=5)
    serving.server.detached("b", serving.now)
    proposed = serving.look(written=5, seconds=61.0)
    assert proposed is not None and len(proposed.followers) == 2 and proposed.in_step == RECORD.in_step
    serving.confirm(proposed)
    other = next(name for name in proposed.followers if name != "b")
    serving.attach(other)
    for _ in range(3):
        serving.server.stored(other, 5)
        proposed = serving.look(written=5)
    assert proposed is not None and other in proposed.in_step
    serving.confirm(proposed)
    serving.confirm(serving.look(written=5))
    assert serving.server.record.in_step == {"a": 7, other: 1}
    assert serving.server.record.followers == (other,)


def test_a_follower_in_a_bad_place_stays_until_the_other_one_is_in_step() -> None:
    serving = Serving(RECORD)
    serving.nodes = nodes(("a", "m1", "z1"), ("b", "m2", "z1"), ("c", "m3", "z2"))
    serving.attach("b", 2)
    serving.server.stored("b", 5)
    for _ in range(10):
        proposed = serving.look(written=5, seconds=CALM_SECONDS)
    assert proposed is not None and proposed.followers == ("b", "c") and proposed.in_step == RECORD.in_step
    serving.confirm(proposed)
    serving.attach("c")
    for _ in range(20):
        serving.server.stored("c", 5)
        if proposed := serving.look(written=5):
            assert len(proposed.in_step) >= 2
            serving.confirm(proposed)
    assert serving.server.record.followers == ("c",) and serving.server.record.in_step == {"a": 7, "c": 1}


def test_a_follower_stays_where_it_is_once_the_better_place_is_gone() -> None:
    serving = Serving(replace(RECORD, followers=("b", "d")), copies=2)
    serving.nodes = nodes(("a", "m1", "z1"), ("b", "m2", "z1"), ("c", "m3", "z2"))
    serving.attach("b", 2)
    serving.server.stored("b", 5)
    serving.confirm(serving.look(written=5, seconds=61.0))
    assert serving.server.record.followers == ("b",), "d was away for too long"
    for _ in range(10):
        proposed = serving.look(written=5, seconds=CALM_SECONDS)
    assert proposed is not None and proposed.followers == ("b", "c")
    del serving.nodes["c"]
    assert serving.look(written=5, seconds=CALM_SECONDS) is None


def test_what_a_follower_stored_over_an_earlier_connection_does_not_count() -> None:
    serving = Serving(replace(RECORD, in_step={"a": 7}))
    serving.attach("b", 2)
    serving.server.stored("b", 50)
    serving.server.detached("b", serving.now)
    serving.attach("b", 3)
    for _ in range(4):
        assert serving.look(written=50) is None


def test_the_record_lists_the_incarnation_that_has_proved_it() -> None:
    serving = Serving(replace(RECORD, in_step={"a": 7}))
    serving.attach("b", 2)
    serving.server.stored("b", 50)
    for _ in range(3):
        proposed = serving.look(written=50)
    serving.server.detached("b", serving.now)
    serving.attach("b", 3)  # perhaps with another disk; the outcome of the proposal is not known
    again = serving.look(written=51)
    assert proposed is not None and again == proposed and again.in_step["b"] == 2


def test_a_restarted_server_hands_over_to_a_node_in_step_that_has_more() -> None:
    serving = Serving(RECORD, restarted=True)
    assert not serving.server.attached("b", 2, True, serving.now)
    proposed = serving.look(written=3)
    assert proposed == RECORD.handed_to("b", 2) and not serving.server.checked


def test_a_node_that_is_not_in_step_may_have_more_and_is_cut() -> None:
    serving = Serving(replace(RECORD, in_step={"a": 7}), restarted=True)
    assert serving.server.attached("b", 2, True, serving.now)


def test_a_node_gets_its_data_back_once_it_is_in_step_again() -> None:
    hosted = replace(RECORD, origin="d", followers=("b",))
    serving = Serving(hosted)
    serving.attach("b", 2)
    wanted = serving.look(written=9)
    assert wanted is not None and wanted.followers == ("d", "b")  # its own node stores a copy again
    serving.server.renewed(wanted, serving.now)
    serving.attach("d", 1)
    serving.server.stored("b", 9)
    for _ in range(4):
        serving.server.stored("d", 9)
        wanted = serving.look(written=9)
    assert wanted is not None and wanted.generation == hosted.generation and "d" in wanted.in_step
    serving.server.renewed(wanted, serving.now)
    assert serving.look(written=9) == wanted.handed_to("d", 1)


def test_a_server_serves_once_all_nodes_in_step_have_answered_or_have_left() -> None:
    record = replace(RECORD, in_step={"a": 7, "b": 2, "c": 1}, followers=("b", "c"))
    serving = Serving(record, restarted=True, copies=3)
    serving.look(written=0)
    assert not serving.server.checked
    serving.attach("b", 2)
    serving.gone.add("c")
    proposed = serving.look(written=0)
    assert not serving.server.checked
    serving.confirm(proposed)
    serving.look(written=0)
    assert serving.server.checked and serving.server.record.in_step == {"a": 7, "b": 2}


def test_an_operator_hands_over_to_a_node_in_step_and_to_no_other() -> None:
    serving = Serving(RECORD)
    assert serving.server.hand_over("c") == "c does not have everything that a has acknowledged"
    assert serving.server.hand_over("b") == ""
    proposed = serving.look(written=0)
    assert proposed is not None and proposed.server == "b"


# A node


class Lone:
    """One process with an etcd that does what it is asked at once."""

    def __init__(
        self, incarnation: int, incarnations: tuple[int, ...], records: list[CopyRecord], broken: tuple[str, ...] = ()
    ) -> None:
        self.revision = 10
        self.roles = CopyRoles(
            "c", StoringNode("a", incarnation, "m", ""), incarnations, SETTINGS, lambda origin: 0, broken
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
    lone.roles.forget_own()
    assert lone.run() == [CloseCopy("a")]
    assert lone.roles.registry.records == {}
    assert lone.run() == []  # it writes no new one


def test_the_record_of_a_node_that_joins_again_has_a_generation_above_the_earlier_ones() -> None:
    lone = Lone(20, (), [])
    assert lone.run() == [OpenCopy("a", 20)]


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
    lone = Lone(8, (7,), [RECORD, other], broken=("x",))
    lone.run()
    assert lone.record("x").in_step == {"y": 1} and lone.record("a").in_step == {"a": 8, "b": 2}


def test_the_only_node_in_step_serves_what_it_has_and_says_what_is_lost() -> None:
    lone = Lone(8, (), [replace(RECORD, in_step={"a": 7})])
    assert lone.run() == [OpenCopy("a", 4)]
    assert ["is lost" in notice for notice in lone.roles.take_notices()] == [True]


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


def test_the_key_of_a_node_is_read_by_others() -> None:
    registry = CopyRegistry("c")
    node = StoringNode("b", 3, "m", "z")
    registry.set(registry.node_key("b"), node_value(node), 4)
    assert registry.nodes == {"b": node} and registry.records == {}
    registry.set(registry.node_key("b"), None, 5)
    assert registry.nodes == {}
