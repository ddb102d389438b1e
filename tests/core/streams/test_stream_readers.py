"""MQTT clients that read streams: where they begin, what they get, and that nothing is read that they cannot take."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.streams.stream_world import (
    StoredStreaming,
    Streaming,
    offset_of,
    payloads,
    policy_of,
    subscribe,
    take,
    users,
)
from tests.harness import FakeClient, World

from starlingmq.core.context.ready import SUBSCRIPTION_PUT, Ready, Write
from starlingmq.core.jetstream.bound_consumer import BoundConsumer
from starlingmq.core.jetstream.stream_readers import GROUPS_MAX, READS_MAX
from starlingmq.core.jetstream.work_queues import QUEUES_MAX
from starlingmq.core.limits.access import STREAM, SUBSCRIBE, Grant, Rights
from starlingmq.core.messages.message import Message
from starlingmq.core.session.session import Subscription
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.feeder import Feeder
from starlingmq.core.streams.policies import INTEREST, WORK_QUEUE
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.core.streams.stream_filters import shown_to_hooks
from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Connect,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from starlingmq.wire.properties import (
    REASON_STRING,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    Properties,
)

LASTS: Properties = {SESSION_EXPIRY_INTERVAL: 1000}


def fill(world: World, count: int, topic: str = "t/1", first: int = 1) -> None:
    publisher = world.connect("publisher")
    for number in range(first, first + count):
        publisher.send(Publish(topic.encode(), b"%d" % number, 0))
    publisher.disconnect()


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


@pytest.mark.parametrize(
    ("start", "value", "first"),
    [
        ("earliest", "", 1),
        ("latest", "", 10),
        ("new", "", 11),
        ("", "", 11),
        ("offset", "4", 4),
        ("offset", "12", 12),
        ("timestamp", "1000005.0", 6),
        ("timestamp", "1970-01-12T14:46:45+01:00", 6),
    ],
)
def test_a_new_subscription_begins_where_its_user_property_says(start: str, value: str, first: int) -> None:
    world = Streaming()
    world.stream()
    for number in range(1, 11):
        fill(world, 1, first=number)
        world.advance(1.0)
    client = world.connect()
    assert subscribe(client, "$stream/S", 1, start, value).reasons == [1]
    fill(world, 3, first=11)
    found = take(client)
    assert payloads(found) == numbers(first, 13)
    assert [offset_of(each) for each in found] == list(range(first, 14))
    assert {(each.topic, each.qos, each.retain) for each in found} == {(b"t/1", 1, False)}


@pytest.mark.parametrize(
    ("start", "first"), [("@earliest", 1), ("@latest", 5), ("@new", 6), ("", 6), ("@offset=3", 3), ("@timestamp=0", 1)]
)
def test_a_client_of_3_1_1_says_in_the_filter_where_to_begin(start: str, first: int) -> None:
    world = Streaming()
    world.stream()
    fill(world, 5)
    fill(world, 1, "t/2")
    client = world.connect(version=4)
    assert subscribe(client, f"$stream/S{start}/t/1", 2).reasons == [2]
    fill(world, 2, first=6)
    found = take(client)
    assert payloads(found) == numbers(first, 7)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_come_at_the_qos_of_the_subscription_with_its_identifier(qos: int) -> None:
    world = Streaming()
    world.stream()
    fill(world, 3)
    client = world.connect()
    answer = subscribe(client, "$stream/S/t/+", qos, "earliest", properties={SUBSCRIPTION_IDENTIFIER: [7]})
    assert answer.reasons == [qos]
    found = take(client)
    assert [(each.qos, each.subscription_ids, offset_of(each)) for each in found] == [
        (qos, [7], 1),
        (qos, [7], 2),
        (qos, [7], 3),
    ]


def test_nothing_is_read_beyond_receive_maximum() -> None:
    world = Streaming()
    world.stream()
    fill(world, 100)
    client = world.connect(properties={RECEIVE_MAXIMUM: 10})
    subscribe(client, "$stream/S", 1, "earliest")
    assert payloads(take(client, False)) == numbers(1, 10)
    session = client.client.session
    assert session is not None and session.queue is None
    client.send(Ack(4, 1))
    assert payloads(take(client, False)) == [b"11"]
    for packet_id in range(2, 12):
        client.send(Ack(4, packet_id))
    assert payloads(take(client)) == numbers(12, 100)


def test_at_qos_0_a_slow_connection_is_waited_for() -> None:
    world = Streaming(write_buffer=500)
    world.stream()
    fill(world, 100)
    client = world.connect()
    client.block()
    subscribe_to(client, "$stream/S@earliest")
    assert client.client.size < 100
    client.unblock()
    assert payloads(take(client)) == numbers(1, 100)
    assert world.dropped == {}


def subscribe_to(client: FakeClient, filter: str, qos: int = 0) -> None:
    client.send(Subscribe(1, [SubscribeRequest(filter.encode(), qos)]))


def test_the_position_belongs_to_the_session() -> None:
    world = Streaming()
    world.stream()
    fill(world, 5)
    client = world.connect("r", properties=LASTS)
    subscribe(client, "$stream/S", 1, "earliest")
    assert payloads(take(client)) == numbers(1, 5)
    client.disconnect()
    fill(world, 5, first=6)
    client = world.connect("r", clean_start=False, properties=LASTS)
    assert payloads(take(client)) == numbers(6, 10)
    subscribe(client, "$stream/S", 1, "earliest")  # it exists
    assert take(client) == []
    client.send(Unsubscribe(2, [b"$stream/S"]))
    assert client.expect(Unsuback).reasons == [0]
    subscribe(client, "$stream/S", 1, "earliest")
    assert payloads(take(client)) == numbers(1, 10)


def test_two_subscriptions_share_the_window_fairly() -> None:
    world = Streaming()
    world.stream("A", policy_of("a/#"))
    world.stream("B", policy_of("b/#"))
    fill(world, 100, "a/1")
    fill(world, 100, "b/1")
    client = world.connect(properties={RECEIVE_MAXIMUM: 5})
    subscribe(client, "$stream/A", 1, "earliest")
    subscribe_to(client, "$stream/B@earliest", 1)
    found: list[Publish] = []
    while len(found) < 100:
        more = [each for each in client.receive() if isinstance(each, Publish)]
        assert more
        found += more
        client.send_all([Ack(4, each.packet_id) for each in more])
    topics = [each.topic for each in found]
    assert topics.count(b"b/1") >= 40
    assert topics.count(b"a/1") >= 40


def test_messages_that_limits_remove_before_they_are_read_are_counted() -> None:
    world = Streaming()
    world.stream(policy=policy_of(max_messages=10))
    client = world.connect("r", properties=LASTS)
    subscribe(client, "$stream/S", 1)
    client.disconnect()
    fill(world, 25)
    client = world.connect("r", clean_start=False, properties=LASTS)
    assert payloads(take(client)) == numbers(16, 25)
    assert world.dropped == {"stream_removed": 15}


def test_a_reader_does_not_keep_messages_by_its_interest() -> None:
    world = Streaming()
    stream = world.stream(policy=policy_of(retention=INTEREST))
    client = world.connect("r", properties=LASTS)
    subscribe(client, "$stream/S", 1)
    fill(world, 3)
    assert stream.index.count == 0
    client.disconnect()
    assert take(world.connect("r", clean_start=False, properties=LASTS)) == []
    assert world.dropped == {"stream_removed": 3}


def test_a_work_queue_keeps_messages_that_only_a_reader_wants_over_a_start() -> None:
    world = Streaming()
    stream = world.stream(policy=policy_of(retention=WORK_QUEUE))
    subscribe(world.connect("member"), "$queue/S/t/1", 1)
    reader = world.connect("reader")
    subscribe(reader, "$stream/S", 1)
    fill(world, 1, "t/2")
    assert payloads(take(reader)) == [b"1"]
    world.state.jetstream.remove_done()
    assert stream.index.count == 1


@pytest.mark.parametrize(
    ("filter", "reason", "why"),
    [
        ("$stream/none", 0x8F, "no stream"),
        ("$stream/S@never", 0x8F, "begins with"),
        ("$stream/S@offset=x", 0x8F, "offset"),
        ("$stream/+", 0x8F, "name of one stream"),
        ("$stream/", 0x8F, "name of one stream"),
        ("$queue/none", 0x8F, "no stream"),
        ("$queue/S@new", 0x8F, "first message"),
        ("$share/g/$queue/S", 0x8F, "without $share"),
        ("$share/g/$stream/none", 0x8F, "no stream"),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused_with_a_reason(filter: str, reason: int, why: str) -> None:
    world = Streaming()
    world.stream()
    client = world.connect()
    answer = subscribe(client, filter)
    assert answer.reasons == [reason]
    assert why in str(answer.properties[REASON_STRING])
    old = world.connect("old", version=4)
    assert subscribe(old, filter).reasons == [0x80]


@pytest.mark.parametrize(
    ("word", "value"), [("offset", "-1"), ("timestamp", "yesterday"), ("timestamp", "2026-13-01T00:00:00Z")]
)
def test_a_start_that_makes_no_sense_is_refused_with_a_reason(word: str, value: str) -> None:
    world = Streaming()
    world.stream()
    answer = subscribe(world.connect(), "$stream/S", 0, word, value)
    assert answer.reasons == [0x83]
    assert word in str(answer.properties[REASON_STRING])


def test_a_broker_without_jetstream_says_that_it_has_no_such_streams() -> None:
    world = World()
    answer = subscribe(world.connect(), "$stream/S")
    assert answer.reasons == [0x83]
    assert "not served here" in str(answer.properties[REASON_STRING])


@pytest.mark.parametrize("topic", [b"$stream/S/t", b"$queue/S"])
def test_clients_do_not_publish_to_the_topics_of_subscriptions_to_streams(topic: bytes) -> None:
    world = Streaming()
    world.stream()
    client = world.connect()
    client.send(Publish(topic, b"x", 1, packet_id=1))
    assert client.expect(Ack).reason == 0x87


def rights(*allowed: str, reads: bool = True) -> Rights:
    grants = [Grant(reads, STREAM, 0, [None], False, b"")]
    for filter in allowed:
        levels = filter.encode().split(b"/")
        rest = levels[-1] == b"#"
        grants.append(
            Grant(
                True,
                SUBSCRIBE | 4,
                0,
                [None if each == b"+" else each for each in (levels[:-1] if rest else levels)],
                rest,
                b"",
            )
        )
    return Rights(grants, False)


def test_rules_decide_about_the_filter_and_about_each_topic() -> None:
    world = Streaming()
    world.stream()
    fill(world, 2, "t/1")
    fill(world, 2, "t/2")
    client = world.connect()
    world.state.ctx.give_rights(client.client, rights("$stream/S/t/1", "t/#"))
    assert subscribe(client, "$stream/S").reasons == [0x87]
    assert subscribe(client, "$stream/S/t/1", 1, "earliest").reasons == [1]
    assert payloads(take(client)) == numbers(1, 2)
    other = world.connect("other")
    world.state.ctx.give_rights(other.client, rights("$stream/S/#", "t/2"))
    assert subscribe(other, "$stream/S", 1, "earliest").reasons == [1]
    assert [(each.topic, each.payload) for each in take(other)] == [(b"t/2", b"1"), (b"t/2", b"2")]
    assert subscribe(other, "$share/g/$stream/S").reasons == [0x87]  # it would lose messages for other members
    assert subscribe(other, "$queue/S").reasons == [0x87]


@pytest.mark.parametrize("filter", ["$stream/S", "$share/g/$stream/S", "$queue/S"])
def test_a_client_that_may_not_read_a_stream_does_so_in_no_way(filter: str) -> None:
    world = Streaming()
    world.stream()
    fill(world, 2)
    client = world.connect()
    world.state.ctx.give_rights(client.client, rights("#", "$stream/#", "$queue/#"))
    assert subscribe(client, filter, 1, "earliest").reasons == [1]
    assert len(take(client)) == 2
    world.state.ctx.give_rights(client.client, rights("#", "$stream/#", "$queue/#", reads=False))
    session = client.client.session
    assert session is not None
    world.state.subscribing.revoke(session)
    assert session.subscription_count() == 0
    assert subscribe(client, filter).reasons == [0x87]


@pytest.mark.parametrize("filter", ["$share/g/$stream/S", "$queue/S"])
def test_members_are_looked_at_again_when_their_stream_gets_other_topics(filter: str) -> None:
    world = Streaming()
    stream = world.stream(policy=policy_of("t/#"))
    client, other = world.connect(), world.connect("other")
    world.state.ctx.give_rights(client.client, rights("t/#", "$stream/#", "$queue/#"))
    for each in (client, other):
        assert subscribe(each, filter).reasons == [1]
    world.state.jetstream.change(stream, policy_of("t/#", "secret/#"), b"{}")
    fill(world, 3, "secret/1")
    assert take(client) == []
    assert len(take(other)) == 3


def test_members_of_a_consumer_that_is_no_queue_any_more_get_nothing() -> None:
    world = Streaming()
    stream = world.stream()
    client = world.connect()
    assert subscribe(client, "$queue/S/t/1").reasons == [1]
    [reader] = stream.consumers.values()
    assert isinstance(reader, BoundConsumer)
    policy = ConsumerPolicy()
    policy.filters = [b"t/2"]
    world.state.jetstream.change_consumer(reader, policy, b"{}")
    fill(world, 3, "t/2")
    assert take(client) == []


def test_hooks_are_asked_about_the_stream_and_not_about_where_reading_begins() -> None:
    shown = {
        b"$stream/S": b"$stream/S/#",
        b"$stream/S@earliest/a/+": b"$stream/S/a/+",
        b"$share/g/$stream/S@offset=3": b"$share/g/$stream/S/#",
        b"$queue/S/a": b"$queue/S/a",
        b"a/b@c": b"a/b@c",
        b"$share/g": b"$share/g",
        b"$share/g/$stream/+": b"$share/g/$stream/+",
    }
    assert {whole: shown_to_hooks(whole) for whole in shown} == shown
    world = Streaming()
    world.stream()
    world.state.ctx.ask_subscribe = True
    client = world.connect()
    asked: list[bytes] = []
    carry_out = world.carry_out

    def note(ready: Ready) -> None:
        asked.extend(request.filter for question in ready.questions for request in question.requests or ())
        carry_out(ready)

    world.carry_out = note  # type: ignore[method-assign]
    subscribe_to(client, "$stream/S@earliest")
    assert asked == [b"$stream/S/#"]


def test_a_new_group_takes_the_place_of_one_that_has_no_members() -> None:
    world = Streaming()
    stream = world.stream()
    for number in range(GROUPS_MAX):
        client = world.connect(f"m{number}")
        assert subscribe(client, f"$share/g{number}/$stream/S").reasons == [1]
        if number in (3, 5):
            client.drop()
            world.advance(1.0)
    client = world.connect("new")
    for name in ("a", "b"):
        assert subscribe(client, f"$share/{name}/$stream/S").reasons == [1]
    assert subscribe(client, "$share/c/$stream/S").reasons == [0x97]
    names = {feeder.group.share() for feeder in world.state.jetstream.reads._feeders[stream] if feeder.group}
    assert len(names) == GROUPS_MAX
    assert not names & {b"$share/g3/$stream/S", b"$share/g5/$stream/S"}


def test_a_stream_has_a_bounded_number_of_queues_and_a_session_of_reads() -> None:
    world = Streaming()
    world.stream()
    client = world.connect()
    for number in range(QUEUES_MAX):
        assert subscribe(client, f"$queue/S/t/{number}").reasons == [1]
    answer = subscribe(client, "$queue/S/t/more")
    assert answer.reasons == [0x97] and REASON_STRING in answer.properties
    other = world.connect("other")
    for number in range(READS_MAX):
        assert subscribe(other, f"$stream/S/+/{number}", 0).reasons == [0]
    assert subscribe(other, "$stream/S/+/more", 0).reasons == [0x97]
    assert subscribe(other, "$stream/S/+/1", 0).reasons == [0]  # it is there already


@pytest.mark.parametrize("topic", ["$stream/S/t/1", "$queue/S", "$dead/S/t/1"])
def test_clients_publish_to_no_topic_of_the_broker(topic: str) -> None:
    world = Streaming()
    world.stream()
    reader = world.connect("reader")
    subscribe(reader, "$dead/#", 0)
    publisher = world.connect("publisher")
    publisher.send(Publish(topic.encode(), b"forged", 1, packet_id=1))
    assert publisher.expect(Ack).reason == 0x87
    assert take(reader) == []


def test_a_deleted_stream_ends_the_subscriptions_to_it() -> None:
    world = Streaming()
    stream = world.stream()
    client = world.connect()
    subscribe(client, "$stream/S")
    subscribe(client, "$share/g/$stream/S")
    world.state.jetstream.remove(stream)
    session = client.client.session
    assert session is not None and session.subscription_count() == 0 and session.reads is None
    world.stream()
    assert subscribe(client, "$stream/S", 1, "earliest").reasons == [1]


# Groups


def test_a_group_divides_the_stream() -> None:
    world = Streaming()
    world.stream()
    fill(world, 100)
    clients = [world.connect(f"m{number}", properties={RECEIVE_MAXIMUM: 10}) for number in range(3)]
    for client in clients:
        assert subscribe(client, "$share/g/$stream/S", 1, "earliest").reasons == [1]
    found = []
    while True:
        more = [take(client) for client in clients]
        if not any(more):
            break
        found.append(more)
    each = [[one for more in found for one in payloads(more[number])] for number in range(3)]
    assert sorted(int(payload) for one in each for payload in one) == list(range(1, 101))
    assert all(each)


def test_a_group_goes_on_where_it_is_and_gives_what_a_member_had_to_others() -> None:
    world = Streaming()
    world.stream()
    fill(world, 30)
    first = world.connect("a", properties={RECEIVE_MAXIMUM: 10})
    subscribe(first, "$share/g/$stream/S", 1, "earliest")
    had = payloads(take(first, False))
    assert had == numbers(1, 10)
    first.drop()
    second = world.connect("b")
    subscribe(second, "$share/g/$stream/S", 1, "earliest")
    assert sorted(payloads(take(second)), key=int) == numbers(1, 30)
    session = second.client.session
    assert session is not None
    second.drop()
    fill(world, 5, first=31)
    world.advance(86400.0)
    third = world.connect("c")
    subscribe(third, "$share/g/$stream/S", 1, "earliest")
    assert payloads(take(third)) == numbers(31, 35)
    third.send(Unsubscribe(2, [b"$share/g/$stream/S"]))
    third.receive()
    subscribe(third, "$share/g/$stream/S", 1, "earliest")
    assert payloads(take(third)) == numbers(1, 35)  # the group had ended


# Crashes


@pytest.mark.parametrize("qos", [1, 2])
def test_after_a_crash_each_message_is_in_the_session_once(qos: int) -> None:
    world = StoredStreaming()
    fill(world, 50)
    client = world.connect("r", properties={RECEIVE_MAXIMUM: 7, **LASTS})
    subscribe(client, "$stream/S", qos, "earliest")
    assert payloads(take(client, False)) == numbers(1, 7)
    world.restart()
    client = world.connect("r", clean_start=False, properties={RECEIVE_MAXIMUM: 7, **LASTS})
    found = take(client)
    assert payloads(found) == numbers(1, 50)
    assert [offset_of(each) for each in found] == list(range(1, 51))
    world.restart()
    fill(world, 2, first=51)
    client = world.connect("r", clean_start=False, properties=LASTS)
    assert payloads(take(client)) == numbers(51, 52)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_positions_go_with_their_subscription(checkpointed: bool) -> None:
    world = StoredStreaming()
    fill(world, 5)
    client = world.connect("r", properties=LASTS)
    subscribe(client, "$stream/S", 1, "earliest")
    take(client)
    client.send(Unsubscribe(2, [b"$stream/S"]))
    other = world.connect("o", properties=LASTS)
    subscribe(other, "$stream/S", 1, "earliest")
    take(other)
    other.disconnect(properties={SESSION_EXPIRY_INTERVAL: 0})
    if checkpointed:
        world.checkpoint()
    world.restart()
    assert world.state.jetstream.reads._gone == []
    client = world.connect("r", clean_start=False, properties=LASTS)
    assert take(client) == []
    subscribe(client, "$stream/S", 1, "earliest")
    assert payloads(take(client)) == numbers(1, 5)


def test_a_group_goes_on_after_a_crash() -> None:
    world = StoredStreaming()
    fill(world, 30)
    client = world.connect("a", properties={RECEIVE_MAXIMUM: 10})
    subscribe(client, "$share/g/$stream/S", 1, "earliest")
    assert payloads(take(client, False)) == numbers(1, 10)
    client.send_all([Ack(4, packet_id) for packet_id in range(1, 5)])
    assert payloads(take(client, False)) == numbers(11, 14)
    world.restart()
    world.checkpoint()
    world.restart()
    client = world.connect("b", properties={RECEIVE_MAXIMUM: 10})
    subscribe(client, "$share/g/$stream/S", 1, "earliest")
    assert sorted(payloads(take(client)), key=int) == numbers(5, 30)


# Work queues


def test_members_of_a_queue_compete_and_acknowledge() -> None:
    world = Streaming()
    stream = world.stream(policy=policy_of(retention=2))
    fill(world, 40)
    a = world.connect("a", properties={RECEIVE_MAXIMUM: 10})
    b = world.connect("b", properties={RECEIVE_MAXIMUM: 10})
    assert subscribe(a, "$queue/S", 1).reasons == [1]
    assert subscribe(b, "$queue/S", 2).reasons == [2]
    found = take(a) + take(b)
    while more := take(a) + take(b):
        found += more
    assert sorted(payloads(found), key=int) == numbers(1, 40)
    assert stream.index.count == 0
    consumer = stream.consumers["mqtt-queue"]
    assert consumer.consumer.num_ack_pending() == 0  # type: ignore[attr-defined]


def test_a_slow_member_loses_a_message_to_another() -> None:
    world = Streaming()
    world.stream()
    slow = world.connect("slow")
    subscribe(slow, "$queue/S", 1)
    fill(world, 1)
    [had] = take(slow, False)
    other = world.connect("other")
    subscribe(other, "$queue/S", 1)
    world.advance(29.0)
    assert take(other) == []
    world.advance(2.0)
    again = take(other) + take(slow, False)
    assert payloads(again) == [b"1"]
    assert users(again[0]) == {"offset": "1", "deliveries": "2"}
    slow.send(Ack(4, had.packet_id))
    world.advance(100.0)
    assert take(other) + take(slow) == []


def test_a_member_that_is_away_keeps_its_messages_for_ack_wait() -> None:
    world = Streaming()
    world.stream()
    lasting = world.connect("lasting", properties=LASTS)
    subscribe(lasting, "$queue/S", 1)
    fill(world, 1)
    assert payloads(take(lasting, False)) == [b"1"]
    lasting.drop()
    other = world.connect("other")
    subscribe(other, "$queue/S", 1)
    world.advance(20.0)
    lasting = world.connect("lasting", clean_start=False, properties=LASTS)
    [again] = take(lasting, False)
    assert (again.payload, again.dup) == (b"1", True)
    lasting.drop()
    world.advance(11.0)
    assert payloads(take(other)) == [b"1"]
    lasting = world.connect("lasting", clean_start=False, properties=LASTS)
    assert take(lasting) == []


def test_a_session_that_ends_gives_its_messages_back_at_once() -> None:
    world = Streaming()
    world.stream()
    member = world.connect("m")
    subscribe(member, "$queue/S", 2)
    fill(world, 3)
    assert payloads(take(member, False)) == numbers(1, 3)
    other = world.connect("other")
    subscribe(other, "$queue/S", 1)
    member.drop()
    world.advance(1.1)
    assert payloads(take(other)) == numbers(1, 3)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_is_refused_too_often_becomes_a_dead_letter(qos: int) -> None:
    world = Streaming()
    stream = world.stream(policy=policy_of(retention=2))
    reader = world.connect("dead")
    subscribe(reader, "$dead/#", 1)
    member = world.connect("m")
    subscribe(member, "$queue/S/t/#", qos)
    fill(world, 1)
    for _ in range(5):
        [found] = take(member, False)
        member.send(Ack(4 if qos == 1 else 5, found.packet_id, 0x80))
        world.advance(1.1)
    assert take(member) == []
    [letter] = take(reader)
    assert (letter.topic, letter.payload) == (b"$dead/S/t/1", b"1")
    assert users(letter) == {"offset": "1", "deliveries": "5"}
    assert stream.index.count == 0


def test_a_dead_letter_without_a_receiver_stays_in_the_stream() -> None:
    world = Streaming()
    stream = world.stream(policy=policy_of(retention=2))
    member = world.connect("m")
    subscribe(member, "$queue/S", 1)
    fill(world, 1)
    for _ in range(5):
        [found] = take(member, False)
        member.send(Ack(4, found.packet_id, 0x80))
        world.advance(1.1)
    assert take(member) == []
    assert stream.index.count == 1
    assert world.dropped == {"max_deliveries": 1}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_queue_goes_on_after_a_crash(qos: int) -> None:
    world = StoredStreaming(policy_of(retention=2))
    fill(world, 20)
    member = world.connect("m", properties={RECEIVE_MAXIMUM: 5, **LASTS})
    subscribe(member, "$queue/S", qos)
    take(member, False)
    world.advance(1.0)  # the state of the consumer is stored
    world.checkpoint()
    world.restart()
    member = world.connect("m", clean_start=False, properties={RECEIVE_MAXIMUM: 5, **LASTS})
    found = take(member)
    world.advance(40.0)
    found += take(member)
    world.advance(1.0)
    if qos == 0:
        assert found == []
    else:
        assert {int(each.payload) for each in found} == set(range(1, 21))
    assert world.sequenced.index.count == 0


def test_a_subscription_that_was_refused_leaves_nothing() -> None:
    world = Streaming()
    fake = world.connect()
    subscribe(fake, "$queue/S")
    session = fake.client.session
    assert session is not None and session.reads is None and session.subscription_count() == 0
    assert isinstance(subscribe(fake, "a"), Suback)


def test_a_long_filter_is_refused_by_a_short_text() -> None:
    world = Streaming()
    world.stream()
    client = world.connect()
    requests = [SubscribeRequest(b"$stream/S@" + b"a" * 65500, 0)]
    requests += [SubscribeRequest(b"u/%d" % number, 0) for number in range(200)]  # they need a second turn
    client.send(Subscribe(1, requests))
    world.advance(1.0)
    answer = client.expect(Suback)
    assert answer.reasons == [0x8F] + [0] * 200
    assert len(str(answer.properties[REASON_STRING])) < 200


@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_a_reader_that_waits_for_the_store_and_unsubscribes_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Streaming()
    stream = world.stream()
    fill(world, 3)
    client = world.connect()

    def fail(_: SequencedStream, seq: int) -> Message:
        raise OSError(5, f"message {seq} cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(SequencedStream, "message", fail)
        subscribe(client, "$stream/S", 1, "earliest")
        client.send(Unsubscribe(2, [b"$stream/S"]))
        client.expect(Unsuback)
    world.advance(2.0)
    assert take(client) == []
    subscribe(client, "$stream/S", 1, "earliest")
    assert len(take(client)) == stream.index.count == 3


def test_many_readers_of_one_session_end_with_their_stream() -> None:
    world = Streaming()
    stream = world.stream()
    client = world.connect()
    count = 5000
    client.send(Subscribe(1, [SubscribeRequest(b"$stream/S/t/%d" % number, 0) for number in range(count)]))
    world.advance(1.0)
    assert len(client.expect(Suback).reasons) == count
    session = client.client.session
    assert session is not None
    looked = Looked(session.reads or {})
    session.reads = looked
    world.state.jetstream.remove(stream)
    assert session.subscription_count() == 0
    assert looked.times == 0


class Looked(dict[bytes, object]):
    """Counts how often all entries are looked at."""

    times = 0

    def items(self) -> Any:
        self.times += 1
        return super().items()


def test_a_filter_that_matches_nothing_is_looked_for_over_turns_and_keeps_no_topics() -> None:
    world = Streaming()
    stream = world.stream()
    for number in range(5000):
        stream.take(world.state.ctx, Message(b"t/%d" % number, b"", 0, False, b"", 0.0, "", world.now))
    stream.take(world.state.ctx, Message(b"t/x/y", b"found", 0, False, b"", 0.0, "", world.now))
    client = world.connect()
    subscribe(client, "$stream/S/+/+/y", 1, "earliest")
    found = client.client.session
    assert found is not None and found.reads is not None
    feeder = found.reads[b"$stream/S/+/+/y"]
    assert isinstance(feeder, Feeder)
    assert payloads(take(client)) == [b"found"]
    feeder.next = 1
    before = world.state.ctx.work
    feeder.wake()
    world.state.jetstream.turn()
    assert 1 < feeder.next < 5000
    assert world.state.ctx.work < before
    assert len(feeder.selection._known) <= 32


def test_subscriptions_of_an_earlier_release_do_not_stop_a_start() -> None:
    world = StoredStreaming()
    client = world.connect("old", properties=LASTS)
    session = client.client.session
    assert session is not None
    for whole in (b"$queue/#", b"$stream/+/a", b"$share/g/$stream/S@x"):
        subscription = Subscription(session, whole, 0, False, False, b"")
        session.add_subscription(whole, subscription)
        world.state.ctx.write(Write(SUBSCRIPTION_PUT, session, topic=whole, subscription=subscription))
    world.run()
    world.restart()
    again = world.connect("old", clean_start=False, properties=LASTS)
    again.send(Unsubscribe(2, [b"$queue/#", b"$stream/+/a", b"$share/g/$stream/S@x"]))
    assert again.expect(Unsuback).reasons == [0, 0, 0]


def test_two_filters_of_a_session_that_are_one_queue_end_one_by_one() -> None:
    world = Streaming()
    world.stream()
    client = world.connect()
    subscribe(client, "$queue/S")
    subscribe(client, "$queue/S/#", 2)
    client.send(Unsubscribe(2, [b"$queue/S/#"]))
    client.expect(Unsuback)
    fill(world, 2)
    found = take(client)
    assert [(each.payload, each.qos) for each in found] == [(b"1", 1), (b"2", 1)]
    client.send(Unsubscribe(2, [b"$queue/S"]))
    client.expect(Unsuback)
    fill(world, 1)
    assert take(client) == []


def test_a_burst_is_divided_between_the_members_of_a_queue() -> None:
    world = Streaming()
    world.stream()
    members = [world.connect(f"member{number}", properties={RECEIVE_MAXIMUM: 1000}) for number in range(3)]
    for member in members:
        subscribe(member, "$queue/S")
    publisher = world.connect("publisher")
    publisher.send_all([Publish(b"t/1", b"%d" % number) for number in range(600)])
    assert [len(take(member, False)) for member in members] == [200, 200, 200]


def test_a_member_of_a_queue_is_given_no_more_bytes_than_its_connection_buffers() -> None:
    world = Streaming(write_buffer=10_000)
    world.stream()
    member = world.connect()
    subscribe(member, "$queue/S")
    world.state.blocked(member.client)
    publisher = world.connect("publisher")
    for number in range(100):
        publisher.send(Publish(b"t/1", b"%d" % number + b"x" * (40_000 if number == 50 else 3000)))
    world.state.drained(member.client, world.now)
    world.state.jetstream.turn()
    assert 0 < member.client.size < 13_500
    world.run()
    assert len(take(member)) == 100


def test_a_dead_letter_has_no_dead_letter() -> None:
    world = Streaming()
    stream = world.stream(policy=policy_of("t/#", "$dead/#"))
    member = world.connect()
    subscribe(member, "$queue/S")
    fill(world, 1)
    for _ in range(12):
        for each in take(member, False):
            member.send(Ack(4, each.packet_id, 0x80))
        world.advance(1.1)
    assert list(stream.index.topics) == [b"t/1", b"$dead/S/t/1"]
    assert world.dropped["max_deliveries"] == 1


def test_what_a_consumer_pushes_to_a_topic_of_readers_reaches_no_group() -> None:
    world = Streaming()
    stream = world.stream()
    member = world.connect()
    subscribe(member, "$share/g/$stream/S/#")
    policy = ConsumerPolicy()
    policy.deliver_to = b"$stream/S/t"
    world.state.jetstream.add_consumer(stream, "push", policy, b"{}", world.now, b"")
    fill(world, 1)
    assert [each.topic for each in take(member)] == [b"t/1"]


def test_after_a_restart_a_late_puback_acknowledges_no_other_message_of_a_queue() -> None:
    world = StoredStreaming()
    client = world.connect("worker", properties=LASTS)
    subscribe(client, "$queue/S")
    fill(world, 1)
    (late,) = take(client, False)
    world.advance(1.0)
    world.restart()
    client = world.connect("worker", clean_start=False, properties=LASTS)
    fill(world, 1, first=2)
    (other,) = take(client, False)
    assert other.payload == b"2"
    client.send(Ack(4, late.packet_id))
    consumer = world.sequenced.consumers["mqtt-queue"]
    assert isinstance(consumer, BoundConsumer)
    assert consumer.num_ack_pending() == 2


def test_a_will_does_not_go_to_those_who_read_a_stream() -> None:
    world = Streaming()
    world.stream()
    member = world.connect("member")
    subscribe(member, "$share/g/$stream/S/#")
    other = world.open(client_id="other")
    other.send(Connect(client_id="other", version=5, will=Will(b"$stream/S/t", b"x", 1)))
    assert other.expect(Connack).reason == 0x90
    other.drop()
    world.run()
    assert take(member) == []
