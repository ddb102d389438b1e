"""A client receives, keeps its connection alive, and disconnects."""

from __future__ import annotations

import math

import pytest

from starlingmq.client.events import Ended, Event, Message
from starlingmq.client.options import ConnectOptions
from starlingmq.wire.mqtt import encode
from starlingmq.wire.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Ack,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
)
from starlingmq.wire.properties import (
    MESSAGE_EXPIRY_INTERVAL,
    SERVER_KEEP_ALIVE,
    SUBSCRIPTION_IDENTIFIER,
)
from starlingmq.wire.reasons import Reason

from .script import VERSIONS, Line, line, only

# Receiving


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_is_acknowledged_when_it_is_taken(version: int) -> None:
    client = line(version)
    client.connect()
    message = only(client.receive(Publish(b"t", b"x", 1, packet_id=5)))
    assert isinstance(message, Message)
    assert client.sent() == []
    client.state.taken(message)
    assert client.sent() == [Ack(PUBACK, 5)]


def test_qos_2_is_given_once_and_completed() -> None:
    client = line()
    client.connect()
    publish = Publish(b"t", b"x", 2, packet_id=5)
    message = only(client.receive(publish))
    assert isinstance(message, Message)
    assert client.receive(publish) == [], "not taken yet: nothing to say"
    assert client.sent() == []
    client.state.taken(message)
    assert client.receive(publish) == []
    assert client.sent() == [Ack(PUBREC, 5), Ack(PUBREC, 5)]
    client.receive(Ack(PUBREL, 5), Ack(PUBREL, 5))
    assert client.sent() == [Ack(PUBCOMP, 5), Ack(PUBCOMP, 5, Reason.PACKET_IDENTIFIER_NOT_FOUND)]
    assert isinstance(only(client.receive(publish)), Message), "the id is free for another message"


def test_qos_2_taken_over_a_reconnection_is_given_once() -> None:
    client = line()
    client.connect()
    message = only(client.receive(Publish(b"t", b"x", 2, packet_id=5)))
    assert isinstance(message, Message)
    assert client.reconnect() == []
    repeated = Publish(b"t", b"x", 2, dup=True, packet_id=5)
    assert client.receive(repeated) == []
    client.state.taken(message)
    assert client.sent() == [Ack(PUBREC, 5)], "owed to the connection that repeated it"
    # taken between the connections: the repetition is answered at once
    client.receive(Ack(PUBREL, 5))
    second = only(client.receive(Publish(b"t", b"y", 2, packet_id=5)))
    assert isinstance(second, Message)
    client.state.connection_lost()
    client.state.taken(second)
    client.connect(session_present=True)
    assert client.receive(Publish(b"t", b"y", 2, dup=True, packet_id=5)) == []
    assert client.sent() == [Ack(PUBREC, 5)]


def test_messages_of_an_old_connection_are_not_acknowledged_on_the_next() -> None:
    client = line()
    client.connect()
    message = only(client.receive(Publish(b"t", b"x", 1, packet_id=5)))
    assert isinstance(message, Message)
    client.reconnect()
    client.state.taken(message)
    assert client.sent() == []


def test_a_message_of_a_lost_session_does_not_answer_for_its_successor() -> None:
    client = line()
    client.connect()
    old = only(client.receive(Publish(b"t", b"old", 2, packet_id=5)))
    assert isinstance(old, Message)
    client.reconnect(session_present=False)
    new = only(client.receive(Publish(b"t", b"new", 2, packet_id=5)))
    assert isinstance(new, Message)
    client.state.taken(old)
    assert client.sent() == []
    client.state.taken(new)
    assert client.sent() == [Ack(PUBREC, 5)]


def test_more_unacknowledged_messages_than_allowed_end_the_connection() -> None:
    client = Line(ConnectOptions(client_id="c", receive_maximum=2))
    client.connect()
    events = client.receive(*[Publish(b"t", b"x", 1, packet_id=number) for number in (1, 2, 3)])
    assert [type(each) for each in events] == [Message, Message, Ended]
    assert client.sent() == [Disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)]


def test_properties_of_a_message_are_one_dictionary() -> None:
    client = line()
    client.connect()
    packet = Publish(b"t", b"x", expiry=9, subscription_ids=[3, 4], properties=b"\x03\x00\x01a")
    message = only(client.receive(packet))
    assert isinstance(message, Message)
    assert message.properties == {3: "a", MESSAGE_EXPIRY_INTERVAL: 9, SUBSCRIPTION_IDENTIFIER: [3, 4]}


