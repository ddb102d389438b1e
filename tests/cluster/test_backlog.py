"""A message that a node has accepted is not dropped at its receiver's node for a limit that the first could not know.

A node that comes back, a link that was cut, a session that moves, a group whose member is away: each brings messages
that have their PUBACK already. The queue's limit counts those that are published while its node is there.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.subscribers import payloads, subscribe
from tests.harness import FakeClient

from starlingmq.config.settings import ClusterConfig
from starlingmq.core.delivery.delivery import BEYOND_MAX
from starlingmq.core.reports.session_totals import SessionTotals
from starlingmq.wire.mqtt import Ack, Connect, Publish
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties

BOUND = 10
MANY = 60
APART = ClusterConfig().member_timeout + 1.0  # seconds until two nodes know that they are not connected


LASTING: Final[Properties] = {SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: 5}


def persistent(fleet: Fleet, place: int, client_id: str) -> FakeClient:
    return fleet.connect(place, client_id, clean_start=False, properties=LASTING)


def coming(fleet: Fleet, place: int, client_id: str) -> FakeClient:
    """A client that has sent its CONNECT, and waits for its session."""
    client = fleet[place].open(5, client_id)
    client.send(Connect(5, client_id, False, properties=LASTING))
    return client


def send(author: FakeClient, first: int, count: int, qos: int = 1, topic: bytes = b"t") -> None:
    for number in range(first, first + count):
        author.send(Publish(topic, b"%d" % number, qos, packet_id=number + 1))
        reply = author.expect(Ack)
        assert (reply.type, reply.reason) == (PUBACK if qos == 1 else PUBREC, 0)
        if qos == 2:
            author.send(Ack(PUBREL, number + 1))
            assert author.expect(Ack).type == PUBCOMP


def drain(fleet: Fleet, client: FakeClient) -> list[bytes]:
    """Reads and acknowledges everything that the client is sent."""
    found: list[bytes] = []
    for _ in range(1000):
        packets = client.receive()
        for packet in packets:
            if isinstance(packet, Publish):
                found.append(packet.payload)
                client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
            elif isinstance(packet, Ack) and packet.type == PUBREL:
                client.send(Ack(PUBCOMP, packet.packet_id))
        fleet.advance(0.02)
        if not packets:
            return found
    raise AssertionError("it does not come to an end")


def part(fleet: Fleet, number: int) -> None:
    for other in range(1, len(fleet.nodes) + 1):
        if other != number:
            fleet.cut(number, other)
    fleet.advance(APART)


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waited_for_a_node_is_kept_for_a_client_that_is_still_away(qos: int) -> None:
    fleet = Fleet(3, max_mqueue_len=BOUND)
    reader, never = persistent(fleet, 0, "reader"), persistent(fleet, 0, "never")
    for client in (reader, never):
        subscribe(client, b"t", qos)
        client.drop()
    author = fleet.connect(1, "author")
    fleet.advance(1.0)
    part(fleet, 1)
    send(author, 0, MANY, qos)
    fleet.heal()
    fleet.advance(APART)
    assert fleet[0].dropped == {}
    again = persistent(fleet, 0, "reader")
    assert drain(fleet, again) == numbers(0, MANY)
    assert fleet[0].dropped == {}


@pytest.mark.parametrize("qos", [1, 2])
def test_a_connected_client_that_reads_slowly_gets_all_that_waited_while_its_node_was_cut_off(qos: int) -> None:
    fleet = Fleet(3, max_mqueue_len=BOUND)
    reader = persistent(fleet, 0, "reader")
    subscribe(reader, b"t", qos)
    author = fleet.connect(1, "author")
    fleet.advance(1.0)
    part(fleet, 1)
    send(author, 0, MANY, qos)
    fleet.heal()
    fleet.advance(30.0, 0.1)  # it has had its time, and publishers are not held for it any more
    assert drain(fleet, reader) == numbers(0, MANY)
    assert fleet[0].dropped == {}


def test_a_client_that_stays_away_keeps_what_waited_until_as_many_newer_messages_have_come() -> None:
    fleet = Fleet(3, max_mqueue_len=BOUND)
    reader = persistent(fleet, 0, "reader")
    subscribe(reader, b"t", 1)
    reader.drop()
    author = fleet.connect(1, "author")
    fleet.advance(1.0)
    part(fleet, 1)
    send(author, 0, MANY)
    fleet.heal()
    fleet.advance(2 * APART)  # messages that come soon after they are connected count as if they had waited
    send(author, MANY, BOUND)
    assert fleet[0].dropped == {}
    send(author, MANY + BOUND, 1)
    assert fleet[0].dropped == {"queue_full": 2}, "one makes room, and one brings the queue back to its limit"
    send(author, MANY + BOUND + 1, 200)
    again = persistent(fleet, 0, "reader")
    assert drain(fleet, again) == numbers(MANY + 201, BOUND)


def test_other_sessions_do_not_wait_for_one_that_never_returns() -> None:
    fleet = Fleet(3, max_mqueue_len=BOUND)
    never = persistent(fleet, 0, "never")
    subscribe(never, b"t", 1)
    never.drop()
    reader = persistent(fleet, 0, "reader")
    subscribe(reader, b"other", 1)
    author = fleet.connect(1, "author")
    fleet.advance(1.0)
    part(fleet, 1)
    send(author, 0, MANY)
    fleet.heal()
    fleet.advance(APART)
    send(author, MANY, 3, topic=b"other")
    assert payloads(reader) == numbers(MANY, 3)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_queue_moves_to_a_node_with_a_smaller_limit(qos: int) -> None:
    fleet = Fleet(1, max_mqueue_len=MANY)
    fleet.add(max_mqueue_len=BOUND)
    reader = persistent(fleet, 0, "reader")
    subscribe(reader, b"t", qos)
    reader.drop()
    author = fleet.connect(0, "author")
    send(author, 0, MANY, qos)
    again = persistent(fleet, 1, "reader")
    fleet.advance(2.0)
    assert fleet[1].dropped == {}
    assert drain(fleet, again) == numbers(0, MANY)


def test_a_full_queue_and_what_comes_while_it_moves_have_room() -> None:
    """The new owner holds messages that overtake those of the former one, and both together are beyond its limit."""
    fleet = Fleet(3, max_mqueue_len=BOUND)
    reader = persistent(fleet, 0, "reader")
    subscribe(reader, b"t", 1)
    reader.drop()
    author = fleet.connect(2, "author")
    send(author, 0, BOUND)
    fleet.advance(1.0)
    fleet.mute.add((1, 2))  # the session cannot move yet, while its client is at the second node
    again = coming(fleet, 1, "reader")
    fleet.advance(0.5)
    send(author, BOUND, MANY)
    fleet.speak()
    fleet.advance(2.0)
    assert drain(fleet, again) == numbers(0, BOUND + MANY)
    assert [node.dropped for node in fleet.nodes] == [{}, {}, {}]


def test_what_a_session_still_gets_that_moves_to_a_node_that_is_away_waits_for_it() -> None:
    fleet = Fleet(3, max_mqueue_len=BOUND)
    reader = persistent(fleet, 0, "reader")
    subscribe(reader, b"t", 1)
    reader.drop()
    author = fleet.connect(2, "author")
    fleet.advance(1.0)
    fleet.mute |= {(1, 2), (3, 2)}
    again = coming(fleet, 1, "reader")
    fleet.advance(0.5)
    part(fleet, 2)
    send(author, 0, MANY)
    assert fleet[0].dropped == {}
    fleet.heal()
    fleet.speak()
    fleet.advance(APART + 2.0)
    if again.closed:
        again = persistent(fleet, 1, "reader")
    assert drain(fleet, again) == numbers(0, MANY)
    assert [node.dropped for node in fleet.nodes] == [{}, {}, {}]


def test_a_session_that_ends_with_its_connection_takes_no_more_than_its_limit_into_memory() -> None:
    fleet = Fleet(3, max_mqueue_len=BOUND)
    reader = fleet.connect(0, "reader", properties={RECEIVE_MAXIMUM: 5})
    subscribe(reader, b"t", 1)
    author = fleet.connect(1, "author")
    fleet.advance(1.0)
    part(fleet, 1)
    send(author, 0, MANY)
    fleet.heal()
    fleet.advance(30.0, 0.1)
    assert fleet[0].dropped == {"queue_full": MANY - 5 - BOUND}


def test_all_queues_together_take_a_bounded_number_of_messages_beyond_their_limits() -> None:
    fleet = Fleet(3, max_mqueue_len=BOUND)
    readers = [persistent(fleet, 0, f"reader {number}") for number in range(3)]
    for reader in readers:
        subscribe(reader, b"t", 1)
        reader.drop()
    author = fleet.connect(1, "author")
    fleet.advance(1.0)
    fleet[0].state.ctx.beyond_limits = BEYOND_MAX - MANY
    part(fleet, 1)
    send(author, 0, MANY)
    fleet.heal()
    fleet.advance(APART)
    totals = SessionTotals()
    totals.count(list(fleet[0].state.ctx.sessions.values()))
    assert totals.beyond_limits <= MANY
    assert fleet[0].dropped["queue_full"] == 3 * MANY - totals.queued
    for number in range(3):
        assert drain(fleet, persistent(fleet, 0, f"reader {number}"))[-BOUND:] == numbers(MANY - BOUND, BOUND)
