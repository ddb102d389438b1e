"""The cost of a message counts as work of the turn, so that clients do not wait behind the expensive messages of
others."""

from __future__ import annotations

import pytest
from tests.core.test_overlaps import every_pattern, subscribe
from tests.harness import FakeClient, World
from tests.nats.talk import NatsPeer

from starlingmq.core.context.context import PROPERTY_SHIFT, TURN_WORK
from starlingmq.core.limits.access import EVERY_PUBLISH, PUBLISH, SUBSCRIBE, Grant, Rights
from starlingmq.core.messages.message import Message
from starlingmq.core.retained.retained_store import LOOKS_PER_MATCH, RetainedTree
from starlingmq.wire.decoder import FILTERS_MAX
from starlingmq.wire.mqtt import (
    PUBREC,
    PUBREL,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    encode,
)
from starlingmq.wire.nats_headers import VERSION
from starlingmq.wire.properties import PROPERTIES_MAX, USER_PROPERTY, encode_property_bytes
from starlingmq.wire.reasons import Reason

PUBLISHERS = 10


def work_of(world: World, client: FakeClient, data: bytes) -> int:
    """The work of a read, without the turn that follows."""
    ctx = world.state.ctx
    ctx.work = TURN_WORK
    world.state.receive(client.client, data, world.now)
    spent = TURN_WORK - ctx.work
    world.run()
    return spent


def publish(topic: bytes, properties: bytes = b"") -> bytes:
    return encode(Publish(topic, b"", properties=properties), 5)


def test_a_search_is_work_and_a_cached_route_is_not() -> None:
    world = World()
    for number in range(4):
        subscribe(world.connect(f"s{number}"), every_pattern(9))
    client = world.connect("publisher")
    first = work_of(world, client, publish(b"a/" * 9 + b"1"))
    assert first > 1024 // 4, "the nodes of the tree, and 2,048 subscriptions"
    assert work_of(world, client, publish(b"a/" * 9 + b"1")) == 5, "itself, and four receivers"
    assert work_of(world, client, publish(b"b/1")) < 10


def test_one_message_that_costs_more_than_a_turn_is_handled_between_two_reads_of_others() -> None:
    """A ping waits for one of them, however many clients send them; and none of the clients waits for ever."""
    world = World()
    for number in range(16):
        subscribe(world.connect(f"s{number}"), every_pattern(9))
    state = world.state
    senders = [world.connect(f"p{number}") for number in range(4)]
    other = world.connect("other")
    assert work_of(world, senders[0], publish(b"a/" * 9 + b"x")) > 2 * TURN_WORK
    received = state.ctx.counters.publish_received
    served = []
    for turn in range(40):
        for number, client in enumerate(senders):
            if not client.client.paused:
                padding = b"x" * (5000 if number % 2 else 0)  # much to be read, and little
                packet = encode(Publish(b"a/" * 9 + b"%d %d" % (turn, number), padding), 5)
                state.receive(client.client, packet, world.now)
                client.client.paused = client.client.halted != 0
        state.receive(other.client, b"\xc0\x00", world.now)
        assert other.client.frames == [b"\xd0\x00"]
        state.turn(world.now)
        for client in senders:
            client.client.paused = client.client.halted != 0
        served.append(state.ctx.counters.publish_received - received)
        received = state.ctx.counters.publish_received
        ready = state.take_ready()
        for fake in world.clients:
            fake.client.frames.clear()
            fake.client.size = 0
            fake.client.dirty = False
        ready.renew()
    assert max(served) <= 1
    assert sum(served) >= 15
    assert min(client.client.published for client in senders) >= 3


def test_a_denied_message_is_not_searched_for() -> None:
    world = World()
    subscribe(world.connect("s"), every_pattern(9))
    client = world.connect("publisher")
    world.state.ctx.give_rights(client.client, Rights([], False))
    before = world.state.router.cached()
    assert work_of(world, client, publish(b"a/" * 9 + b"1")) < 5
    assert world.state.router.cached() == before and world.dropped == {"not_authorized": 1}
    client.send(Publish(b"a/+"))
    assert client.closed, "an invalid topic is the more severe error"


def test_rules_that_are_compared_with_a_topic_are_work() -> None:
    world = World()
    client = world.connect("publisher")
    grants = [Grant(True, PUBLISH, EVERY_PUBLISH, [b"%d" % number], False, b"") for number in range(4000)]
    world.state.ctx.give_rights(client.client, Rights(grants, False))
    assert work_of(world, client, publish(b"x")) > 500
    assert work_of(world, client, publish(b"x")) < 5, "the decision is remembered"