def test_topic_aliases_stand_for_the_topic_until_the_connection_ends() -> None:
    client = Line(ConnectOptions(client_id="c", topic_alias_maximum=2, clean_start=False))
    client.connect()
    events = client.receive(Publish(b"long", b"1", topic_alias=2), Publish(b"", b"2", topic_alias=2))
    assert [each.topic for each in events if isinstance(each, Message)] == ["long", "long"]
    client.reconnect()
    ended = only(client.receive(Publish(b"", b"3", topic_alias=2)))
    assert isinstance(ended, Ended)
    assert ended.reason == Reason.TOPIC_ALIAS_INVALID


def test_a_topic_alias_above_what_we_allowed_ends_the_connection() -> None:
    client = line()
    client.connect()
    client.receive(Publish(b"t", b"", topic_alias=1))
    assert client.sent() == [Disconnect(Reason.TOPIC_ALIAS_INVALID)]


@pytest.mark.parametrize("topic", [b"\xff", b"a\0"])
def test_a_topic_that_is_no_text_ends_the_connection(topic: bytes) -> None:
    client = line()
    client.connect()
    client.state.receive(b"\x30%c\0%c%b\0" % (3 + len(topic), len(topic), topic), client.now)
    assert client.sent() == [Disconnect(Reason.MALFORMED_PACKET)]


def test_a_packet_over_our_limit_ends_the_connection_before_it_is_there() -> None:
    client = Line(ConnectOptions(client_id="c", max_packet_size=100))
    client.connect()
    client.state.receive(b"\x30\xff\x01", client.now)
    assert client.sent() == [Disconnect(Reason.PACKET_TOO_LARGE)]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_it_does_not_matter_how_the_network_divides_the_bytes(step: int) -> None:
    client = line()
    client.connect()
    wanted = [Publish(b"t", b"a" * size, size % 2, packet_id=size % 2) for size in (0, 3, 200, 20_000)]
    stream = b"".join(encode(each, 5) for each in wanted)
    events: list[Event] = []
    for at in range(0, len(stream), step):
        events += client.state.receive(stream[at : at + step], client.now)
    assert [len(each.payload) for each in events if isinstance(each, Message)] == [0, 3, 200, 20_000]


# Keeping alive


def test_an_idle_client_pings_before_its_keep_alive_is_over() -> None:
    client = line(keep_alive=10)
    client.connect()
    client.sent()
    assert client.state.wake_at() == client.now + 8.0
    client.now += 8.0
    assert client.state.tick(client.now) == []
    assert client.sent() == [Pingreq()]
    client.receive(Pingresp())
    assert client.state.wake_at() == client.now + 8.0


def test_a_silent_server_is_given_up() -> None:
    client = line(keep_alive=10)
    client.connect()
    client.now += 8.0
    client.state.tick(client.now)
    client.sent()
    assert client.state.wake_at() == client.now + 10.0
    client.now += 10.0
    ended = only(client.state.tick(client.now))
    assert isinstance(ended, Ended)
    assert ended.reason == Reason.KEEP_ALIVE_TIMEOUT


def test_a_server_that_we_do_not_read_is_not_given_up() -> None:
    client = line(keep_alive=10)
    client.connect()
    client.now += 8.0
    client.state.tick(client.now, reading=False)
    client.sent()
    client.now += 10.0
    assert client.state.tick(client.now, reading=False) == []
    assert client.sent() == [Pingreq()], "but it still hears that we are there"


def test_the_keep_alive_of_the_server_counts() -> None:
    client = line(keep_alive=60)
    client.connect(properties={SERVER_KEEP_ALIVE: 5})
    client.sent()
    assert client.state.wake_at() == client.now + 4.0


def test_without_keep_alive_there_is_nothing_to_wake_up_for() -> None:
    client = line(keep_alive=0)
    client.connect()
    assert client.state.wake_at() == math.inf
    client.now += 1e6
    assert client.state.tick(client.now) == []


# Leaving


@pytest.mark.parametrize("version", VERSIONS)
def test_goodbye(version: int) -> None:
    client = line(version)
    client.connect()
    client.state.disconnect()
    assert client.sent() == [Disconnect()]
    assert client.receive(Pingresp()) == []


def test_a_goodbye_with_the_will_exists_in_mqtt_5_only() -> None:
    for version, expected in ((4, []), (5, [Disconnect(Reason.DISCONNECT_WITH_WILL)])):
        client = line(version)
        client.connect()
        client.state.disconnect(Reason.DISCONNECT_WITH_WILL)
        assert client.sent() == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 6},
        {"keep_alive": 70_000},
        {"max_inflight": 0},
        {"version": 4, "clean_start": False},
        {"version": 3},
    ],
)
def test_impossible_options_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        ConnectOptions(**fields)  # type: ignore[arg-type]
