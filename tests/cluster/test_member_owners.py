"""All nodes that run have the same ``cluster.owners``: another one waits, or ends."""

from __future__ import annotations

from tests.cluster.test_members import SETTLE, Town, names, state

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


def test_of_two_that_start_at_once_with_different_owners_one_joins() -> None:
    for seed in range(50):
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