def test_others_are_served_before_the_clients_with_expensive_messages() -> None:
    """Ten clients send messages that cost a third of a turn each: a ping waits for a few of them, not for all."""
    world = World()
    expensive = publish(b"t", encode_property_bytes({USER_PROPERTY: [("a", "b" * 65000)] * 3}))
    publishers = [world.connect(f"p{number}") for number in range(PUBLISHERS)]
    other = world.connect("other")
    state = world.state
    for turn in range(3):  # in the first one it is not known yet that they are expensive
        for client in publishers:
            for _ in range(5):
                state.receive(client.client, expensive, world.now)
        if turn == 0:
            world.run()
    assert state.ctx.counters.publish_received < 5 * PUBLISHERS + 6
    state.receive(other.client, b"\xc0\x00" * 10, world.now)
    received = state.ctx.counters.publish_received
    state.turn(world.now)
    assert state.ctx.counters.publish_received - received <= 5
    assert other.client.frames == [b"\xd0\x00"] * 10
    world.run()
    assert state.ctx.counters.publish_received == 15 * PUBLISHERS, "all of them were handled in the end"
    assert other.expect(Pingresp)


def test_a_ping_does_not_wait_behind_clients_that_have_sent_much() -> None:
    """It is not known yet that their messages are expensive."""
    world = World()
    expensive = publish(b"t", encode_property_bytes({USER_PROPERTY: [("a", "b" * 1000)] * 10}))
    publishers = [world.connect(f"p{number}") for number in range(PUBLISHERS)]
    other = world.connect("other")
    for client in publishers:
        world.state.receive(client.client, expensive * 20, world.now)
    world.state.receive(other.client, b"\xc0\x00" * 10, world.now)
    assert other.client.frames == []
    world.state.turn(world.now)
    assert other.client.frames == [b"\xd0\x00"] * 10
    world.run()
    assert world.state.ctx.counters.publish_received == 20 * PUBLISHERS


def test_a_single_ping_does_not_even_wait_for_the_next_turn() -> None:
    world = World()
    client, other = world.connect("c"), world.connect("o")
    world.state.ctx.work = 0
    world.state.receive(other.client, b"\xc0\x00", world.now)
    assert other.client.frames == [b"\xd0\x00"]
    world.state.receive(client.client, publish(b"t" * 20)[:-4], world.now)
    world.state.receive(client.client, publish(b"t" * 20)[-4:], world.now)
    assert world.state.ctx.counters.publish_received == 0, "the end of a packet is no ping"
    world.run()
    assert world.state.ctx.counters.publish_received == 1


def test_bytes_that_come_after_the_turn_is_used_up_are_kept_whole() -> None:
    """The rest of a packet that began before comes when there is no work left."""
    world = World()
    receiver, client = world.connect("r"), world.connect("p")
    subscribe(receiver, [b"t"])
    data = publish(b"t") + b"\xc0\x00"
    world.state.receive(client.client, data[:3], world.now)
    world.state.ctx.work = 0
    world.state.receive(client.client, data[3:], world.now)
    assert world.state.ctx.counters.publish_received == 0 and client.client.halted != 0
    world.run()
    assert receiver.expect(Publish).topic == b"t" and client.expect(Pingresp)


@pytest.mark.parametrize("blocked", [False, True])
def test_the_pieces_of_a_large_packet_are_joined_once(blocked: bool) -> None:
    """However often its assembly is put off: because the turn is used up, or because the client does not read."""
    world = World(max_packet_size=1 << 20, write_buffer=1024)
    receiver, client = world.connect("r"), world.connect("p")
    subscribe(receiver, [b"t"])
    data = encode(Publish(b"t", b"x" * 100_000), 5)
    first = client.client
    for start in range(0, len(data) - 2000, 2000):
        if blocked:
            world.state.blocked(first)
        else:
            world.state.ctx.work = 0
        world.state.receive(first, data[start : start + 2000], world.now)
        assert first.halted != 0
        assert start == 0 or first.rest == b"", "they are still apart"
        if blocked:
            world.state.drained(first, world.now)
        world.run()
    world.state.receive(first, data[start + 2000 :], world.now)
    world.run()
    assert receiver.expect(Publish).payload == b"x" * 100_000


