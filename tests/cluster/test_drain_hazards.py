"""Drains at moments that random worlds rarely reach: each scene, and the planted mistakes that it finds.

One mistake is harmless and not planted: an offer that counts as taken before it is. The drain counts the sessions that
are still here, not its offers (``Drain._look``), so it offers such a session again. A node that gets an offer twice
finds by the epoch that the second one is void.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.mistakes import Mistake, each_mistake, each_scene, numbers
from tests.cluster.test_drain import fleet_of, until
from tests.cluster.test_takeover import lasting, publish, published, subscribe

from starlingmq.cluster.balance.drain import Drain
from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.takeover.takeover import Takeovers


def a_drain_waits_until_its_offers_are_taken() -> None:
    """Offers of a draining node do not arrive for a while."""
    fleet = fleet_of(3)
    first, second, third = numbers(fleet)
    lasting(fleet, 0).drop()
    fleet.mute = {(first, second), (first, third)}
    drain = fleet[0].cluster.drain
    fleet[0].cluster.begin_drain(fleet.now, 30.0)
    fleet.advance(1.0)
    assert not drain.done
    fleet.speak()
    until(fleet, lambda: drain.done)
    assert drain.handed == 1


def drained(fleet: Fleet, place: int) -> Callable[[], bool]:
    """Whether that node may end: the condition of ``net.peers.cluster_shell``."""
    cluster = fleet[place].cluster
    return lambda: cluster.drain.done and cluster.flushed()


def messages_that_reach_a_draining_node_are_passed_on() -> None:
    """A session was handed over. A third node does not know that yet, and publishes to the former owner."""
    fleet = fleet_of(3)
    _, second, third = numbers(fleet)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.advance(0.6)  # the third one has a client, as all know: the second one is offered the session
    fleet.mute = {(second, third)}  # so the third node is not asked for its marker
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
    assert published(client.receive()) == [b"one"], "the message is lost"


def a_draining_node_delivers_before_it_ends() -> None:
    """A message that a client has published at the draining node is still on its way to another node."""
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
    assert published(client.receive()) == [b"one"], "an acknowledged message is lost"


MISTAKES: dict[str, Mistake] = {
    "the node ends before its sessions are gone": Mistake(
        Drain, "_may_accept", lambda *_: False, a_drain_waits_until_its_offers_are_taken
    ),
    "the node ends while a session is on its way": Mistake(
        Takeovers, "handing_over", lambda _: 0, messages_that_reach_a_draining_node_are_passed_on
    ),
    "the node ends while it owes messages to others": Mistake(
        ClusterState, "flushed", lambda _: True, a_draining_node_delivers_before_it_ends
    ),
}


@each_scene(MISTAKES)
def test_the_scene_ends_well(scene: Callable[[], None]) -> None:
    scene()


@each_mistake(MISTAKES)
def test_each_mistake_is_found(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.must_show(monkeypatch)
