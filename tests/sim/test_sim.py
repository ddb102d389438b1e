"""Some of the seeds of ``make sim``, and worlds that are made by hand."""

from __future__ import annotations

import pytest
from tests.few import few
from tests.sim import faults, planted
from tests.sim.clients import Subscriber
from tests.sim.node import Node
from tests.sim.recording import formed
from tests.sim.run import run
from tests.sim.seen import EVERYTHING, Seen
from tests.sim.world import World


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("worlds", few([4, 90, 200], 4))
def test_many_worlds(worlds: int) -> None:
    seen = Seen()
    acknowledged = data_frames = 0
    for seed in range(1_000_000, 1_000_000 + worlds):
        world = run(seed)
        seen += world.seen
        acknowledged += world.books.acknowledged_count
        data_frames += world.network.data_frames
    assert acknowledged > 25 * worlds, "hardly anything was published"
    assert data_frames > 25 * worlds, "hardly anything went from node to node"
    assert seen["crashes"] > worlds, "hardly anything ever crashed"
    assert worlds < 80 or not [what for what in EVERYTHING if not seen[what]], "what never happened was not tested"


@pytest.mark.parametrize("worlds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_worlds_in_which_nodes_tell_summaries_of_their_filters(worlds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "summaries", True)
    acknowledged = 0
    for seed in range(3_000_000, 3_000_000 + worlds):
        acknowledged += run(seed).books.acknowledged_count
    assert acknowledged > 10 * worlds


@pytest.mark.parametrize("theme", ["groups_lose_their_primary", "groups_have_two_primaries"])
@pytest.mark.parametrize("worlds", [1, pytest.param(4, marks=pytest.mark.long)])
def test_queue_groups(theme: str, worlds: int) -> None:
    """Each message of a group goes to one live member or waits, whatever becomes of primaries and members."""
    acknowledged = 0
    for seed in range(worlds):
        acknowledged += run(seed, False, theme).books.acknowledged_count
    assert acknowledged > 25 * worlds


def test_a_seed_is_the_same_world_again() -> None:
    one, two = (World(4711) for _ in range(2))
    one.live()
    two.live()
    assert one.books.got == two.books.got
    assert one.schedule.count == two.schedule.count


def serving(world: World) -> list[str]:
    return [node.host for node in world.nodes if node.process is not None and node.process.serves()]


def connected(world: World) -> int:
    """How many pairs of nodes take each other for connected, counted from both ends."""
    quorums = [node.process.cluster.quorum for node in world.nodes if node.process is not None]
    return sum(len(quorum.connected()) for quorum in quorums if quorum is not None)


@pytest.mark.parametrize("ways", [[("n1", "n2"), ("n2", "n1")], [("n1", "n2")], [("n1", "n2"), ("n2", "n3")]])
def test_two_nodes_without_a_connection_continue_through_the_third(ways: list[tuple[str, str]]) -> None:
    world = formed('kind "calm"', "nodes 3")
    end = faults.cut_ways(world, ways)
    world.pass_time(10.0)
    assert serving(world) == ["n1", "n2", "n3"] and connected(world) == 6
    end()
    world.pass_time(10.0)
    assert serving(world) == ["n1", "n2", "n3"] and connected(world) == 6


def owned_without(node: Node) -> str:
    """A client id whose share has neither its leader nor its deputy at that node."""
    assert node.process is not None
    cluster = node.process.cluster
    return next(f"sub{n}" for n in range(10000) if cluster.number not in cluster.shares.table.of(f"sub{n}")[:2])


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_a_suback_waits_for_nodes_that_others_reach() -> None:
    """n1 and n2 do not reach each other at all, and both serve with n3: what n2 accepts it would not pass on to n1."""
    world = formed('kind "calm"', "nodes 3")
    with planted.nothing_is_passed_on():
        end = faults.cut_ways(world, [("n1", "n2"), ("n2", "n1")])
        world.pass_time(10.0)
        assert serving(world) == ["n1", "n2", "n3"] and connected(world) == 4
        subscriber = Subscriber(world.books, world.random, world.nodes[0], owned_without(world.nodes[1]), 5, False)
        subscriber.come()
        subscriber.subscribe(b"a/1", 1)
        world.pass_time(10.0)
        assert subscriber.online and not subscriber.promises
    end()
    world.pass_time(3.0)
    assert subscriber.promises


@pytest.mark.parametrize("ways", [[("n1", "n2"), ("n1", "n3")], [("n2", "n1"), ("n3", "n1")]])
def test_a_node_with_one_way_connections_does_not_serve(ways: list[tuple[str, str]]) -> None:
    world = formed('kind "calm"', "nodes 3")
    end = faults.cut_ways(world, ways)
    world.pass_time(10.0)
    assert serving(world) == ["n2", "n3"]
    end()
    world.pass_time(10.0)
    assert serving(world) == ["n1", "n2", "n3"]


def test_no_majority_no_service() -> None:
    world = formed('kind "calm"', "nodes 4")
    hosts = world.hosts
    ways = [(a, b) for a in hosts[:2] for b in hosts[2:]]
    end = faults.cut_ways(world, ways + [(b, a) for a, b in ways])
    world.pass_time(10.0)
    assert serving(world) == []
    end()
    world.pass_time(10.0)
    assert serving(world) == hosts