def test_properties_are_work_and_thousands_of_them_are_refused() -> None:
    world = World()
    client = world.connect()
    pair = encode_property_bytes({USER_PROPERTY: [("a", "b")]})
    most = pair * PROPERTIES_MAX
    assert work_of(world, client, publish(b"t", most)) > len(most) >> PROPERTY_SHIFT
    client.send(publish(b"t", most + pair))
    assert client.closed and client.expect(Disconnect).reason == Reason.QUOTA_EXCEEDED


def test_thousands_of_nats_headers_are_refused() -> None:
    world = World()
    peer = NatsPeer(world)
    peer.said('CONNECT {"verbose":false,"headers":true}')
    most = VERSION + b"\r\n" + b"a:\r\n" * (PROPERTIES_MAX - 2) + b"\r\n"
    peer.send(b"HPUB t %d %d\r\n%b" % (len(most), len(most), most))
    assert peer.said("PING") == ["PONG"]
    more = VERSION + b"\r\n" + b"a:\r\n" * PROPERTIES_MAX + b"\r\n"
    peer.send(b"HPUB t %d %d\r\n%b" % (len(more), len(more), more))
    assert len(peer.said("PING")) == 2 and world.dropped == {"bad_headers": 1}


@pytest.mark.parametrize("count", [FILTERS_MAX, FILTERS_MAX + 1])
def test_a_packet_has_so_many_filters_and_no_more(count: int) -> None:
    client = World(subscriptions_per_client=1).connect()
    client.send(Unsubscribe(1, [b"+"] * count))
    assert client.closed == (count > FILTERS_MAX)
    if client.closed:
        assert client.expect(Disconnect).reason == Reason.QUOTA_EXCEEDED


def test_filters_are_work_by_the_rules_that_are_compared_with_them() -> None:
    """A SUBSCRIBE goes on in the next turn, and a ping is answered before."""
    world = World()
    client, other = world.connect("c"), world.connect("o")
    grants = [Grant(True, PUBLISH | SUBSCRIBE, EVERY_PUBLISH, [b"%d" % number], False, b"") for number in range(4000)]
    world.state.ctx.give_rights(client.client, Rights(grants, False))
    world.state.ctx.work = TURN_WORK
    packet = encode(Subscribe(1, [SubscribeRequest(b"%d" % number) for number in range(100)]), 5)
    world.state.receive(client.client, packet, world.now)
    assert world.state.ctx.work > TURN_WORK - 100 * 8 - 4 * 1000
    assert len(world.state.router.tree) < 10
    world.run()
    assert len(world.state.router.tree) == 100
    other.send(Pingreq())
    assert other.expect(Pingresp)


def test_acknowledgements_of_nothing_are_work() -> None:
    """Each is answered, and costs several times as much as a ping."""
    world = World()
    client = world.connect("c")
    for first in (PUBREC << 4, PUBREL << 4 | 2):
        assert work_of(world, client, bytes((first, 2, 0, 1)) * 100) >= 500
    assert work_of(world, client, bytes((PUBREL << 4 | 2, 3, 0, 1, 0x92)) * 100) >= 900
    assert work_of(world, client, b"\xc0\x00" * 100) == 100


def test_filters_are_work_also_those_of_nats_clients() -> None:
    world = World()
    assert work_of(world, world.connect("c"), encode(Subscribe(1, [SubscribeRequest(b"+")] * 1000), 5)) > 6000
    assert work_of(world, world.connect("c"), encode(Unsubscribe(1, [b"+"] * 1000), 5)) > 6000
    peer = NatsPeer(world)
    peer.said('CONNECT {"verbose":false}')
    world.state.ctx.work = TURN_WORK
    world.state.receive(peer.client, b"SUB x 1\r\nUNSUB 1\r\n" * 100, world.now)
    assert TURN_WORK - world.state.ctx.work >= 4000


def test_a_walk_over_long_retained_topics_is_as_short_as_over_few() -> None:
    tree = RetainedTree()
    for number in range(200):
        tree.put(Message(b"x/" * 2000 + b"%03d/y" % number, b"", 0, True, b"", 0.0, "", 0.0))
    cursor = tree.cursor(b"+/" * 2001 + b"z")
    steps = 0
    while not cursor.done:
        before = cursor.looks
        cursor.next(16)
        steps += 1
        assert cursor.looks - before <= 16 * LOOKS_PER_MATCH + len(b"x/" * 2000)
    assert steps > 10, "several topics in one step would be too many"
