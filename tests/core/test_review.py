"""What a hostile reading of the core found: each test is one way in which it went wrong."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import msgspec
import pytest
from tests.conformance.kit import connect_frame, subscribe, utf8
from tests.harness import FakeClient, World

import starlingmq
import starlingmq.core.routing.router as router_module
from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.message import Message
from starlingmq.core.ready import INBOUND_DELETE, SESSION_PUT, HookAnswer
from starlingmq.core.routing.router import Router
from starlingmq.core.session.qos import WINDOW_MAX
from starlingmq.core.session.session import Client, Session, Subscription
from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    SubscribeRequest,
    Will,
    encode,
)
from starlingmq.wire.packets import PUBACK, PUBREC, PUBREL
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties
from starlingmq.wire.reasons import Reason

NEVER = 0xFFFFFFFF


class Made:
    """The objects of a class that are made from now on. Those that were there before, which other tests of this
    process have left, are held so that they neither go nor give their place in memory to another object."""

    def __init__(self, kind: type[object]) -> None:
        self._kind = kind
        self._before = self._all()

    def alive(self) -> int:
        before = {id(thing) for thing in self._before}
        return sum(id(thing) not in before for thing in self._all())

    def _all(self) -> list[object]:
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing) is self._kind]


def forget(w: World) -> None:
    """Let go of the harness's end of the connections, as a network does."""
    w.clients.clear()
    w._by_client.clear()


def payloads(client: FakeClient) -> list[bytes]:
    return [packet.payload for packet in client.receive() if isinstance(packet, Publish)]


def test_a_retained_message_that_was_replaced_is_not_kept_until_it_would_have_expired() -> None:
    w = World()
    pub = w.connect("pub")
    messages = Made(Message)
    for number in range(100):
        pub.send(Publish(b"t", b"%d" % number, retain=True, expiry=1_000_000 + number))
    assert messages.alive() <= 1
    pub.send(Publish(b"t", b"", retain=True))
    assert messages.alive() == 0
    assert w.state.publishing.retained.wheel.wake_at() == 0.0


def test_a_session_that_was_discarded_is_not_kept_until_it_would_have_expired() -> None:
    w = World()
    w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 1_000_000}).drop()
    forget(w)
    sessions = Made(Session)
    for number in range(50):
        w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 1_000_000 + number}).drop()
        forget(w)
    w.advance(60)
    assert sessions.alive() == 1, "the last one waits for its client"


def test_a_short_keep_alive_counts_from_the_start() -> None:
    w = World()
    c = w.connect("c", keep_alive=1)
    w.advance(2.5)
    assert c.closed


def test_a_connection_is_in_the_timer_wheel_once_and_not_at_all_when_it_is_closed() -> None:
    clients = Made(Client)
    w = World()
    c = w.connect("c", keep_alive=20)
    for _ in range(20):
        c.send(Pingreq())
        w.advance(10)
    assert sum(map(len, w.state.ctx.client_wheel._slots.values())) == 1
    c.drop()
    w.open().drop()
    assert w.state.ctx.client_wheel.wake_at() == 0.0
    del c
    forget(w)
    assert clients.alive() == 0


def test_a_silent_connection_that_waits_for_a_hook_does_not_keep_the_broker_busy() -> None:
    w = World(ask_publish=True)
    c = w.connect("c", keep_alive=1)
    c.send(Publish(b"t", b""))
    w.advance(20)
    assert w.state.wake_at() > w.now
    w.allow(w.question())
    assert not c.closed


def test_a_client_that_sends_and_never_reads_is_not_read_any_more() -> None:
    w = World(write_buffer=1000)
    c = w.connect("c")
    c.block()
    for _ in range(100):
        c.send(b"\xc0\0" * 100)
    assert len(c.output) <= 2000
    assert not c.reading
    c.unblock()
    assert c.output.count(b"\xd0\x00") == 10_000


def test_a_large_packet_survives_that_its_sender_was_not_read_in_the_middle_of_it() -> None:
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


def test_a_publisher_that_fills_every_turn_does_not_keep_a_subscribe_from_being_answered() -> None:
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
    for _ in range(20):  # 125 filters are a turn's share of one packet
        w.state.turn(w.now)
        assert pub.halted != 0, "the publisher has not filled its turns"
    assert any(frame[0] == 0x90 for frame in other.client.frames)


