"""The order and the limits in which the broker handles the input of its connections."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conformance.kit import payloads, subscribe
from tests.harness import FakeClient, World
from tests.patience import slowness

import starlingmq
from starlingmq.core.context.ready import HookAnswer
from starlingmq.wire.mqtt import (
    Connect,
    Disconnect,
    Pingresp,
    Publish,
    Subscribe,
    SubscribeRequest,
    Will,
    encode,
)
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from starlingmq.wire.reasons import Reason


def test_a_short_keep_alive_counts_from_the_start() -> None:
    w = World()
    c = w.connect("c", keep_alive=1)
    w.advance(2.5)
    assert c.closed


def test_a_silent_connection_that_waits_for_a_hook_does_not_keep_the_broker_busy() -> None:
    w = World(ask_publish=True)
    c = w.connect("c", keep_alive=1)
    c.send(Publish(b"t", b""))
    w.advance(20)
    assert w.state.wake_at() > w.now
    w.allow(w.question())
    assert not c.closed


def test_the_broker_stops_reading_a_client_that_never_reads() -> None:
    w = World(write_buffer=1000)
    c = w.connect("c")
    c.block()
    for _ in range(100):
        c.send(b"\xc0\0" * 100)
    assert len(c.output) <= 2000
    assert not c.reading
    c.unblock()
    assert c.output.count(b"\xd0\x00") == 10_000


def test_reading_may_stop_in_the_middle_of_a_large_packet() -> None:
    w = World(write_buffer=1000)
    c = w.connect("c")
    subscribe(c, "t")
    whole = bytes((0x30, 0xB0, 0x09)) + b"\0\x01t\0" + bytes(0x4B0 - 4)
    c.send(whole[:600])
    c.block()
    c.send(whole[600:900])
    c.send(whole[900:] + b"\xc0\0" * 400)
    assert not c.reading
    c.unblock()
    assert [type(packet) for packet in c.receive()] == [Publish] + [Pingresp] * 400


def test_a_client_that_neither_reads_nor_is_read_ends_with_its_keep_alive_or_its_transport() -> None:
    w = World(write_buffer=100)
    c, d = w.connect("c", keep_alive=10), w.connect("d")
    watcher = w.connect("w")
    subscribe(watcher, "t")
    for client in (c, d):
        client.block()
        client.send(b"\xc0\0" * 60 + b"\x30\x04\0\x01t\0")
    w.advance(16)
    assert c.closed
    d.drop()
    assert len(payloads(watcher)) == 1
    assert w.state.ctx.counters.clients_connected == 1


def test_input_of_a_closed_connection_is_handled_after_its_release() -> None:
    w = World(ask_publish=True)
    watcher = w.connect("w")
    w.state.ctx.ask_publish = False
    subscribe(watcher, "t")
    w.state.ctx.ask_publish = True
    c = w.connect("c", will=Will(b"t", b"will"))
    c.send_all([Publish(b"t", b"1"), Disconnect()])
    question = w.question()
    w.state.ctx.work = 0

    w.state.answer(question, HookAnswer(message=question.message), w.now)
    c.drop()
    assert payloads(watcher) == [b"1"]


def test_a_publisher_that_fills_every_turn_does_not_delay_a_suback() -> None:
    w = World()
    for number in range(50):
        subscribe(w.connect(f"s{number}"), "t")
    w.state.ctx.work = 0  # the publisher's bytes have to wait for turns
    pub = w.state.open("mqtt://test", "flood", w.now)
    other = w.connect("other")
    burst = encode(Connect(4, "pub", True, 0), 4) + encode(Publish(b"t", b""), 4) * 20_000
    w.state.receive(pub, burst, w.now)
    many = [SubscribeRequest(b"a/%d" % number, 0, False, False, 0) for number in range(2500)]
    w.state.receive(other.client, encode(Subscribe(1, many), 5), w.now)
    for _ in range(2 + 20):  # its bytes wait for turns; 125 filters are a share of one packet
        w.state.turn(w.now)
        assert pub.halted != 0, "the publisher has not filled its turns"
    assert any(frame[0] == 0x90 for frame in other.client.frames)


def test_a_qos_0_message_survives_that_its_sender_leaves_while_a_hook_is_asked() -> None:
    w = World()
    watcher = w.connect("w")
    subscribe(watcher, "t")
    w.state.ctx.ask_publish = True
    c = w.connect("c")
    c.send(Publish(b"t", b"1"))
    c.drop()
    w.allow(w.question())
    assert payloads(watcher) == [b"1"]


def test_a_reconnection_does_not_overtake_messages_of_the_lost_connection() -> None:
    w = World()
    watcher = w.connect("w", properties={RECEIVE_MAXIMUM: 65535})
    subscribe(watcher, "#")
    c = w.connect("c", will=Will(b"will", b""))
    burst = encode(Publish(b"t", b""), 5) * 20_000 + encode(Disconnect(), 5)
    w.state.receive(c.client, burst, w.now)
    w.state.closed(c.client, w.now)
    back = w.connect("c")
    assert back.connack.reason == 0
    back.send(Publish(b"t", b"last"))
    topics = [packet.topic for packet in watcher.receive() if isinstance(packet, Publish)]
    assert topics == [b"t"] * 20_001


def test_a_waiting_reconnection_may_be_lost() -> None:
    w = World()
    c = w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 5})
    w.state.receive(c.client, encode(Publish(b"t", b""), 5) * 20_000, w.now)
    w.state.closed(c.client, w.now)
    back = w.state.open("mqtt://test", "back", w.now)
    w.state.receive(back, encode(Connect(5, "c", False, 0), 5) + b"\xc0\0", w.now)
    w.state.closed(back, w.now)
    w._by_client[back] = FakeClient(w, back, 5, "c")
    w.run()
    assert not w.state.pending()
    assert w.state.ctx.counters.connections_open == w.state.ctx.counters.clients_connected == 0
    w.advance(10)
    assert not w.state.ctx.sessions


def test_an_exception_in_one_turn_leaves_other_clients_served() -> None:
    async def visit() -> bytes:
        async with starlingmq.Broker(listeners=["mqtt://127.0.0.1:0"]) as broker:
            port = int(broker.address().rsplit(":", 1)[1])
            await asyncio.sleep(0)
            jobs: Any = broker.state.ctx.jobs
            jobs.append(None)  # not a job: it raises in the next turn
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode(Connect(4, "c", True, 0), 4))
            connack = await asyncio.wait_for(reader.readexactly(4), 5 * slowness())
            assert not jobs
            writer.write(b"\xc0\0")
            pong = await asyncio.wait_for(reader.readexactly(2), 5 * slowness())
            writer.close()
            return connack + pong

    assert asyncio.run(visit()) == b"\x20\x02\0\0\xd0\0"


def test_the_largest_incomplete_packets_give_way_while_memory_is_short() -> None:
    """Clients that are logged in could keep new ones out with them for as long as they like."""
    world = World(max_packet_size=1 << 20)
    clients = [world.connect(f"c{number}") for number in range(4)]
    whole = encode(Publish(b"t", bytes(200_000)), 5)
    for number, client in enumerate(clients):
        for piece in range(number):
            client.send(whole[piece * 50_000 : (piece + 1) * 50_000])
    world.state.shed([client.client for client in clients], 160_000, world.now)
    world.run()
    assert [client.closed for client in clients] == [False, False, True, True]
    assert clients[3].expect(Disconnect).reason == Reason.QUOTA_EXCEEDED
    assert [notice.reason for notice in world.notices] == ["memory"] * 2
    world.state.shed([client.client for client in clients], 0, world.now)
    assert not clients[1].closed
