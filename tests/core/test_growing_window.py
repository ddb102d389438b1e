"""A client that names no Receive Maximum has 100 messages in flight at first, and more while it keeps up."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.harness import FakeClient, World

from starlingmq.core.session.qos import ROUND_FAST, ROUND_STALLED, WINDOW_MAX, WINDOW_START
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties

LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 3600}


def reader(w: World, version: int = 5, properties: Properties | None = None, qos: int = 1) -> FakeClient:
    client = w.connect("reader", version, clean_start=False, properties=properties)
    if not client.connack.session_present:
        client.send(Subscribe(1, [SubscribeRequest(b"t", qos)]))
        client.expect(Suback)
    return client


def send(author: FakeClient, count: int, qos: int = 1) -> None:
    for number in range(count):
        author.send(Publish(b"t", b"%d" % number, qos, packet_id=1 + number % 60_000))
        author.receive()
        if qos == 2:
            author.send(Ack(PUBREL, 1 + number % 60_000))
            author.receive()


def arrived(client: FakeClient) -> list[Publish]:
    return [packet for packet in client.receive() if isinstance(packet, Publish)]


def in_flight(w: World) -> int:
    window = w.state.ctx.sessions["reader"].window
    return 0 if window is None else len(window.entries)


def waiting(w: World) -> int:
    queue = w.state.ctx.sessions["reader"].queue
    return 0 if queue is None else len(queue)


def acknowledge(client: FakeClient, messages: list[Publish], in_runs: bool) -> None:
    acks = [Ack(PUBACK, each.packet_id) for each in messages]
    if in_runs:
        client.send_all(acks)
    else:
        for ack in acks:
            client.send(ack)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_reads_nothing_has_100_in_flight_and_the_others_wait(version: int, qos: int) -> None:
    w = World(max_mqueue_len=1000)
    reader(w, version, qos=qos)
    send(w.connect("author"), 300, qos)
    assert (in_flight(w), waiting(w)) == (WINDOW_START, 200)


@pytest.mark.parametrize(("maximum", "size", "left"), [(150, 150, 150), (65_535, 400, 0)])
def test_a_receive_maximum_is_the_window(maximum: int, size: int, left: int) -> None:
    w = World(max_mqueue_len=1000)
    client = reader(w, properties={RECEIVE_MAXIMUM: maximum})
    send(w.connect("author"), 400)
    first = arrived(client)
    assert len(first) == size
    acknowledge(client, first, True)
    assert in_flight(w) == left


@pytest.mark.parametrize(("setting", "seen"), [(7, 7), (200, 200), (65_535, 300)])
def test_the_setting_is_the_window_of_each_client_and_does_not_grow(setting: int, seen: int) -> None:
    w = World(max_mqueue_len=1000, max_inflight=setting)
    client = reader(w)
    send(w.connect("author"), 300)
    left = 300
    while left:
        messages = arrived(client)
        assert len(messages) == min(seen, left)
        left -= len(messages)
        acknowledge(client, messages, True)


@pytest.mark.parametrize("in_runs", [True, False])
def test_the_window_doubles_for_each_window_that_is_acknowledged(in_runs: bool) -> None:
    w = World(max_mqueue_len=0)
    client = reader(w)
    send(w.connect("author"), 3000)
    seen = []
    while messages := arrived(client):
        seen.append(len(messages))
        acknowledge(client, messages, in_runs)
    assert sum(seen) == 3000
    window = w.state.ctx.sessions["reader"].window
    assert window is not None and window.limit == 1600
    assert not in_runs or seen == [100, 200, 400, 800, 1500]


def test_the_window_of_qos_2_doubles_too() -> None:
    w = World(max_mqueue_len=0)
    client = reader(w, qos=2)
    send(w.connect("author"), 500, 2)
    first = arrived(client)
    client.send_all([Ack(PUBREC, each.packet_id) for each in first])
    client.receive()
    assert (len(first), in_flight(w)) == (100, 100)
    client.send_all([Ack(PUBCOMP, each.packet_id) for each in first])
    assert len(arrived(client)) == 200


def test_a_client_for_which_nothing_waits_keeps_its_window() -> None:
    w = World()
    client, author = reader(w), w.connect("author")
    for _ in range(20):
        send(author, WINDOW_START - 1)
        acknowledge(client, arrived(client), True)
    send(author, 150)
    assert in_flight(w) == WINDOW_START


def test_the_window_of_a_slow_client_does_not_grow() -> None:
    w = World(max_mqueue_len=0)
    client = reader(w)
    send(w.connect("author"), 1000)
    for _ in range(5):
        w.advance(2 * ROUND_FAST)
        messages = arrived(client)
        assert len(messages) == WINDOW_START
        acknowledge(client, messages, True)


def test_a_client_that_has_stalled_begins_again() -> None:
    w = World(max_mqueue_len=0, retry_interval=0.0)
    client = reader(w)
    send(w.connect("author"), 2000)
    for size in (100, 200):
        messages = arrived(client)
        assert len(messages) == size
        acknowledge(client, messages, True)
    messages = arrived(client)
    assert len(messages) == 400
    w.advance(ROUND_STALLED + 1.0)
    acknowledge(client, messages, True)
    assert len(arrived(client)) == WINDOW_START


def test_the_window_is_never_larger_than_half_of_the_packet_ids() -> None:
    w = World(max_mqueue_len=0)
    reader(w)
    send(w.connect("author"), 200)
    window = w.state.ctx.sessions["reader"].window
    assert window is not None
    window.limit = WINDOW_MAX - 1
    window.credit(WINDOW_MAX, 0.0)
    assert window.limit == WINDOW_MAX


def test_a_new_connection_begins_again_and_gets_first_a_window_of_those_it_had() -> None:
    w = World(max_mqueue_len=0)
    client = reader(w, properties=LASTING)
    send(w.connect("author"), 2000)
    for size in (100, 200):
        messages = arrived(client)
        assert len(messages) == size
        acknowledge(client, messages, True)
    before = arrived(client)
    assert len(before) == 400
    client.drop()
    client = reader(w, properties=LASTING)
    again = arrived(client)
    assert [each.packet_id for each in again] == [each.packet_id for each in before[:WINDOW_START]]
    seen = again
    while again:
        acknowledge(client, again, True)
        again = arrived(client)
        seen += again
    assert [each.payload for each in seen] == [b"%d" % number for number in range(300, 2000)]


def test_a_session_with_5000_in_flight_moves_to_a_node_where_its_window_is_100() -> None:
    fleet = Fleet(1, max_inflight=65_535)
    fleet.add()
    client = fleet.connect(0, "reader", clean_start=False, properties=LASTING)
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    client.expect(Suback)
    author = fleet.connect(0, "author")
    send(author, 5000)
    assert len(arrived(client)) == 5000
    client.drop()
    client = fleet.connect(1, "reader", clean_start=False, properties=LASTING)
    assert client.connack.session_present
    again = arrived(client)
    assert len(again) == WINDOW_START
    seen: list[bytes] = []
    while again:
        seen += [each.payload for each in again]
        acknowledge(client, again, True)
        fleet.advance(0.1)
        again = arrived(client)
    assert seen == [b"%d" % number for number in range(5000)]
