"""A node with copies that leaves the cluster: its copies move, and it ends once it is needed no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cluster.test_copies import RECORD, Serving, nodes
from tests.cluster.test_copy_roles import Lone

from starlingmq.cluster.copies.copy_record import CopyRecord, record_value
from starlingmq.cluster.copies.successors import successor


def test_a_follower_that_leaves_the_cluster_is_replaced_first() -> None:
    serving = Serving(RECORD)
    serving.attach("b", 2)
    serving.server.stored("b", 5)
    serving.nodes["b"] = replace(serving.nodes["b"], leaving=True)
    proposed = serving.look(written=5)
    assert proposed is not None and len(proposed.followers) == 2 and proposed.in_step == RECORD.in_step
    serving.confirm(proposed)
    other = next(name for name in proposed.followers if name != "b")
    serving.attach(other)
    for _ in range(10):
        serving.server.stored(other, 5)
        if proposed := serving.look(written=5):
            assert len(proposed.in_step) >= 2
            serving.confirm(proposed)
    assert serving.server.record.followers == (other,) and serving.server.record.in_step == {"a": 7, other: 1}


@pytest.mark.parametrize(("required", "left"), [(1, {"a": 7}), (2, {"a": 7, "b": 2})])
def test_a_follower_that_leaves_without_a_replacement_goes_unless_too_few_would_be_left(
    required: int, left: dict[str, int]
) -> None:
    serving = Serving(RECORD, required=required)
    serving.nodes = nodes(("a", "a", ""), ("b", "b", ""))
    serving.nodes["b"] = replace(serving.nodes["b"], leaving=True)
    serving.attach("b", 2)
    for _ in range(5):
        serving.server.stored("b", 5)
        if proposed := serving.look(written=5):
            serving.confirm(proposed)
    assert serving.server.record.in_step == left


def test_a_node_that_leaves_is_named_only_if_there_is_no_other() -> None:
    record = replace(RECORD, in_step={"a": 7, "b": 1, "c": 1}, followers=("b", "c"))
    there = nodes(("b", "", ""), ("c", "", ""))
    there["b"] = replace(there["b"], leaving=True)
    for able, named in (({"b", "c"}, "c"), ({"b"}, "b")):
        found = successor(record, lambda name: name == "a", able.__contains__, there, {"c": 5})
        assert found is not None and found.server == named


def test_a_node_that_leaves_drops_out_as_a_follower_and_waits_while_it_is_in_step() -> None:
    follows = CopyRecord("b", 4, "b", 2, {"b": 2}, ("a",))
    holds = CopyRecord("c", 4, "c", 2, {"c": 2, "a": 1}, ("a",))
    lone = Lone(1, (1,), [follows, holds])
    lone.run()
    lone.roles.leave()
    lone.run()
    lone.run()
    assert lone.record("b") == replace(follows, followers=()), "a change of b that lists it is void"
    assert lone.record("c") == holds and not lone.roles.has_left()
    lone.roles.registry.set(
        lone.roles.registry.key("c"), record_value(replace(holds, in_step={"c": 2}, followers=())), 99
    )
    lone.run()
    assert lone.roles.has_left()
