"""All nodes that run have the same ``cluster.owners``: another one waits, or ends. One with ``auto`` follows them."""

from __future__ import annotations

import json
from random import Random

import pytest
from tests.cluster.test_members import SETTLE, Town, names, state

from starlingmq.cluster.etcd.etcd_requests import Put, Txn
from starlingmq.cluster.membership.registry import Keys, Registry

REFUSAL = (
    "cluster.owners is shares here and etcd at node a: give this node cluster.owners: etcd, or stop all nodes and "
    "start them with the same setting"
)


def test_a_node_with_other_owners_than_a_node_that_runs_takes_no_number_and_waits() -> None:
    town = Town()
    a, b = town.joined("a", "b")
    c = town.start("c", owners="shares")
    town.run(2 * SETTLE)
    assert state(c) == "starting" and c.me is None and c.problem == REFUSAL
    assert names(a) == ["a", "b"] and not a.joining
    a.leave(town.now)
    b.leave(town.now)
    town.run()
    assert state(c) == "registered" and not c.problem, "nobody has the other setting any more"


def test_a_node_that_restarts_with_other_owners_keeps_its_old_incarnation_while_others_run() -> None:
    town = Town()
    a, b = town.joined("a", "b")
    assert b.me is not None
    incarnation = b.me.incarnation
    town.crash("b")
    town.run(7.0)  # until its lease has expired
    again = town.start("b", owners="shares")
    town.run(2 * SETTLE)
    assert state(again) == "starting" and again.problem == REFUSAL
    assert a.membership.members[1].incarnation == incarnation and a.online == {1: 1}


def test_all_nodes_change_their_owners_once_all_were_stopped() -> None:
    town = Town()
    town.joined("a", "b", "c")
    for name in "abc":
        town.crash(name)
    town.run(7.0)
    nodes = [town.start(name, owners="shares") for name in "abc"]
    town.run(2 * SETTLE)
    assert [(state(node), node.problem) for node in nodes] == [("registered", "")] * 3
    assert nodes[0].online == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize("seeds", [8, pytest.param(50, marks=pytest.mark.long)])
def test_of_two_that_start_at_once_with_different_owners_one_joins(seeds: int) -> None:
    for seed in range(seeds):
        town = Town(seed)
        nodes = [town.start("a"), town.start("b", owners="shares")]
        town.run(2 * SETTLE)
        assert sorted(map(state, nodes))[0] == "registered" and nodes[0].online in ({1: 1}, {2: 1}), seed
        assert sum(state(node) == "registered" for node in nodes) == 1 and any(node.problem for node in nodes), seed


def test_a_node_that_lost_its_lease_while_the_others_changed_their_owners_ends() -> None:
    town = Town()
    a, _ = town.joined("a", "b")
    town.etcd.cut("a")
    town.crash("b")
    town.run(7.0)
    b = town.start("b", owners="shares")
    town.run(2 * SETTLE)
    assert state(b) == "registered"
    town.etcd.heal("a", town.now)
    town.run(3.0)
    assert state(a) == "replaced" and "cluster.owners is etcd here and shares at node b" in a.problem


def owners_of(town: Town, *names: str) -> list[str]:
    """Of these nodes, which have to be members, with what etcd says about each."""
    registry = Registry(Keys("c"))
    store = town.etcd.store
    registry.load(store.get(registry.keys.members, prefix=True), (), store.revision)
    found = [town.members[name] for name in names]
    assert [(member.state, member.problem) for member in found] == [("registered", "")] * len(names)
    assert [registry.parsed.owners[name] for name in names] == [member.owners for member in found]
    return [member.owners for member in found]


@pytest.mark.parametrize("seeds", [8, pytest.param(50, marks=pytest.mark.long)])
def test_nodes_of_a_new_cluster_without_the_setting_have_shares(seeds: int) -> None:
    for seed in range(seeds):
        town = Town(seed)
        for name in "abc":
            assert town.start(name, owners="auto").owners == "auto"
        town.run(2 * SETTLE)
        assert owners_of(town, *"abc") == ["shares"] * 3, seed


