"""Single steps of the relay that worlds reach rarely, and what its table has."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from tests.bridges.bridge_world import BridgeWorld

from starlingmq.bridges.bridge_relay import (
    BRIDGE_TABLE,
    ENDED,
    EVENTS,
    JOINING,
    PHASES,
    RUNNING,
    SETTLING,
    WAITING_MAX,
    BridgeCounts,
    BridgeRelay,
    Leg,
    NearSession,
)
from starlingmq.bridges.site_mark import mark_of
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.client.options import ConnectOptions
from starlingmq.client.state import ClientState
from starlingmq.config.bridges_section import BridgeTopic
from starlingmq.core.publish.bridges import MARK
from starlingmq.wire.mqtt import Connack, ack_frame, encode, publish_frame
from starlingmq.wire.primitives import encode_varint
from starlingmq.wire.properties import MESSAGE_EXPIRY_INTERVAL, USER_PROPERTY, Properties, encode_properties

TOPICS = (BridgeTopic(filter="#", direction="both"),)


def relay_of(version: int = 5, clean: bool = False) -> BridgeRelay:
    options = ConnectOptions(client_id="far", version=version, clean_start=clean)
    far = Leg(ClientState(options), version, TopicMap(TOPICS, outwards=False), "far")
    near = Leg(ClientState(ConnectOptions(client_id="near")), 5, TopicMap(TOPICS, outwards=True), "near")
    relay = BridgeRelay(far, near, lambda: NearSession({}, [], set(), set()), clean, True, BridgeCounts())
    far.state.connection_made(0.0)
    far.state.take(0.0)
    return relay


def running(version: int = 5) -> BridgeRelay:
    relay = relay_of(version)
    relay.phase = RUNNING
    return relay


def message(qos: int, packet_id: int, dup: bool = False, version: int = 5) -> bytes:
    return publish_frame(b"a", b"text", qos, False, dup, packet_id, version, b"")


def test_each_phase_has_an_action_for_each_event() -> None:
    assert set(BRIDGE_TABLE) == {(phase, event) for phase in range(len(PHASES)) for event in range(len(EVENTS))}


def test_bytes_may_be_split_anywhere() -> None:
    stream = message(2, 1) + ack_frame(0x62, 9) + message(0, 0) + ack_frame(0x70, 8) + message(1, 300)
    whole = running()
    whole.received(whole.far, stream, 0.0)
    expected = whole.take(whole.near, 0.0)
    assert expected
    for cut in range(1, len(stream)):
        relay = running()
        relay.received(relay.far, stream[:cut], 0.0)
        relay.received(relay.far, stream[cut:], 0.0)
        assert relay.take(relay.near, 0.0) == expected
    relay = running()
    for at in range(len(stream)):
        relay.received(relay.far, stream[at : at + 1], 0.0)
    assert relay.take(relay.near, 0.0) == expected


def test_a_new_message_with_the_packet_id_of_a_held_one_releases_that() -> None:
    relay = running()
    relay._held = {7}
    relay.received(relay.far, message(2, 7), 0.0)
    written = relay.take(relay.near, 0.0)
    assert written.startswith(ack_frame(0x62, 7)) and written[4] == 0x34
    relay.received(relay.near, ack_frame(0x70, 7) + ack_frame(0x50, 7), 0.0)
    assert relay.take(relay.far, 0.0) == ack_frame(0x50, 7), "the first PUBCOMP is for a message that is forgotten"
    relay.received(relay.near, ack_frame(0x70, 7), 0.0)
    assert relay.take(relay.far, 0.0) == ack_frame(0x70, 7)


@pytest.mark.parametrize("first", [message(2, 7, dup=True), ack_frame(0x62, 7)])
def test_a_sender_that_knows_its_handshake_goes_on_with_it(first: bytes) -> None:
    relay = running()
    relay._held = {7}
    relay.received(relay.far, first, 0.0)
    assert relay.take(relay.near, 0.0)[0] == first[0]
    assert relay._reused == set()


def test_a_clean_start_of_3_1_1_is_followed_by_another_connect() -> None:
    relay = relay_of(version=4, clean=True)
    relay.received(relay.far, encode(Connack(False, 0), 4), 0.0)
    assert (relay.phase, relay.problem, relay.begin_clean) == (ENDED, "", False)


def test_an_attempt_that_finds_no_far_session_and_is_cut_is_followed_by_a_clean_one() -> None:
    relay = relay_of()
    relay.received(relay.far, encode(Connack(False, 0), 5), 0.0)
    assert relay.phase == JOINING
    relay.lost(relay.far, "cut")
    assert relay.begin_clean
    again = relay_of(clean=True)
    again.lost(again.far, "cut")
    assert again.begin_clean, "it does not know what became of its CONNECT"


def test_an_attempt_that_finds_the_far_session_and_is_cut_is_followed_by_one_that_subscribes() -> None:
    relay = relay_of()
    relay.renews = False
    assert relay.unsure
    relay.received(relay.far, encode(Connack(True, 0), 5), 0.0)
    assert not relay.unsure and not relay.begin_clean
    relay = relay_of()
    relay.received(relay.far, encode(Connack(True, 0), 5), 0.0)
    assert relay.unsure, "it was to subscribe, and has not"


def test_messages_of_qos_0_that_wait_are_bounded() -> None:
    relay = relay_of()
    relay.phase = SETTLING
    relay.received(relay.far, message(0, 0) * (WAITING_MAX + 2) + message(1, 1), 0.0)
    assert relay.far.waiting == [message(0, 0)] * WAITING_MAX + [message(1, 1)]
    assert relay.counts.kept_out == 2


@pytest.mark.parametrize("version", ["5.0", "3.1.1"])
def test_a_far_broker_may_send_more_than_the_near_one_holds(version: str) -> None:
    """PUBRELs behind the messages that wait are read: else nothing would make room."""
    world = BridgeWorld(1, kind="pair", version=version, room=1, losses=False, frail=False)
    world.calm("at first")
    publisher = next(each for each in world.publishers if each.site is world.sites["b"])
    for _ in range(20):
        world.publish(publisher)
    world.calm("with many messages")
    assert world.carriers[0].ran == 1


@pytest.mark.parametrize("seed", range(200))
def test_the_fast_way_of_a_message_has_the_rules_of_the_other_one(seed: int) -> None:
    """Topics that are not remembered go the other way."""
    random = Random(f"plain {seed}")
    version = random.choice([4, 5])
    largest, retain, retains = random.choice([0, 0, 20, 60]), random.random() < 0.7, random.random() < 0.7
    held = set(random.sample(range(1, 6), random.randint(0, 2)))
    fast, other = relays = [running(version), running(version)]
    for relay in relays:
        relay.retain = retain
        relay._held = set(held)
        for leg in (relay.near, relay.far):
            leg.max_packet, leg.retains = largest, retains
            leg.added = encode_varint(len(mark_of(leg.site))) + mark_of(leg.site)
    ways = Counter[bool]()
    for _ in range(60):
        inwards = random.random() < 0.5
        frame = random_publish(random, version if inwards else 5)
        for relay in relays:
            leg = relay.far if inwards else relay.near
            if relay is other:
                leg.topics.known.clear()
            else:
                ways[bool(leg.topics.known.get(TOPIC_NAMES[0]))] += 1
            relay.received(leg, frame, 0.0)
        for one, two in ((fast.near, other.near), (fast.far, other.far)):
            assert fast.take(one, 0.0) == other.take(two, 0.0)
        assert vars_of(fast) == vars_of(other)
        if fast.ended():
            break


TOPIC_NAMES = [b"a", b"a/b", b"$SYS/x", "\u00e9".encode()]


def random_publish(random: Random, version: int) -> bytes:
    """Now and then one that is wrong."""
    first = 0x30 | random.choice([0, 0, 2, 2, 4, 4, 6 if random.random() < 0.02 else 0])
    first |= random.random() < 0.3
    first |= 8 if random.random() < 0.1 and first & 6 else 0
    topic = random.choice(TOPIC_NAMES)
    packet_id = random.randint(0 if random.random() < 0.05 else 1, 6).to_bytes(2, "big") if first & 6 else b""
    properties = b""
    if version == 5:
        chosen: list[Properties] = [{}, {}, {}, {MESSAGE_EXPIRY_INTERVAL: 5}, {USER_PROPERTY: [("k", "v")]}]
        chosen += [{USER_PROPERTY: [(MARK, random.choice(["far", "near", "else"]))]}]
        properties = encode_properties(random.choice(chosen))
    payload = random.randbytes(random.choice([0, 1, 5, 20, 60, 130]))
    body = len(topic).to_bytes(2, "big") + topic + packet_id + properties + payload
    if random.random() < 0.01:
        body = body[: random.randint(0, 3)]
    return bytes([first]) + encode_varint(len(body)) + body


def vars_of(relay: BridgeRelay) -> dict[str, object]:
    counts = relay.counts
    return {
        "phase": relay.phase,
        "problem": relay.problem,
        "held": relay._held,
        "reused": relay._reused,
        "silent": relay._silent,
        "out": (counts.messages_out, counts.bytes_out),
        "in": (counts.messages_in, counts.bytes_in),
        "kept out": counts.kept_out,
        "again": counts.again,
    }
