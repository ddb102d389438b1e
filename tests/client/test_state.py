"""The client's state machine against a scripted server, under a clock the test moves."""

from __future__ import annotations

import pytest

from starlingmq.client.events import Challenged, Completed, Connected, Ended, Refused
from starlingmq.client.options import ConnectOptions, Subscription
from starlingmq.client.state import CLOSING
from starlingmq.wire.mqtt import encode
from starlingmq.wire.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from starlingmq.wire.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    Properties,
)
from starlingmq.wire.reasons import Reason

from .script import VERSIONS, Line, line, only


def publishes(sent: list[Packet]) -> list[tuple[bytes, bool]]:
    return [(each.payload, each.dup) for each in sent if isinstance(each, Publish)]


# Connecting


@pytest.mark.parametrize("version", VERSIONS)
def test_connect_says_what_the_options_say(version: int) -> None:
    will = Will(b"w", b"gone", 1, True)
    options = ConnectOptions(
        client_id="c", version=version, keep_alive=30, username="u", password=b"p", will=will, session_expiry=60
    )
    client = Line(options)
    client.state.connection_made(client.now)
    announced: Properties = {SESSION_EXPIRY_INTERVAL: 60, RECEIVE_MAXIMUM: 1000} if version == 5 else {}
    assert client.sent() == [Connect(version, "c", True, 30, "u", b"p", will, announced)]


def test_only_a_server_that_has_never_answered_may_speak_another_protocol() -> None:
    client = line(clean_start=True)
    client.state.connection_made(client.now)
    late = only(client.state.tick(client.now + 10.0))
    assert isinstance(late, Ended) and late.detail == (
        "the server did not answer CONNECT within 10 s; is it an MQTT port?"
    )
    client.state.connection_lost()
    wrong = only(client.connect(session_present=True))
    assert isinstance(wrong, Ended) and wrong.detail.endswith("although a clean start was requested")
    client.state.connection_lost()
    client.state.connection_made(client.now)
    late = only(client.state.tick(client.now + 10.0))
    assert isinstance(late, Ended) and late.detail == "the server did not answer CONNECT within 10 s"


@pytest.mark.parametrize("version", VERSIONS)
def test_connack_makes_it_connected(version: int) -> None:
    client = line(version)
    event = only(client.connect(session_present=version != 3))
    assert event == Connected(version != 3, {})


@pytest.mark.parametrize(
    ("version", "sent", "understood"),
    [
        (3, 1, Reason.UNSUPPORTED_PROTOCOL_VERSION),
        (4, 2, Reason.CLIENT_IDENTIFIER_NOT_VALID),
        (4, 3, Reason.SERVER_UNAVAILABLE),
        (4, 4, Reason.BAD_USER_NAME_OR_PASSWORD),
        (4, 5, Reason.NOT_AUTHORIZED),
        (5, 0x87, Reason.NOT_AUTHORIZED),
    ],
)
def test_a_refusal_has_an_mqtt_5_reason_in_every_version(version: int, sent: int, understood: Reason) -> None:
    client = line(version)
    client.state.connection_made(client.now)
    client.sent()
    assert only(client.receive(Connack(False, sent))) == Refused(understood, {})
    assert client.receive(Connack(False, 0)) == [], "nothing counts after a refusal"


def test_the_server_must_answer_connect_in_time() -> None:
    client = line()
    client.state.connection_made(client.now)
    assert client.state.wake_at() == client.now + 10.0
    client.now += 10.0
    assert isinstance(only(client.state.tick(client.now)), Ended)


@pytest.mark.parametrize("packet", [Pingresp(), Publish(b"t", b"x"), Suback(1, [0])])
def test_nothing_may_come_before_connack(packet: Packet) -> None:
    client = line()
    client.state.connection_made(client.now)
    event = only(client.receive(packet))
    assert isinstance(event, Ended)
    assert event.reason == Reason.PROTOCOL_ERROR


def test_a_session_that_a_clean_start_should_have_ended_is_refused() -> None:
    client = line(clean_start=True)
    assert isinstance(only(client.connect(session_present=True)), Ended)  # [MQTT-3.2.2-4]


