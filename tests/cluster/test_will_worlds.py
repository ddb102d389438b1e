"""Some worlds of ``tests.cluster.will_world``, and mistakes made on purpose, each with what shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster import test_wills
from tests.cluster.test_takeover_crashes import made
from tests.cluster.will_world import run
from tests.few import few
from tests.sim.clients import FOREVER
from tests.sim.node import Node

from starlingmq.cluster.wills.cluster_wills import ClusterWills
from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import RegisteredWill
from starlingmq.cluster.wills.will_settlement import WillSettlements
from starlingmq.cluster.wills.will_table import DUE, WillTable
from starlingmq.core.connect.ending import Ending
from starlingmq.wire.mqtt import Connect, Will, encode
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

pytestmark = pytest.mark.interpreted_only("what is compiled can not be patched")


@pytest.mark.parametrize("seed", few(range(6), 4, 5))
def test_each_will_is_published_once_and_none_of_a_client_that_is_back(seed: int) -> None:
    world = run(seed)
    assert world.published


@pytest.mark.parametrize("seed", few(range(3), 2))
def test_each_will_is_published_once_when_live_nodes_lose_their_leases(seed: int) -> None:
    assert run(seed, losses=True).published


def _at_once(wills: ClusterWills, name: str, entry: WillEntry, now: float) -> bool:
    entry.allowed_until = inf
    return not entry.published


def a_node_publishes_without_asking_etcd() -> Any:
    return patch.multiple(ClusterWills, _may_publish=_at_once)


def a_will_at_a_node_that_is_away_is_not_cancelled() -> Any:
    return patch.object(WillSettlements, "settle", lambda self, *arguments: True)


def a_restarted_node_ignores_settled_records_in_etcd() -> Any:
    settled = ClusterWills._settled

    def deaf(self: ClusterWills, name: str, entry: WillEntry, value: RegisteredWill) -> None:
        if not self.registration._seen:
            settled(self, name, entry, value)

    return patch.object(ClusterWills, "_settled", deaf)


def _without_facts(prefix: bytes) -> Any:
    fact = WillTable.fact

    def forgetful(self: WillTable, key: bytes, value: Any) -> None:
        if not key.startswith(prefix):
            fact(self, key, value)

    return patch.object(WillTable, "fact", forgetful)


def due_wills_are_not_stored() -> Any:
    return _without_facts(DUE)


class Mourned:
    """A client that leaves a will at a node of a world, and hears nothing."""

    def __init__(self, node: Node) -> None:
        assert node.process is not None
        self.process = node.process
        self.client = self.process.accept(self, "mourned")
        will = Will(b"will", b"gone", 1, False, {})
        connect = Connect(5, "mourned", False, will=will, properties={SESSION_EXPIRY_INTERVAL: FOREVER})
        self.process.receive(self.client, encode(connect, 5))

    def hear(self, data: bytes) -> None:
        """CONNACK."""

    def closed_by_broker(self) -> None:
        """Its node is gone."""

    def go(self) -> None:
        """Without DISCONNECT."""
        self.process.lost(self.client)


@contextmanager
def publishing() -> Iterator[list[bytes]]:
    """The wills that are published."""
    published: list[bytes] = []
    publish = Ending.publish_will

    def noting(ending: Ending, will: Any) -> None:
        published.append(will.message.payload)
        publish(ending, will)

    with patch.object(Ending, "publish_will", noting):
        yield published


def a_will_published_by_another_node_is_not_published_after_a_restart() -> None:
    world = made()
    node = world.nodes[0]
    Mourned(node)
    world.pass_time(1.0)
    with publishing() as published:
        node.crash(False)
        world.pass_time(15.0)
        assert published == [b"gone"]
        world.start_if_wanted(node)
        world.pass_time(5.0)
        assert published == [b"gone"]


def a_will_due_at_a_crash_is_published_after_it() -> None:
    """Its node could not tell the leader of the share that it does, and had not done it."""
    world = made()
    node = world.nodes[0]
    mourned = Mourned(node)
    world.pass_time(1.0)
    others = [other.host for other in world.nodes if other is not node]
    ways = [(node.host, other) for other in others] + [(other, node.host) for other in others]
    world.network.cut(ways)
    with publishing() as published:
        mourned.go()
        world.pass_time(0.5)
        node.crash(False)
        world.network.heal(ways)
        world.start_if_wanted(node)
        world.pass_time(5.0)
        assert published == [b"gone"]


def test_a_will_due_before_its_node_has_rejoined_is_not_lost() -> None:
    """It comes back, does not reach etcd, and crashes once more."""
    world = made()
    node = world.nodes[0]
    Mourned(node)
    world.pass_time(1.0)
    with publishing() as published:
        node.crash(False)
        world.etcd.cut(node.host)
        world.start_if_wanted(node)
        world.pass_time(0.5)
        node.crash(False)
        world.etcd.heal(node.host)
        world.start_if_wanted(node)
        world.pass_time(15.0)
        assert published == [b"gone"]


cut_off = test_wills.test_a_node_that_was_cut_off_does_not_publish_wills_that_others_have_published
back = test_wills.test_a_client_that_reconnects_before_its_dead_node_is_missed_cancels_its_will

SHOWN_BY: tuple[tuple[Callable[[], Any], Callable[[], None]], ...] = (
    (a_node_publishes_without_asking_etcd, cut_off),
    (a_will_at_a_node_that_is_away_is_not_cancelled, back),
    (
        a_restarted_node_ignores_settled_records_in_etcd,
        a_will_published_by_another_node_is_not_published_after_a_restart,
    ),
    (due_wills_are_not_stored, a_will_due_at_a_crash_is_published_after_it),
)
"""And what is made by hand that shows it; drawn worlds do too, one in twenty or so."""


@pytest.mark.parametrize(("mistake", "scene"), SHOWN_BY, ids=lambda each: getattr(each, "__name__", None))
def test_each_mistake_is_found(mistake: Callable[[], Any], scene: Callable[[], None]) -> None:
    scene()
    with mistake(), pytest.raises(AssertionError):
        scene()
