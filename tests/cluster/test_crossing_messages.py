"""The cost of a message that goes from one node to another: no whole turn of the cluster, few acknowledgements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.subscribers import payloads, subscribe

from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.links.peer_frames import Data, DataAck
from starlingmq.cluster.links.peer_transport import ACK_SECONDS
from starlingmq.wire.mqtt import Publish

patches = pytest.mark.interpreted_only("what is compiled can not be patched")

STEP = ACK_SECONDS / 10
COUNT = 200


@contextmanager
def whole_turns() -> Iterator[list[str]]:
    """The names of the nodes that took whole turns."""
    taken: list[str] = []
    take = ClusterState._take_whole_turn

    def counted(self: ClusterState, now: float) -> None:
        taken.append(self.name)
        take(self, now)

    with patch.object(ClusterState, "_take_whole_turn", counted):
        yield taken


@patches
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_from_another_node_needs_no_whole_turn(qos: int) -> None:
    fleet = Fleet(2)
    here, there = fleet.connect(0, "publisher"), fleet.connect(1, "subscriber")
    subscribe(there, b"t", qos)
    fleet.advance(1.0)
    with whole_turns() as taken:
        for number in range(3):
            here.send(Publish(b"t", b"%d" % number, qos, packet_id=number + 1 if qos else 0))
    assert payloads(there) == [b"0", b"1", b"2"]
    assert taken == []


@patches
def test_a_payload_for_a_subsystem_among_the_messages_takes_a_whole_turn() -> None:
    fleet = Fleet(2)
    fleet.advance(1.0)
    with whole_turns() as taken:
        fleet[0].cluster.rebalance(5, fleet.now)
        fleet.run()
    assert fleet[1].name in taken


def test_messages_in_both_directions_are_acknowledged_by_far_fewer_frames() -> None:
    fleet = Fleet(2)
    clients = fleet.connect(0, "a"), fleet.connect(1, "b")
    for client, topic in zip(clients, (b"to/a", b"to/b"), strict=True):
        subscribe(client, topic)
    fleet.advance(1.0)
    before = len(fleet.carried)
    for _ in range(COUNT):
        for client, topic in zip(clients, (b"to/b", b"to/a"), strict=True):
            client.send(Publish(topic, b"m", 0))
        fleet.advance(STEP, STEP)
    bodies = [envelope.body for envelope in fleet.carried[before:]]
    assert sum(isinstance(body, Data) for body in bodies) == 2 * COUNT
    assert sum(isinstance(body, DataAck) for body in bodies) <= 2 * COUNT * STEP / (ACK_SECONDS / 2) + 2
    fleet.advance(2 * ACK_SECONDS)
    assert all(each.link.unacknowledged() == 0 for node in fleet.nodes for each in node.cluster.transports.values())