def test_an_assigned_client_id_and_the_session_are_used_again() -> None:
    client = Line(ConnectOptions(session_expiry=60))
    client.connect(properties={ASSIGNED_CLIENT_IDENTIFIER: "given"})
    client.state.connection_lost()
    client.state.connection_made(client.now)
    (connect,) = client.sent()
    assert isinstance(connect, Connect)
    assert (connect.client_id, connect.clean_start) == ("given", False)


def test_a_clean_session_of_3_1_1_is_clean_every_time() -> None:
    client = line(4, clean_start=True)
    client.connect()
    client.state.connection_lost()
    client.state.connection_made(client.now)
    (connect,) = client.sent()
    assert isinstance(connect, Connect)
    assert connect.clean_start


@pytest.mark.parametrize("packet", [Subscribe(1, [SubscribeRequest(b"t")]), Pingreq(), Connack(), Unsuback(9, [0, 0])])
def test_invalid_packets_of_a_server_end_the_connection_or_are_ignored(packet: Packet) -> None:
    client = line()
    client.connect()
    events = client.receive(packet)
    if isinstance(packet, Unsuback):
        assert events == []
        return
    ended = only(events)
    assert isinstance(ended, Ended)
    assert not ended.by_server
    assert client.sent() == [Disconnect(Reason.PROTOCOL_ERROR)]


def test_a_disconnect_of_the_server_is_told_with_its_reason() -> None:
    client = line()
    client.connect()
    ended = only(client.receive(Disconnect(Reason.SESSION_TAKEN_OVER)))
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.by_server) == (Reason.SESSION_TAKEN_OVER, True)
    assert "session taken over" in ended.detail
    assert client.state.phase == CLOSING


@pytest.mark.parametrize("version", [3, 4])
def test_3_x_servers_have_no_disconnect(version: int) -> None:
    client = line(version)
    client.connect()
    assert isinstance(only(client.state.receive(b"\xe0\x00", client.now)), Ended)
    assert client.sent() == [], "and 3.x clients have no reason to give"


def test_an_enhanced_authentication_is_led_by_the_caller() -> None:
    client = line()
    client.state.connection_made(client.now)
    client.sent()
    step: Properties = {AUTHENTICATION_METHOD: "m", AUTHENTICATION_DATA: b"1"}
    assert only(client.receive(Auth(Reason.CONTINUE_AUTHENTICATION, step))) == Challenged(0x18, step)
    client.state.authenticate(Reason.CONTINUE_AUTHENTICATION, step)
    assert client.sent() == [Auth(Reason.CONTINUE_AUTHENTICATION, step)]
    assert isinstance(only(client.receive(Connack())), Connected)


# Publishing


@pytest.mark.parametrize("version", VERSIONS)
def test_an_early_publication_waits_for_the_connection(version: int) -> None:
    client = line(version)
    first = client.state.publish("t", b"0")
    second = client.state.publish("t", b"1", 1)
    assert client.state.events() == []
    events = client.connect()
    assert Completed(first, [0], {}) in events
    assert client.sent() == [Publish(b"t", b"0"), Publish(b"t", b"1", 1, packet_id=1)]
    assert client.receive(Ack(PUBACK, 1)) == [Completed(second, [0], {})]
    assert client.state.outstanding == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_2_goes_through_its_four_packets(version: int) -> None:
    client = line(version)
    client.connect()
    token = client.state.publish("t", b"x", 2)
    assert client.sent() == [Publish(b"t", b"x", 2, packet_id=1)]
    assert client.receive(Ack(PUBREC, 1)) == []
    assert client.sent() == [Ack(PUBREL, 1)]
    assert client.receive(Ack(PUBCOMP, 1)) == [Completed(token, [0], {})]


def test_a_reason_of_success_is_passed_on() -> None:
    client = line()
    client.connect()
    token = client.state.publish("t", b"x", 1)
    client.sent()
    assert client.receive(Ack(PUBACK, 1, Reason.NO_MATCHING_SUBSCRIBERS)) == [Completed(token, [0x10], {})]


