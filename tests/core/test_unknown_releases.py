"""PUBRELs of unknown handshakes of 3.x clients: each value of ``mqtt.unknown_pubrel``, and no client is locked out."""

from __future__ import annotations

import random

import pytest
from tests.conformance.kit import persistent, publish, sole, subscribe
from tests.few import few
from tests.harness import FakeClient, World

from starlingmq.core.publish.unknown_pubrel import CLIENT_MAX, TOTAL_MAX, UnknownPubrels
from starlingmq.wire.mqtt import Ack
from starlingmq.wire.packets import PUBCOMP, PUBREC, PUBREL


def test_complete_answers_at_once() -> None:
    world = World(unknown_pubrel="complete")
    client = persistent(world, "c", 4)
    client.send(Ack(PUBREL, 5))
    assert sole(client, Ack) == Ack(PUBCOMP, 5)
    assert [(notice.reason, notice.closing) for notice in world.notices] == [("pubrel_unknown", False)]


def test_end_session_tells_by_session_present_and_locks_nobody_out() -> None:
    world = World(unknown_pubrel="end_session")
    client = persistent(world, "c", 4)
    subscribe(client, "t", qos=1)
    client.send(Ack(PUBREL, 5))
    assert client.closed
    client = persistent(world, "c", 4)
    assert not client.connack.session_present
    client.send(Ack(PUBREL, 5))
    assert sole(client, Ack) == Ack(PUBCOMP, 5)


def connections_until_answered(world: World, client_id: str, packet_ids: list[int]) -> int:
    for count in range(1, len(packet_ids) + 2):
        client = persistent(world, client_id, 4)
        client.send_all([Ack(PUBREL, packet_id) for packet_id in packet_ids])
        if not client.closed:
            assert client.receive() == [Ack(PUBCOMP, packet_id) for packet_id in packet_ids]
            client.drop()
            return count
    raise AssertionError("it was locked out")


def test_pubrels_that_come_together_close_one_connection() -> None:
    assert connections_until_answered(World(), "c", list(range(1, 501))) == 2


def test_more_than_are_remembered_take_more_connections_and_come_to_an_end() -> None:
    assert connections_until_answered(World(), "c", list(range(1, 3 * CLIENT_MAX))) <= 4


def test_one_at_a_time_each_costs_one_connection() -> None:
    world = World()
    for packet_id in (1, 2, 3):
        client = persistent(world, "c", 4)
        for known in range(1, packet_id):
            client.send(Ack(PUBREL, known))
            assert sole(client, Ack) == Ack(PUBCOMP, known)
        client.send(Ack(PUBREL, packet_id))
        assert client.closed


def test_a_packet_id_that_is_used_again_is_closed_for_again() -> None:
    world = World()

    def lost(client: FakeClient) -> bool:
        client.send(Ack(PUBREL, 5))
        return client.closed

    assert lost(persistent(world, "c", 4))
    client = persistent(world, "c", 4)
    publish(client, "t", qos=2, packet_id=5)
    assert sole(client, Ack) == Ack(PUBREC, 5)
    client.send(Ack(PUBREL, 5))
    assert sole(client, Ack) == Ack(PUBCOMP, 5)
    client = world.connect("c", version=4, clean_start=True)  # the handshakes are discarded
    assert lost(client)


@pytest.mark.parametrize("seed", few(range(5), 0))
def test_the_memory_is_bounded_and_each_closing_counts(seed: int) -> None:
    rng = random.Random(seed)
    noted = UnknownPubrels()
    for _ in range(2000):
        client_id, packet_id = f"c{rng.randrange(200)}", rng.randrange(1, 65_536)
        noted.note(client_id, packet_id)
        noted.note_too(client_id, [rng.randrange(1, 65_536) for _ in range(rng.randrange(2 * CLIENT_MAX))])
        assert noted.total == sum(len(ids) for ids in noted._noted.values()) <= TOTAL_MAX
        assert all(0 < len(ids) <= CLIENT_MAX for ids in noted._noted.values())
        if rng.random() < 0.5:
            assert noted.take(client_id, packet_id)
            assert not noted.take(client_id, packet_id)
