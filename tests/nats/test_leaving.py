"""Where NATS clients may go: ``connect_urls`` as members come and go, and a node that has its clients leave."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.fleet import Fleet
from tests.harness import World
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.config.nats_section import NatsConfig


def infos(peer: NatsPeer) -> list[dict[str, Any]]:
    """The INFO frames since the last call; no other frames have come."""
    found = []
    for frame in peer.heard():
        assert isinstance(frame, str) and frame.startswith("INFO "), frame
        found.append(json.loads(frame[5:]))
    return found


def urls(peer: NatsPeer) -> list[list[str] | None]:
    return [info.get("connect_urls") for info in infos(peer)]


def open_node(fleet: Fleet, place: int) -> None:
    listeners = [f"nats://n{place}:4222", f"nats+ws://n{place}:80/", f"mqtt://n{place}:1883"]
    fleet[place].cluster.node_directory.open_own(listeners)
    fleet.advance(0.6)


def fleet_of(count: int) -> Fleet:
    fleet = Fleet(count)
    for place in range(count):
        open_node(fleet, place)
    return fleet


def test_members_are_told_as_they_come_and_go() -> None:
    fleet = fleet_of(2)
    peer = connect(fleet[0], protocol=1)
    assert peer.info["connect_urls"] == ["n0:4222", "n1:4222"]
    web = NatsPeer(fleet[0], "nats+ws://127.0.0.1:80/")
    assert web.info["connect_urls"] == ["n0:80", "n1:80"]
    old = connect(fleet[0])  # of a time when clients took INFO once only
    fleet.add()
    assert urls(peer) == []
    open_node(fleet, 2)
    assert urls(peer) == [["n0:4222", "n1:4222", "n2:4222"]]
    fleet[1].cluster.node_directory.draining = True
    fleet.advance(0.6)
    assert urls(peer) == [["n0:4222", "n2:4222"]]
    assert infos(old) == infos(web) == []
    assert NatsPeer(fleet[0], "tls://127.0.0.1:4223").info.get("connect_urls") is None


def test_a_node_that_is_cut_off_leaves_it_at_what_it_said() -> None:
    fleet = fleet_of(3)
    peer = connect(fleet[0], protocol=1)
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(10.0)
    assert fleet[0].state.ctx.isolated
    assert all(len(found or ()) >= 2 for found in urls(peer))
    fleet.heal()
    fleet.advance(5.0)
    late = NatsPeer(fleet[0])
    assert late.info["connect_urls"] == ["n0:4222", "n1:4222", "n2:4222"]


def test_configured_urls_replace_those_of_listeners() -> None:
    fleet = fleet_of(2)
    fleet[0].state.nats.configure(NatsConfig(connect_urls=("balancer:4222",)))
    assert NatsPeer(fleet[0]).info["connect_urls"] == ["balancer:4222"]


def test_many_clients_are_told_some_a_turn() -> None:
    world = World()
    peers = [connect(world, protocol=1) for _ in range(1100)]
    world.state.nats.reach(("nats://a:1",), [])
    world.state.nats.reach(("nats://a:1",), ["nats://b:1"])
    world.state.nats.reach(("nats://a:1",), ["nats://b:1"])
    world.run()
    heard = [urls(peer) for peer in peers]
    assert heard[-1] == [["a:1", "b:1"]]  # was not told twice
    assert all(found[-1] == ["a:1", "b:1"] for found in heard)


def test_clients_leave_one_after_the_other() -> None:
    world = World()
    world.state.nats.reach(("nats://here:1",), ["nats://there:1"])
    peers = [connect(world, protocol=1) for _ in range(10)]
    world.state.nats.leaving.begin(world.now, 10.0)
    world.run()
    for peer in peers:
        [info] = infos(peer)
        assert info["ldm"] is True
        assert info["connect_urls"] == ["there:1"]
    world.state.nats.reach((), ["nats://there:1"])
    world.run()
    assert [infos(peer) for peer in peers] == [[]] * 10  # that this node is none of them any more is no news
    late = NatsPeer(world)
    assert late.info["ldm"] is True
    late.send('CONNECT {"verbose":false}', "SUB a 1")
    left = []
    for _ in range(11):
        world.advance(1.0)
        left.append(sum(not peer.closed for peer in [*peers, late]))
    assert left[-1] == 0
    assert all(0 <= before - after <= 2 for before, after in zip([11, *left], left, strict=False)), left
    assert 3 <= left[4] <= 7
    assert world.state.nats.leaving.closed == 11, "a drain says how many it closed"
    assert world.state.nats.leaving.due_at == 0.0


def test_until_it_is_closed_a_client_is_served() -> None:
    world = World()
    peer, other = connect(world, protocol=1), connect(world)
    other.send("SUB a 1")
    world.state.nats.leaving.begin(world.now, 4.0)
    world.run()
    infos(peer)
    world.advance(2.1)
    assert peer.closed
    peer = connect(world)
    peer.pub("a", b"x")
    assert other.heard() == [Msg("a", "1", b"x")]
    world.advance(0.5)
    world.state.nats.leaving.begin(world.now, 0.0)  # those who are in a hurry
    world.advance(0.3)
    assert peer.closed and other.closed


def test_a_node_without_clients_has_nobody_to_wait_for() -> None:
    world = World()
    world.state.nats.leaving.begin(world.now, 0.0)
    world.advance(1.0)
    assert world.state.nats.leaving.due_at == 0.0