def test_a_refused_qos_2_message_is_over_and_its_id_is_free() -> None:
    client = line()
    client.connect(properties={RECEIVE_MAXIMUM: 1})
    first = client.state.publish("t", b"1", 2)
    client.state.publish("t", b"2", 2)
    client.sent()
    assert client.receive(Ack(PUBREC, 1, Reason.QUOTA_EXCEEDED)) == [Completed(first, [0x97], {})]
    assert client.sent() == [Publish(b"t", b"2", 2, packet_id=2)], "no PUBREL, and the next message has its turn"


def test_the_receive_maximum_of_the_server_is_kept() -> None:
    client = line()
    client.connect(properties={RECEIVE_MAXIMUM: 2})
    for number in range(5):
        client.state.publish("t", b"%d" % number, 1 + number % 2)
    assert [payload for payload, _ in publishes(client.sent())] == [b"0", b"1"]
    client.receive(Ack(PUBREC, 2))
    assert client.sent() == [Ack(PUBREL, 2)], "a released message still counts"
    client.receive(Ack(PUBCOMP, 2))
    assert [payload for payload, _ in publishes(client.sent())] == [b"2"]
    client.receive(Ack(PUBACK, 1), Ack(PUBACK, 3))
    assert [payload for payload, _ in publishes(client.sent())] == [b"3", b"4"]


def test_an_acknowledgement_that_comes_twice_does_not_widen_the_window() -> None:
    client = line()
    client.connect(properties={RECEIVE_MAXIMUM: 1})
    for number in range(3):
        client.state.publish("t", b"%d" % number, 1)
    client.sent()
    client.receive(Ack(PUBACK, 1), Ack(PUBACK, 1))
    assert len(publishes(client.sent())) == 1


def test_an_acknowledgement_of_the_wrong_kind_is_a_protocol_error() -> None:
    client = line()
    client.connect()
    client.state.publish("t", b"x", 1)
    client.sent()
    assert isinstance(only(client.receive(Ack(PUBREC, 1))), Ended)


@pytest.mark.parametrize(
    ("announced", "qos", "retain", "properties", "refusal"),
    [
        ({MAXIMUM_QOS: 1}, 2, False, {}, Reason.QOS_NOT_SUPPORTED),
        ({RETAIN_AVAILABLE: 0}, 0, True, {}, Reason.RETAIN_NOT_SUPPORTED),
        ({MAXIMUM_PACKET_SIZE: 20}, 1, False, {}, Reason.PACKET_TOO_LARGE),
        ({TOPIC_ALIAS_MAXIMUM: 1}, 0, False, {TOPIC_ALIAS: 2}, Reason.TOPIC_ALIAS_INVALID),
    ],
)
def test_packets_beyond_the_limits_of_the_server_are_not_sent(
    announced: Properties, qos: int, retain: bool, properties: Properties, refusal: Reason
) -> None:
    client = line()
    client.connect(properties=announced)
    token = client.state.publish("t", b"x" * 20, qos, retain, properties)
    assert client.state.events() == [Completed(token, [refusal], {})]
    assert client.sent() == []
    client.state.publish("t", b"y")
    assert client.sent() == [Publish(b"t", b"y")], "others are not held up"


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "x" * 65_536])
def test_an_impossible_topic_is_refused_at_once(topic: str) -> None:
    with pytest.raises(ValueError):
        line().state.publish(topic, b"")


def test_waiting_messages_are_bounded() -> None:
    client = Line(ConnectOptions(client_id="c", max_queued=2))
    client.state.publish("t", b"")
    client.state.publish("t", b"")
    with pytest.raises(ValueError, match="max_queued"):
        client.state.publish("t", b"")


# Coming back


@pytest.mark.parametrize("version", [4, 5])
def test_the_window_is_sent_again_in_its_order(version: int) -> None:
    client = line(version)
    client.connect()
    for payload, qos in [(b"a", 1), (b"b", 2), (b"c", 2), (b"d", 1)]:
        client.state.publish("t", payload, qos)
    client.sent()
    client.receive(Ack(PUBREC, 2))
    client.sent()
    assert client.reconnect() == [
        Publish(b"t", b"a", 1, dup=True, packet_id=1),
        Ack(PUBREL, 2),  # never PUBLISH again [MQTT-4.3.3-6]
        Publish(b"t", b"c", 2, dup=True, packet_id=3),
        Publish(b"t", b"d", 1, dup=True, packet_id=4),
    ]


