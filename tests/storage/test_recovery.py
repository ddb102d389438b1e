"""Acknowledged messages are there after a crash, wherever it happens and however old the last checkpoint is."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest
from tests.harness import FakeClient
from tests.storage.crash_engines import CrashJournal, Machine, Span
from tests.storage.memory_engine import MemoryKv
from tests.storage.world import StoredWorld

from starlingmq.core.context.ready import Ready
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import RELEASED, Outgoing
from starlingmq.core.session.session import Subscription
from starlingmq.storage.checkpointer import CHECKPOINT_AGAIN
from starlingmq.storage.keys import META_CHECKPOINT, SESSION, SUBSCRIPTION
from starlingmq.storage.kv import prefix_end
from starlingmq.wire.mqtt import Ack, Publish, Subscribe, SubscribeRequest, Will
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import (
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    WILL_DELAY_INTERVAL,
    Properties,
)

HOUR = {SESSION_EXPIRY_INTERVAL: 3600}


@pytest.fixture(params=["nothing checkpointed", "all checkpointed", "checkpoints all the time"])
def world(request: pytest.FixtureRequest) -> StoredWorld:
    """``crash`` crashes; the parameter says how much the checkpoint knows by then."""
    if request.param == "checkpoints all the time":
        return StoredWorld(checkpoint_bytes=0)
    world = StoredWorld()
    if request.param == "all checkpointed":
        restart = world.restart

        def checkpoint_and_restart() -> None:
            world.checkpoint()
            restart()

        world.restart = checkpoint_and_restart  # type: ignore[method-assign]
    return world


def subscriber(world: StoredWorld, client_id: str = "sub", qos: int = 2, filter: bytes = b"t/#") -> FakeClient:
    client = world.connect(client_id, 5, True, properties=dict(HOUR))
    client.send(Subscribe(1, [SubscribeRequest(filter, qos)]))
    client.receive()
    return client


def back(world: StoredWorld, client_id: str = "sub") -> FakeClient:
    client = world.connect(client_id, 5, False, properties=dict(HOUR))
    assert client.connack.session_present
    return client


def publish(world: StoredWorld, *payloads: bytes, qos: int = 1) -> None:
    pub = world.connect("pub")
    for number, payload in enumerate(payloads, 1):
        pub.send(Publish(b"t/x", payload, qos=qos, packet_id=number))
        if qos == 2:
            assert pub.expect(Ack).type == PUBREC
            pub.send(Ack(PUBREL, number))
            assert pub.expect(Ack).type == PUBCOMP
        else:
            assert pub.expect(Ack).type == PUBACK
    pub.disconnect()


def messages(client: FakeClient) -> list[Publish]:
    return [packet for packet in client.receive() if isinstance(packet, Publish)]


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_for_a_client_that_is_away_wait_for_it(world: StoredWorld, qos: int) -> None:
    subscriber(world).drop()
    publish(world, b"1", b"2", b"3", qos=qos)
    world.restart()
    client = back(world)
    assert [(m.payload, m.qos, m.dup) for m in messages(client)] == [(p, qos, False) for p in (b"1", b"2", b"3")]


def test_unacknowledged_messages_are_sent_again_with_their_packet_id(world: StoredWorld) -> None:
    client = subscriber(world)
    publish(world, b"1", b"2", b"3")
    first = messages(client)
    client.send(Ack(PUBACK, first[0].packet_id))
    world.restart()
    again = messages(back(world))
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in first[1:]]


def test_a_qos_2_message_is_delivered_once_whatever_its_stage(world: StoredWorld) -> None:
    client = subscriber(world)
    publish(world, b"1", b"2")
    one, two = messages(client)
    publish(world, b"3", qos=2)
    (three,) = messages(client)
    assert [one.qos, two.qos, three.qos] == [1, 1, 2]
    client.send(Ack(PUBACK, one.packet_id))
    client.send(Ack(PUBREC, three.packet_id))
    assert client.expect(Ack) == Ack(PUBREL, three.packet_id)
    world.restart()
    client = back(world)
    packets = client.receive()
    assert [(type(p), p.packet_id) for p in packets if isinstance(p, (Ack, Publish))] == [
        (Publish, two.packet_id),
        (Ack, three.packet_id),
    ]
    client.send(Ack(PUBCOMP, three.packet_id))
    world.restart()
    assert [m.payload for m in messages(back(world))] == [b"2"]


def test_an_inbound_handshake_goes_on_where_it_was(world: StoredWorld) -> None:
    subscriber(world).drop()
    pub = world.connect("pub", properties=dict(HOUR))
    pub.send(Publish(b"t/x", b"once", qos=2, packet_id=7))
    assert pub.expect(Ack).type == PUBREC
    world.restart()
    pub = back(world, "pub")
    pub.send(Publish(b"t/x", b"once", qos=2, packet_id=7, dup=True))
    assert pub.expect(Ack) == Ack(PUBREC, 7)
    pub.send(Ack(PUBREL, 7))
    assert pub.expect(Ack) == Ack(PUBCOMP, 7)
    world.restart()
    pub = back(world, "pub")
    pub.send(Ack(PUBREL, 7))
    assert pub.expect(Ack) == Ack(PUBCOMP, 7)
    assert [m.payload for m in messages(back(world))] == [b"once"]


@pytest.mark.parametrize("version", [4, 5])
def test_handshakes_of_a_client_that_is_away_outlive_restarts_and_await_rel_timeout(
    world: StoredWorld, version: int
) -> None:
    def come() -> FakeClient:
        properties: Properties = {SESSION_EXPIRY_INTERVAL: 1_000_000} if version == 5 else {}
        return world.connect("pub", version=version, clean_start=False, properties=properties)

    subscriber(world).drop()
    pub = come()
    for packet_id in (7, 8):
        pub.send(Publish(b"t/x", b"%d" % packet_id, qos=2, packet_id=packet_id))
        assert pub.expect(Ack).type == PUBREC
    pub.send(Ack(PUBREL, 7))
    assert pub.expect(Ack) == Ack(PUBCOMP, 7)
    pub.drop()
    for _ in range(2):
        world.advance(600.0)
        world.restart()
    pub = come()
    for packet_id in (7, 8):
        pub.send(Ack(PUBREL, packet_id))
        assert pub.expect(Ack) == Ack(PUBCOMP, packet_id)
    assert [m.payload for m in messages(back(world))] == [b"7", b"8"]


def test_subscriptions_keep_their_options(world: StoredWorld) -> None:
    client = world.connect("sub", properties=dict(HOUR))
    client.send(Subscribe(1, [SubscribeRequest(b"t/+", 1, False, True)], {SUBSCRIPTION_IDENTIFIER: [9]}))
    client.send(Subscribe(2, [SubscribeRequest(b"gone", 1)]))
    client.receive()
    world.restart()
    client = back(world)
    pub = world.connect("pub")
    pub.send(Publish(b"t/x", b"1", qos=1, packet_id=1, retain=True))
    (message,) = messages(client)
    assert (message.subscription_ids, message.retain, message.qos) == ([9], True, 1)


def test_retained_messages_stay_and_go(world: StoredWorld) -> None:
    pub = world.connect("pub")
    pub.send(Publish(b"stays", b"1", qos=1, packet_id=1, retain=True, properties=b"\x01\x01"))
    pub.send(Publish(b"goes", b"2", qos=0, retain=True))
    pub.send(Publish(b"goes", b"", qos=0, retain=True))
    pub.send(Publish(b"expires", b"3", retain=True, expiry=10))
    world.restart()
    world.advance(20)
    sub = world.connect("sub")
    sub.send(Subscribe(1, [SubscribeRequest(b"#", 1)]))
    assert [(m.topic, m.payload, m.properties) for m in messages(sub)] == [(b"stays", b"1", b"\x01\x01")]


def test_the_deadlines_of_a_session_run_on(world: StoredWorld) -> None:
    subscriber(world).drop()
    world.advance(3000)
    world.restart()
    world.advance(500)
    assert "sub" in world.state.ctx.sessions
    world.advance(200)
    assert "sub" not in world.state.ctx.sessions
    world.restart()
    assert "sub" not in world.state.ctx.sessions


@pytest.mark.parametrize("expiry", [0, 3600])
def test_the_will_of_a_client_that_the_crash_cut_off_is_published_once(world: StoredWorld, expiry: int) -> None:
    subscriber(world).drop()
    settings = {SESSION_EXPIRY_INTERVAL: expiry}
    world.connect("mortal", properties=dict(settings), will=Will(b"t/will", b"gone", 1))
    world.restart()
    world.advance(1)
    world.restart()
    world.advance(1)
    assert [m.payload for m in messages(back(world))] == [b"gone"]


def test_a_delayed_will_is_cancelled_by_coming_back_in_time(world: StoredWorld) -> None:
    subscriber(world).drop()
    will = Will(b"t/will", b"gone", 1, properties={WILL_DELAY_INTERVAL: 60})
    world.connect("mortal", properties=dict(HOUR), will=will)
    world.restart()
    world.advance(30)
    back(world, "mortal").disconnect()
    world.restart()
    world.advance(100)
    assert messages(back(world)) == []


def test_a_session_that_was_ended_stays_ended(world: StoredWorld) -> None:
    subscriber(world).drop()
    publish(world, b"1")
    world.connect("sub", 5, True).disconnect()
    world.restart()
    assert not world.connect("sub", 5, False, properties=dict(HOUR)).connack.session_present


def test_replayed_changes_are_in_the_next_checkpoint(world: StoredWorld) -> None:
    subscriber(world).disconnect()
    subscriber(world, "over").disconnect()
    pub = world.connect("pub")
    pub.send(Publish(b"t/kept", b"retained", qos=1, packet_id=1, retain=True))
    pub.expect(Ack)
    world.restart()
    again = world.connect("over", 5, True)
    again.disconnect()
    world.checkpoint()
    world.restart()
    assert world.recovered.sessions == 1
    assert world.recovered.retained == 1
    assert [message.payload for message in messages(back(world))] == [b"retained"]


def test_a_session_that_expired_while_the_broker_was_away_is_gone_for_whoever_comes_first(world: StoredWorld) -> None:
    world.connect("c", properties={SESSION_EXPIRY_INTERVAL: 10}).drop()
    world.now += 11
    world.restart()
    assert not world.connect("c", clean_start=False).connack.session_present


def test_an_ended_session_is_not_in_the_store_again_whatever_of_a_checkpoint_fails() -> None:
    """A start that begins with the checkpoint of which only the last sync failed would find it."""
    kv = ForgetfulKv()
    world = StoredWorld(kv)
    subscriber(world, "c").disconnect(properties={SESSION_EXPIRY_INTERVAL: 0})
    world.restart()
    kv.failing = True
    world.store.checkpointer.checkpoint_bytes = 0
    while world.store.maintain():
        pass
    assert world.store.checkpointer.failure
    assert kv.get(META_CHECKPOINT) is not None
    kv.failing = False
    world.now += CHECKPOINT_AGAIN
    while world.store.maintain():
        assert not kv.scan(SESSION, prefix_end(SESSION), 1)
        assert not kv.scan(SUBSCRIPTION, prefix_end(SUBSCRIPTION), 1)
    assert world.store.checkpointer.count == 1


def test_a_message_for_a_thousand_sessions_is_stored_once(world: StoredWorld) -> None:
    for number in range(1000):
        subscriber(world, f"sub{number}").drop()
    before = world.journal.size
    publish(world, b"x" * 10_000)
    assert world.journal.size - before < 10_000 + 1000 * 24
    world.restart()
    assert [m.payload for m in messages(back(world, "sub777"))] == [b"x" * 10_000]


def test_a_long_queue_is_not_in_memory_and_drains_in_order() -> None:
    world = StoredWorld(max_mqueue_len=0)
    subscriber(world).drop()
    publish(world, *(b"%05d" % number for number in range(1, 3001)))
    queue = world.state.ctx.sessions["sub"].queue
    assert queue is not None
    assert (len(queue), len(queue.items)) == (3000, 0)
    world.restart()
    client = back(world)
    got = []
    while batch := messages(client):
        got += [m.payload for m in batch]
        client.send_all([Ack(PUBACK, m.packet_id) for m in batch])
    assert got == [b"%05d" % number for number in range(1, 3001)]
    world.restart()
    assert messages(back(world)) == []


def test_a_member_of_a_group_that_leaves_keeps_what_it_has_queued_for_itself() -> None:
    """Some of it is in memory only as references."""
    world = StoredWorld(max_mqueue_len=0)
    client = subscriber(world)
    client.send(Subscribe(2, [SubscribeRequest(b"$share/g/s/#", 1)]))
    client.drop()
    wanted = [b"%05d" % number for number in range(1, 301)]
    publish(world, *wanted)
    world.restart()
    slow = {**HOUR, RECEIVE_MAXIMUM: 1}
    client = world.connect("sub", 5, False, properties=dict(slow))
    world.connect("other").send(Publish(b"s/x", b"shared", qos=1, packet_id=1))
    client.drop()
    client = world.connect("sub", 5, False, properties=dict(slow))
    got = []
    while batch := messages(client):
        got += [m.payload for m in batch]
        client.send_all([Ack(PUBACK, m.packet_id) for m in batch])
    assert got == [*wanted, b"shared"]


def test_the_queue_of_a_group_is_not_counted_as_a_session_that_was_recovered() -> None:
    world = StoredWorld()
    client = subscriber(world)
    client.send(Subscribe(2, [SubscribeRequest(b"$share/g/s/#", 1)]))
    client.drop()
    world.connect("other").send(Publish(b"s/x", b"shared", qos=1, packet_id=1))
    world.restart()
    assert world.state.groups.lines and len(world.state.ctx.sessions) == 2
    assert world.recovered.sessions == 1


def test_unneeded_segments_are_freed() -> None:
    world = StoredWorld(checkpoint_bytes=0)
    client = subscriber(world)
    publish(world, *(b"x" * 1000 for _ in range(100)))
    client.send_all([Ack(PUBACK, m.packet_id) for m in messages(client)])
    assert world.journal.size < 10_000


def test_a_retained_message_whose_record_was_given_back_is_written_again() -> None:
    """Its record was that of a handshake which is over: in memory it has an offset where nothing is any more."""
    journal = CrashJournal(Machine(Random(0)), span=1 << 30)
    world = StoredWorld(journal=journal)

    def begin_segment() -> None:
        journal.spans.append(Span(journal.next, journal.next))

    subscriber(world, "first").drop()
    subscriber(world, "second", filter=b"s/#").drop()
    pub = world.connect("other", properties=dict(HOUR))
    publish(world, b"before")
    begin_segment()
    pub.send(Publish(b"s/x", b"for a while", qos=1, packet_id=1))
    begin_segment()
    pub.send(Publish(b"r", b"retained", qos=2, packet_id=2, retain=True))
    pub.send(Ack(PUBREL, 2))
    begin_segment()
    publish(world, b"behind")
    world.checkpoint()
    held = world.state.retained.get(b"r")
    assert held is not None and journal.read_at([held.offset]) == [None]
    second = back(world, "second")
    second.send(Ack(PUBACK, messages(second)[0].packet_id))
    world.checkpoint()
    assert len(journal.spans) == 2
    back(world, "first").drop()
    assert len([record for record in journal.records.values() if record.endswith(b"before")]) == 1, "it was there"
    subscriber(world, "third", filter=b"r").drop()
    world.restart()
    assert [m.payload for m in messages(back(world, "third"))] == [b"retained"]
    assert [m.payload for m in messages(back(world, "first"))] == [b"before", b"behind"]


class ForgetfulKv(MemoryKv):
    """Can be told to fail its syncs."""

    failing = False

    def sync(self) -> None:
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class TornWorld(StoredWorld):
    """Crashes before the nth commit takes effect."""

    commits_left = 1 << 30

    def carry_out(self, ready: Ready) -> None:
        if ready.writes:
            if self.commits_left == 0:
                raise KeyboardInterrupt
            self.commits_left -= 1
        super().carry_out(ready)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_crash_before_any_commit_loses_nothing_that_was_acknowledged(qos: int) -> None:
    for crash_at in range(60):
        world = TornWorld(checkpoint_bytes=300)
        client = subscriber(world)
        pub = world.connect("pub", properties=dict(HOUR))
        delivered: list[bytes] = []
        acknowledged: list[bytes] = []
        world.commits_left = crash_at
        try:
            for number in range(1, 8):
                payload = b"%d" % number
                pub.send(Publish(b"t/x", payload, qos=qos, packet_id=number))
                if qos == 2:
                    assert pub.expect(Ack).type == PUBREC
                    pub.send(Ack(PUBREL, number))
                    assert pub.expect(Ack).type == PUBCOMP
                else:
                    assert pub.expect(Ack).type == PUBACK
                acknowledged.append(payload)
                for message in messages(client):
                    if number % 2:
                        delivered.append(message.payload)
                        client.send(Ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id))
                        if message.qos == 2:
                            assert client.expect(Ack).type == PUBREL
                            client.send(Ack(PUBCOMP, message.packet_id))
        except KeyboardInterrupt:
            pass
        world.commits_left = 1 << 30
        world.restart()
        got = [m.payload for m in messages(back(world))]
        assert set(acknowledged) <= set(delivered) | set(got), crash_at
        assert got == sorted(got), crash_at
        if qos == 2:
            assert len(set(got)) == len(got), crash_at


class Unused:
    """A node that is never connected: all for it waits."""

    def write(self, data: bytes) -> None:
        raise AssertionError("nothing is connected")


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_for_another_node_keep_their_sequence_after_a_restart(world: StoredWorld, qos: int) -> None:
    world.state.peers.join(1, 1)
    peer = world.state.peers.add(2, Unused(), Unused())
    wanted = Subscription(peer.session, b"t/#", 2, False, True, b"")
    wanted.durable = True
    world.state.router.subscribe(wanted)
    pub = world.connect("pub", properties=dict(HOUR))
    for number in (1, 2):
        pub.send(Publish(b"t/x", b"%d" % number, qos=qos, packet_id=number))
        if qos == 2:
            pub.send(Ack(PUBREL, number))
    world.restart()
    session = world.state.ctx.cluster.links[2]
    kept = world.store.load(world.state.wanted(session))
    assert [(message.payload, message.origin, message.sequence) for message in kept.values()] == [
        (b"1", 1, (1 << 40) + 1),
        (b"2", 1, (1 << 40) + 2),
    ]


def test_a_handshake_that_came_without_its_message_goes_on(world: StoredWorld) -> None:
    """Such as one that an earlier broker had begun, or another node."""
    subscriber(world).drop()
    session = world.state.ctx.sessions["sub"]
    nothing = Message(b"t/1", b"", 2, False, b"", 0.0, "", world.now)
    world.state.mover.put_window(session, 3, RELEASED, Outgoing(nothing, 2, False, b"", None))
    world.run()
    world.restart()
    client = back(world)
    assert client.expect(Ack).type == PUBREL
    client.send(Ack(PUBCOMP, 3))
    window = world.state.ctx.sessions["sub"].window
    assert window is not None and not window.entries