def test_the_route_cache_is_bounded_in_topics_and_in_receivers() -> None:
    router = Router(1, 65535, 128)
    for number in range(64):
        router.subscribe(Subscription(Session(f"s{number}"), b"#", 0, False, False, b""))
    for number in range(router_module.CACHED_TOPICS + 10):
        router.resolve(b"t/%d" % number)
        assert router._receivers <= router_module.CACHED_RECEIVERS
    assert 1 < len(router._cache) <= router_module.CACHED_RECEIVERS // 64
    assert router._receivers == sum(len(route.subscriptions) for route in router._cache.values())
    for number in range(200):
        session = Session(f"x{number}")
        router.subscribe(Subscription(session, b"x", 0, False, False, b""))
        router.resolve(b"x")
        router.unsubscribe(b"x", session)
    assert router._receivers == sum(len(route.subscriptions) for route in router._cache.values())
    assert len(router._order) <= router_module.CACHED_TOPICS


def test_limits_for_topics_do_not_stop_the_brokers_own() -> None:
    w = World(topic_levels=2, max_topic_length=8, sys_interval=1.0)
    w.advance(5)
    c = w.connect("c")
    c.send(Publish(b"a/b/c", b""))
    assert c.closed


def test_a_group_member_that_ended_is_given_nothing_while_it_is_cleared_away() -> None:
    w = World()
    sub = w.connect("sub")
    many = [SubscribeRequest(b"a/%d" % number, 0, False, False, 0) for number in range(3000)]
    sub.send(Subscribe(1, [SubscribeRequest(b"$share/g/t", 1, False, False, 0), *many]))
    pub = w.connect("pub")
    w.state.ending.fail(sub.client, 0x98, "")
    w.state.receive(pub.client, encode(Publish(b"t", b"", qos=1, packet_id=1), 5), w.now)
    w.run()
    assert pub.expect(Ack).reason == 0x10


def test_a_publisher_to_many_slow_receivers_is_held_once_not_by_one_after_the_other() -> None:
    w = World(max_mqueue_len=10, publisher_hold=1.0)
    for number in range(20):
        slow = w.connect(f"slow{number}", properties={RECEIVE_MAXIMUM: 1})
        subscribe(slow, "t", qos=1)
    pub = w.connect("pub")
    for number in range(50):
        pub.send(Publish(b"t", b"", qos=1, packet_id=number + 1))
    w.advance(2.0)
    assert len(pub.receive()) == 50


def test_nobody_is_held_for_messages_to_himself() -> None:
    w = World(max_mqueue_len=10, publisher_hold=1.0)
    c = w.connect("c", properties={RECEIVE_MAXIMUM: 1})
    subscribe(c, "t", qos=1)
    for number in range(8):
        c.send(Publish(b"t", b"%d" % number, qos=1, packet_id=number + 1))
    seen: list[bytes] = []
    for _ in range(8):
        for packet in c.receive():
            if isinstance(packet, Publish):
                seen.append(packet.payload)
                c.send(Ack(PUBACK, packet.packet_id))
    assert seen == [b"%d" % number for number in range(8)]


def test_two_clients_that_publish_to_each_other_are_not_both_held() -> None:
    w = World(max_mqueue_len=10, publisher_hold=1.0)
    a, b = (w.connect(name, properties={RECEIVE_MAXIMUM: 1}) for name in "ab")
    subscribe(a, "to/a", qos=1)
    subscribe(b, "to/b", qos=1)
    for number in range(8):
        a.send(Publish(b"to/b", b"", qos=1, packet_id=number + 1))
        b.send(Publish(b"to/a", b"", qos=1, packet_id=number + 1))
    assert a.reading or b.reading


@pytest.mark.parametrize("limit", [0, 1])
def test_qos_2_messages_that_are_never_released_are_bounded_in_bytes(limit: int) -> None:
    w = World(queue_bytes=10_000, max_awaiting_rel=limit)
    c = w.connect("c", version=4)
    for number in range(1, 30):
        c.send(Publish(b"t", bytes(1000), qos=2, packet_id=number))
    assert c.closed
    assert w.state.ctx.counters.errors == {"quota_exceeded": 1}