def test_resending_keeps_the_new_receive_maximum_and_goes_before_new_messages() -> None:
    client = line()
    client.connect()
    for number in range(3):
        client.state.publish("t", b"%d" % number, 1)
    client.sent()
    client.state.connection_lost()
    client.state.publish("t", b"new", 1)
    client.connect(session_present=True, properties={RECEIVE_MAXIMUM: 2})
    assert publishes(client.sent()) == [(b"0", True), (b"1", True)]
    client.receive(Ack(PUBACK, 1))
    assert publishes(client.sent()) == [(b"2", True)]
    client.receive(Ack(PUBACK, 2))
    assert publishes(client.sent()) == [(b"new", False)]


def test_an_acknowledgement_before_its_resending_makes_it_unnecessary() -> None:
    client = line()
    client.connect()
    for number in range(3):
        client.state.publish("t", b"%d" % number, 1)
    client.sent()
    client.state.connection_lost()
    client.connect(session_present=True, properties={RECEIVE_MAXIMUM: 1})
    assert publishes(client.sent()) == [(b"0", True)]
    client.receive(Ack(PUBACK, 2))
    assert client.sent() == [], "it took no room on this connection and gives none"
    client.receive(Ack(PUBACK, 1))
    assert publishes(client.sent()) == [(b"2", True)]


def test_without_a_session_everything_begins_again_as_new() -> None:
    client = line()
    client.connect()
    client.state.subscribe([Subscription(filter="a/#", qos=2), Subscription(filter="b")])
    client.sent()
    client.receive(Suback(1, [2, 0x87]))
    for payload in (b"x", b"y"):
        client.state.publish("t", payload, 2)
    client.sent()
    client.receive(Ack(PUBREC, 2))
    client.sent()
    sent = client.reconnect(session_present=False)
    renewed, *messages = sent
    assert isinstance(renewed, Subscribe)
    assert renewed.subscriptions == [SubscribeRequest(b"a/#", 2)], "what is in effect, before any message"
    assert publishes(messages) == [(b"x", False), (b"y", False)]
    ids = [each.packet_id for each in sent if isinstance(each, Subscribe | Publish)]
    assert len(set(ids)) == 3
    assert client.receive(Suback(ids[0], [2])) == [Completed(0, [2], {})]


def test_a_connection_is_handed_over_with_the_beginning_of_the_next_frame() -> None:
    client = line()
    whole = encode(Publish(topic=b"t", payload=b"hello"), 5)
    client.state.receive(whole[:4], client.now)
    assert client.state.hand_over() == whole[:4]


def test_an_unanswered_subscription_is_asked_for_again() -> None:
    client = line()
    client.connect()
    token = client.state.subscribe([Subscription(filter="a", qos=1)], {SUBSCRIPTION_IDENTIFIER: [7]})
    client.sent()
    (again,) = client.reconnect()
    assert isinstance(again, Subscribe)
    assert again.properties == {SUBSCRIPTION_IDENTIFIER: [7]}
    assert client.receive(Suback(again.packet_id, [1])) == [Completed(token, [1], {})]


def test_an_ended_subscription_is_not_renewed() -> None:
    client = line()
    client.connect()
    client.state.subscribe([Subscription(filter="a")])
    client.receive(Suback(1, [0]))
    token = client.state.unsubscribe(["a"])
    assert Unsubscribe(2, [b"a"]) in client.sent()
    assert client.receive(Unsuback(2, [0])) == [Completed(token, [0], {})]
    assert client.reconnect(session_present=False) == []


def test_many_subscriptions_are_renewed_in_batches() -> None:
    client = line()
    client.connect()
    client.state.subscribe([Subscription(filter=f"f/{number}") for number in range(250)])
    client.sent()
    client.receive(Suback(1, [0] * 250))
    again = client.reconnect(session_present=False)
    assert [len(each.subscriptions) for each in again if isinstance(each, Subscribe)] == [100, 100, 50]


def test_a_miscounted_suback_is_a_protocol_error() -> None:
    client = line()
    client.connect()
    client.state.subscribe([Subscription(filter="a")])
    assert isinstance(only(client.receive(Suback(1, [0, 0]))), Ended)