def test_a_rolling_restart_without_the_setting_keeps_owners_in_etcd() -> None:
    town = Town()
    town.joined("a", "b", "c")
    for name in "abc":
        town.crash(name)
        town.run(7.0)  # until its lease has expired
        town.start(name, owners="auto")
        town.run(2 * SETTLE)
        assert owners_of(town, *"abc") == ["etcd"] * 3


def test_a_node_that_joins_without_the_setting_has_what_the_others_have() -> None:
    for owners in ("etcd", "shares"):
        town = Town()
        town.start("a", owners=owners)
        town.run()
        town.start("b", owners="auto")
        town.run(2 * SETTLE)
        assert owners_of(town, "a", "b") == [owners] * 2


@pytest.mark.parametrize("seeds", [8, pytest.param(50, marks=pytest.mark.long)])
def test_nodes_that_were_all_stopped_keep_owners_in_etcd_without_the_setting(seeds: int) -> None:
    for seed in range(seeds):
        town = Town(seed)
        town.joined("a", "b", "c")
        for name in "abc":
            town.crash(name)
        town.run(7.0)
        for name in "cab":
            town.start(name, owners="auto")
        town.run(2 * SETTLE)
        assert owners_of(town, *"abc") == ["etcd"] * 3, seed


def test_members_of_a_version_without_the_setting_have_owners_in_etcd() -> None:
    town = Town()
    town.joined("a", "b")
    store = town.etcd.store
    for name in ("a", "b"):
        key = Keys("c").registered(name)
        facts = json.loads(store.get(key)[0].value)
        del facts["owners"]
        store.transact(Txn("older", (), (Put(key, json.dumps(facts).encode()),)), 0)
    town.crash("b")
    town.run(7.0)
    b = town.start("b", owners="auto")
    town.run(2 * SETTLE)
    assert state(b) == "registered" and b.owners == "etcd"


def test_a_change_to_shares_that_one_node_has_made_is_followed_after_a_crash_of_all() -> None:
    town = Town()
    town.joined("a", "b", "c")
    for name in "abc":
        town.crash(name)
    town.run(7.0)
    town.start("b", owners="shares")
    town.run(2 * SETTLE)
    town.crash("b")
    town.run(7.0)
    for name in "acb":
        town.start(name, owners="auto")
    town.run(2 * SETTLE)
    assert owners_of(town, *"abc") == ["shares"] * 3


@pytest.mark.parametrize("seeds", [8, pytest.param(100, marks=pytest.mark.long)])
def test_of_nodes_that_start_at_once_all_that_join_have_the_same_owners(seeds: int) -> None:
    """The first node decides; a node that names another setting waits, or ends."""
    for seed in range(seeds):
        town = Town(seed)
        found = [town.start("a", owners="etcd"), town.start("b", owners="auto"), town.start("c", owners="auto")]
        town.run(3 * SETTLE)
        joined = [node for node in found if state(node) == "registered"]
        assert len({node.owners for node in joined}) == 1, seed
        assert all(node.problem for node in found if node not in joined), seed


@pytest.mark.parametrize("seeds", [8, pytest.param(100, marks=pytest.mark.long)])
def test_a_node_whose_requests_are_carried_out_without_an_answer_has_what_its_key_says(seeds: int) -> None:
    for seed in range(seeds):
        town = Town(seed)
        draw = Random(seed)
        town.etcd.cut("a")
        a = town.start("a", owners="auto")
        for _ in range(6):
            town.run(draw.uniform(0.0, 0.4))
            town.etcd.heal("a", town.now)
            town.run(draw.uniform(0.0, 0.1))
            town.etcd.cut("a")
        b = town.start("b", owners="etcd" if seed % 2 else "auto")
        town.run(draw.uniform(0.0, 2.0))
        town.etcd.heal("a", town.now)
        town.run(4 * SETTLE)
        joined = [name for name, node in town.members.items() if state(node) == "registered"]
        assert joined and len(set(owners_of(town, *joined))) == 1, seed
        assert all(node.problem or state(node) == "registered" for node in (a, b)), seed