def test_forgotten_handshakes_are_forgotten_by_the_store_too() -> None:
    w = World(recording=True)
    c = w.connect("c", properties={SESSION_EXPIRY_INTERVAL: NEVER})
    c.send(Publish(b"t", b"", qos=2, packet_id=1))
    c.send(Publish(b"t", b"", qos=2, packet_id=2))
    c.send(Ack(PUBREL, 2))
    w.advance(400)
    assert [write.packet_id for write in w.writes if write.kind == INBOUND_DELETE] == [1, 2]


def test_a_qos_2_message_to_the_brokers_topics_is_refused_before_it_is_acknowledged() -> None:
    w = World()
    c = w.connect("c")
    c.send(Publish(b"$SYS/broker/x", b"", qos=2, packet_id=1))
    assert c.expect(Ack) == Ack(PUBREC, 1, 0x87)


def test_an_acknowledgement_of_what_was_not_sent_again_makes_no_room() -> None:
    w = World()
    agreed: Properties = {SESSION_EXPIRY_INTERVAL: NEVER}
    sub = w.connect("sub", properties=agreed)
    subscribe(sub, "t", qos=1)
    pub = w.connect("pub")
    for number in range(4):
        pub.send(Publish(b"t", b"%d" % number, qos=1, packet_id=1))
    last = [packet.packet_id for packet in sub.receive() if isinstance(packet, Publish)][-1]
    sub.drop()
    back = w.connect("sub", clean_start=False, properties={**agreed, RECEIVE_MAXIMUM: 1})
    assert payloads(back) == [b"0"]
    back.send(Ack(PUBACK, last))
    assert payloads(back) == [], "one is unacknowledged, and one is all it takes"


def test_unacknowledged_messages_are_bounded_in_bytes() -> None:
    w = World(queue_bytes=10_000)
    sub = w.connect("sub", version=4)
    subscribe(sub, "t", qos=1)
    pub = w.connect("pub")
    for _ in range(50):
        pub.send(Publish(b"t", bytes(1000), qos=1, packet_id=1))
    received = [packet for packet in sub.receive() if isinstance(packet, Publish)]
    assert len(received) == 10
    for packet in received:
        sub.send(Ack(PUBACK, packet.packet_id))
    assert len(payloads(sub)) == 9, "as many as the queue had room for"


def test_a_window_never_takes_more_ids_than_it_leaves() -> None:
    w = World()
    for version in (4, 5):
        client = w.connect(f"c{version}", version=version).client
        assert client.window_limit == WINDOW_MAX


def test_a_long_connect_that_is_malformed_is_answered_like_a_short_one() -> None:
    w = World()
    c = w.open(version=5)
    c.send(connect_frame(5, utf8("c" * 300) + b"trailing"))
    assert c.expect(Connack).reason == Reason.MALFORMED_PACKET


def test_every_version_is_told_that_the_server_is_full() -> None:
    w = World(max_connections=1)
    w.connect("first")
    for version in (3, 4, 5):
        late = w.connect(f"late{version}", version=version)
        late_output = late.output
        assert late.closed and late_output[0] == 0x20
        assert late_output[3] == (Reason.SERVER_BUSY if version == 5 else 3)


@pytest.mark.parametrize("reason", [0x18, 0xFE])
def test_a_mistaken_authenticator_refuses(reason: int) -> None:
    w = World(ask_authenticate=True)
    c = w.connect("c", answer=reason)
    assert c.closed
    assert c.output[3] == Reason.UNSPECIFIED_ERROR


def test_a_session_that_now_ends_with_its_connection_is_stored_as_such() -> None:
    w = World(recording=True)
    w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 100}).drop()
    w.writes.clear()
    assert w.connect("c", clean_start=False).connack.session_present
    assert [write.kind for write in w.writes] == [SESSION_PUT]


def test_a_qos_0_message_is_not_lost_because_its_sender_left_while_a_hook_was_asked() -> None:
    w = World()
    watcher = w.connect("w")
    subscribe(watcher, "t")
    w.state.ctx.ask_publish = True
    c = w.connect("c")
    c.send(Publish(b"t", b"1"))
    c.drop()
    w.allow(w.question())
    assert payloads(watcher) == [b"1"]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
