"""Bounds on the state that a client can create in the broker."""

from __future__ import annotations

import pytest
from tests.conformance.kit import connect_frame, utf8
from tests.harness import World

from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish, Will
from starlingmq.wire.reasons import Reason


def test_a_connect_may_be_as_large_as_connect_size_says() -> None:
    world = World(connect_size=300)
    large = world.open()
    large.send(Connect(5, "c", will=Will(b"w", b"x" * 300)))
    assert large.expect(Connack).reason == Reason.PACKET_TOO_LARGE
    assert large.closed
    assert world.connect(will=Will(b"w", b"x" * 200)).connack.reason == 0


def test_packets_after_connect_in_the_same_read_may_be_larger() -> None:
    world = World(connect_size=300)
    client = world.open()
    client.send_all([Connect(5, "c"), Publish(b"t", b"x" * 1000, qos=1, packet_id=1)])
    client.expect(Connack)
    assert client.expect(Ack).packet_id == 1


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_connect_that_is_too_long_is_refused_at_its_fixed_header(version: int) -> None:
    world = World(connect_size=300)
    client = world.open(version)
    for byte in connect_frame(version, utf8("c" * 400))[:3]:
        assert not client.closed
        client.send(bytes((byte,)))
    assert client.closed
    assert [notice.reason for notice in world.notices] == ["packet_too_large"]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("first", [0x30, 0x82, 0xA2, 0x40, 0x62, 0xF0])
def test_a_packet_that_is_too_long_is_refused_at_its_fixed_header(version: int, first: int) -> None:
    world = World(connect_size=300, max_packet_size=1000)
    client = world.connect(version=version)
    client.send(bytes((first, 0xE9)))
    assert not client.closed
    client.send(b"\x07")  # 1001 bytes and the header
    assert client.closed
    assert [notice.reason for notice in world.notices] == ["packet_too_large"]


@pytest.mark.parametrize("first", [0x00, 0x20, 0x30, 0x3D, 0x82, 0xC0, 0xE0, 0xF0, 0x16, 0x47])
def test_a_first_packet_other_than_connect_is_refused_at_its_first_byte(first: int) -> None:
    world = World()
    client = world.open()
    client.send(bytes((first,)))
    assert client.closed
    assert [notice.reason for notice in world.notices] == ["protocol_error"]


def test_the_form_of_a_length_does_not_depend_on_where_a_read_ends() -> None:
    for version in (3, 4, 5):  # PINGREQ with a length in one byte more than it needs, which only MQTT 5 forbids
        for at in range(1, 4):
            world = World()
            client = world.connect(version=version)
            client.send(b"\xc0\x80\x00"[:at])
            client.send(b"\xc0\x80\x00"[at:])
            assert client.closed == (version == 5)
            assert [notice.reason for notice in world.notices] == ["malformed_packet"] * (version == 5)
