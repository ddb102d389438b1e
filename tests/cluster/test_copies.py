"""Copies, one node at a time: the record, the choice of followers, who is named, and what a server requires."""

from __future__ import annotations

from dataclasses import replace

import pytest

from starlingmq.cluster.copies.copy_record import CopyRecord, CopyRecordError, new_record, record_from, record_value
from starlingmq.cluster.copies.copy_registry import CopyRegistry, StoringNode, node_value
from starlingmq.cluster.copies.copy_server import CALM_SECONDS, LAG_SECONDS, CopyServer, CopySettings
from starlingmq.cluster.copies.follower_choice import copies_per_node, misplaced_follower, next_follower
from starlingmq.cluster.copies.successors import successor

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


def test_data_that_another_node_serves_is_named_with_that_node() -> None:
    registry = CopyRegistry("c")
    registry.set(registry.key("a"), record_value(RECORD), 9)
    assert registry.served_elsewhere() == []
    registry.set(registry.key("a"), record_value(RECORD.handed_to("b", 2)), 10)
    assert registry.served_elsewhere() == [("a", "b")]


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
        self.forgotten: set[str] = set()
        self.stopped: set[str] = set()
        self.nodes = nodes(*[(name, name, "") for name in "abcd"])
        settings = replace(SETTINGS, required=required, copies=copies)
        self.server = CopyServer(record, restarted, settings, self.gone.__contains__, self.now)

    def look(self, written: int, seconds: float = 0.25) -> CopyRecord | None:
        self.now += seconds
        self.server.tick(written, self.now)
        return self.server.proposal(self.nodes, {}, self.now, self.forgotten, self.stopped)

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


def test_a_successor_does_not_hand_over_to_a_follower_that_has_more() -> None:
    serving = Serving(
        replace(RECORD, followers=("b", "c"), in_step={"a": 1, "b": 1, "c": 2}).handed_to("c", 2), copies=3
    )
    assert all(serving.server.attached(name, 1, True, serving.now) for name in "ab")


def test_a_follower_that_has_lost_what_it_acknowledged_leaves_before_it_is_brought_up_to_date() -> None:
    serving = Serving(RECORD)
    serving.attach("b")
    assert serving.look(0) is None
    serving.server.detached("b", serving.now)
    assert not serving.server.attached("b", 2, False, serving.now, less=True)
    wanted = serving.look(0)
    assert wanted is not None and wanted.in_step == {"a": 7}
    assert not serving.server.attached("b", 2, False, serving.now, less=True)  # etcd has not confirmed it yet
    serving.confirm(wanted)
    assert serving.server.attached("b", 2, False, serving.now, less=True)


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


def test_a_successor_serves_although_too_few_nodes_are_left_to_remove_the_lost_one() -> None:
    serving = Serving(replace(RECORD, generation=4, server="b", incarnation=1, followers=("a",)), required=2)
    serving.gone.add("a")
    wanted = serving.look(written=1)
    assert wanted is not None and wanted.followers == ("a", "d"), "the place of the lost node is filled"
    assert wanted.in_step == {"a": 7, "b": 2}, "a stays in step, as the data would be on one disk only"
    assert serving.server.checked and serving.server.refusal == "1 of the required 2 nodes are in step"


def test_a_follower_that_fails_each_time_after_it_has_connected_leaves_the_nodes_in_step() -> None:
    serving = Serving(RECORD)
    written, proposed = 10, None
    serving.attach("b", 2)
    serving.server.stored("b", written)
    for _ in range(int((LAG_SECONDS + 2.0) / 0.25)):
        serving.server.attached("b", 2, False, serving.now)
        serving.server.detached("b", serving.now)
        written += 1
        proposed = serving.look(written)
    assert proposed is not None and "b" not in proposed.in_step


def test_a_follower_that_reconnects_and_goes_on_storing_stays_in_step() -> None:
    serving = Serving(RECORD)
    written = 10
    for _ in range(int((LAG_SECONDS + 5.0) / 0.5)):
        serving.attach("b", 2)
        written += 1
        assert serving.look(written) is None
        serving.server.stored("b", written)
        assert serving.look(written) is None
        serving.server.detached("b", serving.now)


@pytest.mark.parametrize("copies", [1, 2])
def test_the_node_whose_data_it_is_stays_a_follower_while_another_one_serves(copies: int) -> None:
    serving = Serving(CopyRecord("d", 3, "a", 7, {"a": 7, "b": 2}, ("b",)), copies=copies)
    for number in range(1, 40):
        serving.attach("b", 2)
        if "d" in serving.server.followers:
            serving.attach("d", 1)
        for follower in serving.server.followers.values():
            follower.stored = number
        if (wanted := serving.look(number)) is None:
            continue
        if wanted.server == "d":
            break
        if "d" in serving.server.record.followers:
            assert "d" in wanted.followers
        serving.server.renewed(wanted, serving.now)
    assert wanted is not None and wanted.server == "d", "it has its data back"


