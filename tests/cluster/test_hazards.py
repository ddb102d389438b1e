"""What goes wrong at one moment only, made by hand; and for each the mistake made on purpose that it shows. Worlds
drawn from seeds come by these moments too rarely for a test.

One mistake of draining can do no harm any more, and is not made here: an offer that counts as taken. What is left to be
handed over is counted by the sessions that are here, again and again (``Drain._look``), not by the offers; so such an
offer is made once more, and whoever gets it twice finds by its epoch that it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.takeover_world import Roamer
from tests.cluster.test_drain import fleet_of, until
from tests.cluster.test_takeover import lasting, publish, published, subscribe
from tests.cluster.test_takeover_crashes import made
from tests.sim.clients import Publisher
from tests.sim.world import LIVENESS_MAX

import starlingmq
from starlingmq.cluster.arrivals import Arrival
from starlingmq.cluster.state import ClusterState
from starlingmq.cluster.takeover import Takeovers
from starlingmq.core.peers import Peers
from starlingmq.core.session import MOVED_PREFIX


def numbers(fleet: Fleet) -> list[int]:
    return [node.cluster.number for node in fleet.nodes]


def what_came_before_a_mark_is_waited_for() -> None:
    """A third node has sent something before its mark, which the former owner can not give on for a while, and
    something after it, which comes straight."""
    fleet = Fleet(3)
    new, former, third = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.mute = {(new, third)}  # which is not asked for its mark
    client = lasting(fleet, 0)
    assert client.connack.session_present
    fleet.advance(0.2)
    fleet.mute.add((former, new))
    publish(publisher, b"t", b"before")
    fleet.mute.discard((new, third))
    fleet[0].cluster.connected(third, fleet.now)
    fleet.advance(0.2)
    publish(publisher, b"t", b"after", packet_id=2)
    fleet.advance(0.2)
    assert published(client.receive()) == []
    fleet.speak()
    fleet.advance(0.2)
    assert published(client.receive()) == [b"before", b"after"]


def what_a_node_says_is_heard_once_though_it_crashes() -> None:
    """A session's queue has come, and is stored; who gave it does not learn of that, and gives it again to the next
    life of the new owner. The move is not over, for a third node has not put its mark."""
    world = made()
    former, new, third = world.nodes
    roamer = Roamer(world.books, world.random, former, "roamer", 5, True)
    publisher = Publisher(world.books, world.random, former, "publisher", 5, True)
    world.subscribers, world.publishers, world.people = [roamer], [publisher], [roamer, publisher]
    roamer.left, publisher.left = 1, 3
    roamer.homes = [former]
    roamer.come()
    publisher.come()
    roamer.subscribe(b"a/#", 2)
    world.pass_time(1.0)
    roamer.homes = [new]
    roamer.cut()
    for _ in range(3):
        publisher.publish(b"a/1", 2)
    apart = [(new.host, third.host), (third.host, new.host)]
    world.network.cut(apart)
    assert former.process is not None
    sessions = former.process.state.ctx.sessions
    while not any(name.startswith(MOVED_PREFIX) for name in sessions):
        world._pass(0.001)
    deaf = [(new.host, former.host)]
    world.network.cut(deaf)
    world.pass_time(0.5)
    assert new.process is not None and new.process.state.ctx.sessions["roamer"].moving is not None
    new.crash(False)
    world.network.heal(deaf)
    world.pass_time(0.3)
    world.start_if_wanted(new)
    world.pass_time(1.0)
    world.network.heal(apart)
    roamer.homes = []
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")
    counts = [count for (name, _), got in world.books.got.items() if name == "roamer" for count in got.values()]
    assert counts == [1, 1, 1], "something came twice"


def drained(fleet: Fleet, place: int) -> Callable[[], bool]:
    """Whether that node ends, as ``net.cluster`` has it."""
    cluster = fleet[place].cluster
    return lambda: cluster.drain.done and cluster.flushed()


def what_still_comes_to_who_drains_goes_on() -> None:
    """A session has been handed over, but a third node does not know that yet, and publishes to where it was."""
    fleet = fleet_of(3)
    _, second, third = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.advance(0.6)  # the third one has a client, as all know: the second one is offered the session
    fleet.mute = {(second, third)}  # which is not asked for its mark
    fleet[0].cluster.begin_drain(fleet.now, 30.0)
    ends = drained(fleet, 0)
    until(fleet, lambda: fleet[0].cluster.drain.handed == 1)
    fleet.advance(3.0)
    early = ends()
    if early:
        fleet.end(0)
    publish(publisher, b"t", b"one")
    fleet.speak()
    if not early:
        until(fleet, ends)
        fleet.end(0)
    client = lasting(fleet, 0)
    assert client.connack.session_present
    fleet.advance(0.5)
    assert published(client.receive()) == [b"one"], "what came meanwhile is gone"


def what_is_owed_is_delivered_before_the_end() -> None:
    """What clients published at the node that drains is still on its line to another one."""
    fleet = fleet_of(3)
    first, second, _ = numbers(fleet)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    fleet.mute = {(first, second)}
    publish(publisher, b"t", b"one")
    fleet[0].cluster.begin_drain(fleet.now, 30.0)
    ends = drained(fleet, 0)
    fleet.advance(4.0)
    early = ends()
    if early:
        fleet.end(0)
    fleet.speak()
    if not early:
        until(fleet, ends)
        fleet.end(0)
    assert published(client.receive()) == [b"one"], "what was acknowledged is gone"


Mistake = tuple[type, str, Callable[..., object], Callable[[], None]]


def unnoted(self: Peers, peer: Any, message: Any) -> None:
    """That it was heard is not stored."""
    if self.control is not None:
        self.control(peer.number, message.payload)


MISTAKES: dict[str, Mistake] = {
    "order is not waited for": (Arrival, "ordered", lambda *_: True, what_came_before_a_mark_is_waited_for),
    "control is heard again after a crash": (
        Peers,
        "_take_control",
        unnoted,
        what_a_node_says_is_heard_once_though_it_crashes,
    ),
    "it ends while something is on its way": (Takeovers, "giving", lambda _: 0, what_still_comes_to_who_drains_goes_on),
    "it ends while others are owed something": (
        ClusterState,
        "flushed",
        lambda _: True,
        what_is_owed_is_delivered_before_the_end,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_hazards(name: str) -> None:
    MISTAKES[name][3]()


@pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, method, wrong, scene = MISTAKES[name]
    monkeypatch.setattr(kind, method, wrong)
    with pytest.raises(AssertionError):
        scene()