def test_no_room_to_retain_a_message_is_told_or_it_is_delivered(version: int, qos: int) -> None:
    w = World(retained_messages=1)
    watcher = w.connect("w")
    subscribe(watcher, "#")
    c = w.connect("c", version=version)
    c.send(Publish(b"a", b"1", retain=True))
    c.send(Publish(b"b", b"2", qos=qos, packet_id=qos, retain=True))
    refused = qos == 1 and version == 5
    assert payloads(watcher) == ([b"1"] if refused else [b"1", b"2"])
    assert w.dropped == {"retained_quota": 1}
    if refused:
        assert c.expect(Ack).reason == Reason.QUOTA_EXCEEDED


def test_a_retained_message_may_be_replaced_although_there_is_no_room_for_another() -> None:
    w = World(retained_bytes=20)
    c = w.connect("c")
    for payload in (b"123456789012345", b"1234567890abcde"):
        c.send(Publish(b"a", payload, qos=1, packet_id=1, retain=True))
        assert c.expect(Ack).reason < 0x80


def test_large_retained_messages_are_replayed_no_faster_than_the_queue_can_bear() -> None:
    w = World(queue_bytes=1_000_000, write_buffer=100_000)
    pub = w.connect("pub")
    for number in range(100):
        pub.send(Publish(b"r/%03d" % number, bytes(50_000), retain=True))
    for qos in (0, 1):
        sub = w.connect(f"sub{qos}", properties={RECEIVE_MAXIMUM: 3})
        subscribe(sub, "#", qos=qos)
        assert len(payloads(sub)) == 100
        assert w.dropped == {}


def test_a_long_queue_is_not_freed_in_one_turn() -> None:
    w = World(max_mqueue_len=0, publisher_hold=0)
    sub = w.connect("sub", properties={SESSION_EXPIRY_INTERVAL: 10})
    subscribe(sub, "t", qos=1)
    sub.drop()
    pub = w.connect("pub", version=4)
    pub.send(encode(Publish(b"t", b"", qos=1, packet_id=1), 4) * 30_000)
    queue = w.state.ctx.sessions["sub"].queue
    assert queue is not None
    items = queue.items
    del queue
    w.now += 11
    w.state.turn(w.now)
    w.state.turn(w.now)
    assert 0 < len(items) < 30_000
    w.run()
    assert not items and w.dropped == {"session_ended": 30_000}
    assert not w.state.pending()


def test_a_reconnection_does_not_overtake_what_the_gone_connection_had_sent() -> None:
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


def test_a_reconnection_that_waits_may_go_away_again() -> None:
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


def test_a_mistake_in_one_turn_leaves_everybody_else_served() -> None:
    async def visit() -> bytes:
        async with starlingmq.Broker(listeners=["mqtt://127.0.0.1:0"]) as broker:
            port = int(broker.address().rsplit(":", 1)[1])
            await asyncio.sleep(0)
            jobs: Any = broker.state.ctx.jobs
            jobs.append(None)  # no job at all: the next turn stumbles over it
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode(Connect(4, "c", True, 0), 4))
            connack = await asyncio.wait_for(reader.readexactly(4), 5)
            assert not jobs
            writer.write(b"\xc0\0")
            pong = await asyncio.wait_for(reader.readexactly(2), 5)
            writer.close()
            return connack + pong

    assert asyncio.run(visit()) == b"\x20\x02\0\0\xd0\0"


def test_new_limits_for_topics_and_new_sys_topics_need_no_restart() -> None:
    w = World()
    sub, pub = w.connect("sub"), w.connect("pub")
    subscribe(sub, "#")
    subscribe(sub, "$SYS/#")
    pub.send(Publish(b"a/b/c", b"1"))
    w.state.configure(
        msgspec.convert({"sys_interval": 1.0}, MqttConfig), msgspec.convert({"topic_levels": 2}, LimitsConfig)
    )
    pub.send(Publish(b"a/b/c", b"2"))
    assert pub.closed
    w.advance(1)
    got = [packet for packet in sub.receive() if isinstance(packet, Publish)]
    assert got[0].payload == b"1" and len(got) > 1
    assert all(packet.topic.startswith(b"$SYS/") for packet in got[1:])