def test_a_lost_node_whose_data_another_one_serves_does_not_displace_a_follower_that_is_there() -> None:
    record = replace(RECORD, followers=("b", "c"), in_step={"a": 1, "b": 1, "c": 2}).handed_to("c", 2)
    serving = Serving(record)
    for name in "ab":
        serving.attach(name)
    del serving.nodes["a"]
    serving.server.detached("a", serving.now)
    for _ in range(8):
        wanted = serving.look(0)
        assert wanted is None or wanted.in_step == record.in_step
        if wanted is not None:
            serving.confirm(wanted)
    wanted = serving.look(0, SETTINGS.timeout)
    assert wanted is not None and set(wanted.in_step) == {"b", "c"}


def test_a_follower_that_was_removed_from_the_cluster_is_replaced_at_once() -> None:
    """It is not waited for as a lost one is, which may come back."""
    serving = Serving(RECORD)
    serving.attach("b")
    del serving.nodes["b"]
    serving.server.detached("b", serving.now)
    assert serving.look(0) is None
    serving.forgotten = {"b"}
    wanted = serving.look(0)
    assert wanted is not None and wanted.followers[0] == "b"
    (next_one,) = wanted.followers[1:]
    serving.confirm(wanted)
    for _ in range(16):
        serving.attach(next_one, 2)
        serving.server.stored(next_one, 1)
        if (wanted := serving.look(0)) is not None:
            serving.confirm(wanted)
    assert serving.server.record.followers == (next_one,) and set(serving.server.record.in_step) == {"a", next_one}


def lose(serving: Serving, name: str) -> None:
    """The node is gone as the other nodes agree."""
    serving.server.detached(name, serving.now)
    serving.nodes.pop(name, None)
    serving.gone.add(name)


def test_the_last_other_whole_copy_is_replaced_at_once_when_its_node_is_lost() -> None:
    serving = Serving(RECORD)
    serving.attach("b", 2)
    serving.look(0)
    serving.server.detached("b", serving.now)
    assert serving.look(0) is None, "it is not gone yet"
    lose(serving, "b")
    wanted = serving.look(0)
    assert wanted is not None and wanted.followers[0] == "b" and len(wanted.followers) == 2
    serving.confirm(wanted)
    serving.gone.clear()
    serving.nodes |= nodes(("b", "b", ""))
    serving.attach("b", 3)
    back = serving.look(0)
    assert back is not None and back.followers == ("b",), "the node is back before the other one has everything"


def test_a_node_that_was_stopped_has_the_time_to_return() -> None:
    serving = Serving(RECORD)
    serving.attach("b", 2)
    serving.stopped.add("b")
    serving.look(0)
    lose(serving, "b")
    assert serving.look(0, SETTINGS.timeout - 1) is None
    wanted = serving.look(0, 2.0)
    assert wanted is not None and len(wanted.followers) == 2


def test_the_successor_of_a_node_that_was_stopped_waits_for_it_too() -> None:
    """It serves the data when the lease of the stopped node has ended, and with it what that node said."""
    registry = CopyRegistry("c")
    registry.set(registry.node_key("a"), node_value(StoringNode("a", 7, "m1", "", stopping=True)), 8)
    registry.set(registry.node_key("a"), None, 9)
    serving = Serving(RECORD.handed_to("b", 2))
    serving.stopped = registry.stopped
    lose(serving, "a")
    wanted = serving.look(0)
    assert wanted is not None and wanted.followers == ("a",)
    serving.confirm(wanted)
    assert serving.look(0, SETTINGS.timeout - 1) is None
    wanted = serving.look(0, 2.0)
    assert wanted is not None and wanted.followers[-1] != "a"
    registry.set(registry.node_key("a"), node_value(StoringNode("a", 8, "m1", "")), 10)
    assert registry.stopped == set(), "it is back, and may be lost"


def test_a_lost_node_has_the_time_to_return_while_another_whole_copy_is_there() -> None:
    serving = Serving(replace(RECORD, in_step={"a": 7, "b": 2, "c": 1}, followers=("b", "c")), copies=3)
    serving.attach("b", 2)
    serving.attach("c", 1)
    serving.look(0)
    lose(serving, "b")
    wanted = serving.look(0)
    assert wanted is None or wanted.followers == ("b", "c")
    lose(serving, "c")
    wanted = serving.look(0)
    assert wanted is not None and wanted.followers == ("b", "c", "d"), "no other node is left"


def test_an_operator_hands_over_to_a_node_in_step_and_to_no_other() -> None:
    serving = Serving(RECORD)
    assert serving.server.hand_over("c") == "c does not have everything that a has acknowledged"
    assert serving.server.hand_over("b") == ""
    assert serving.look(written=0) is None, "it is not connected, and may have less than this node has written"
    serving.attach("b")
    proposed = serving.look(written=0)
    assert proposed is not None and proposed.server == "b"


# The registry


def test_the_key_of_a_node_is_read_by_others() -> None:
    registry = CopyRegistry("c")
    node = StoringNode("b", 3, "m", "z")
    registry.set(registry.node_key("b"), node_value(node), 4)
    assert registry.nodes == {"b": node} and registry.records == {}
    registry.set(registry.node_key("b"), None, 5)
    assert registry.nodes == {}
