"""DISCONNECT and how errors are handled (MQTT 3.14, 4.13; 3.1.1: 4.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Write
from starlingmq.net.driver import Driver
from starlingmq.storage.store import NoStore
from starlingmq.wire.mqtt import Disconnect, Pingreq, Pingresp, Publish
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.kit import ALL, BOTH, connect_frame, ended, frame, publish_frame, sole, subscriber, utf8, will
from tests.conformance.streams import Stream
from tests.harness import World


@clause(v3="3.14.1-1 2.2.2-2", v5="3.14.1-1 2.1.3-1")
@pytest.mark.parametrize("first", [0xE1, 0xE2, 0xE4, 0xE8])
@pytest.mark.parametrize("version", BOTH)
def test_disconnect_with_flags_is_malformed_and_no_goodbye(w: World, version: int, first: int) -> None:
    watcher = subscriber(w, "will")
    c = w.connect(client_id="a", version=version, will=will())
    c.send(bytes([first, 0]))
    ended(c, Reason.MALFORMED_PACKET)
    assert len(watcher.receive()) == 1


@clause(v3="2.2.2-1 2.2.2-2", v5="2.1.3-1 4.13.1-1")
@pytest.mark.parametrize("packet", [b"\xc1\x00", b"\xc8\x00", b"\x41\x02\0\1", b"\x52\x02\0\1", b"\x71\x02\0\1"])
@pytest.mark.parametrize("version", ALL)
def test_flags_where_none_belong_are_malformed(w: World, version: int, packet: bytes) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(packet)
    ended(c, Reason.MALFORMED_PACKET)


@clause(v3="2.2.2-2", v5="2.1.3-1")
@pytest.mark.parametrize("version", BOTH)
def test_a_connect_with_flags_is_malformed(w: World, version: int) -> None:
    c = w.open(version=version)
    c.send(b"\x11" + connect_frame(version)[1:])
    assert c.closed
    assert [getattr(p, "reason", None) for p in c.receive()] in ([], [Reason.MALFORMED_PACKET])


@clause(v3="4.8.0-1", v5="4.13.1-1 3.14.2-1 4.13.2-1")
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"\x00\x00", id="packet type 0"),
        pytest.param(b"\xc0\x01\x00", id="PINGREQ with a body"),
        pytest.param(b"\x40\x01\x00", id="PUBACK cut short"),
        pytest.param(b"\x30\xff\xff\xff\xff\x01", id="length of five bytes"),
        pytest.param(b"\x20\x02\x00\x00", id="CONNACK from a client"),
        pytest.param(b"\x90\x03\x00\x01\x00", id="SUBACK from a client"),
        pytest.param(b"\xb0\x02\x00\x01", id="UNSUBACK from a client"),
        pytest.param(b"\xd0\x00", id="PINGRESP from a client"),
    ],
)
@pytest.mark.parametrize("version", ALL)
def test_an_unprocessable_packet_ends_only_its_connection(w: World, version: int, packet: bytes) -> None:
    other = subscriber(w, "t", client_id="other")
    c = w.connect(client_id="a", version=version)
    c.send(packet + publish_frame("t", version=version))
    ended(c, Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR)
    other.send(Pingreq())
    assert sole(other, Pingresp) == Pingresp()


@clause(v5="3.14.4-1 3.14.4-2 4.13.2-1")
def test_after_its_disconnect_the_broker_says_no_more(w: World) -> None:
    c = subscriber(w, "t")
    before = len(c.output)
    c.send(b"\x00\x00" + b"\xc0\x00" * 5 + publish_frame("t"))
    c.send(b"\xc0\x00")
    assert c.closed
    assert c.output[before : before + 1] == b"\xe0"
    assert len(c.output) == before + 2 + c.output[before + 1]


@clause(v3="3.14.4-3", v5="3.14.4-3")
@pytest.mark.parametrize("version", ALL)
def test_nothing_sent_after_disconnect_is_processed(w: World, version: int) -> None:
    watcher = subscriber(w, "#")
    c = w.connect(client_id="a", version=version, will=will())
    c.send(b"\xe0\x00" + publish_frame("t", version=version))
    assert c.closed
    assert (c.receive(), watcher.receive()) == ([], [])


@clause(v5="3.14.2-1 4.13.1-1")
@pytest.mark.parametrize("reason", [0x01, 0x03, 0x11, 0x91, 0xFF])
def test_a_disconnect_with_a_code_that_is_none_is_a_protocol_error(w: World, reason: int) -> None:
    c = w.connect(client_id="a")
    c.send(frame(0xE0, bytes([reason, 0])))
    ended(c, Reason.PROTOCOL_ERROR, Reason.MALFORMED_PACKET)


@clause(v5="3.14.2-1")
@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x00", b"\x04", b"\x80\x00", b"\x93\x05\x1f" + utf8("hm")])
def test_a_disconnect_is_taken_in_every_form_and_not_answered(w: World, body: bytes) -> None:
    c = w.connect(client_id="a")
    c.send(frame(0xE0, body))
    assert c.closed
    assert c.receive() == []


@clause(v5="3.14.2-2")
def test_a_disconnect_from_the_broker_has_no_session_expiry(w: World) -> None:
    first = w.connect(client_id="a", properties={0x11: 100})
    w.connect(client_id="a")
    assert [sorted(p.properties) for p in first.receive() if isinstance(p, Disconnect)] in ([[]], [[0x1F]])


class BrokenStore(NoStore):
    """A store that fails, at once or when it gets to it."""

    keeps = True

    def __init__(self, later: bool) -> None:
        self.later = later

    def commit(self, writes: Sequence[Write]) -> Awaitable[None] | None:
        if not self.later:
            raise OSError("no space left on device")
        failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failing.set_exception(OSError("no space left on device"))
        return failing


@clause(v3="4.8.0-2")
@pytest.mark.parametrize("later", [False, True])
async def test_an_unstored_message_is_not_acknowledged_and_its_connection_closed(later: bool) -> None:
    state = BrokerState(MqttConfig(sys_interval=0.0), LimitsConfig(), 1.0, b"s" * 32, "test")
    driver = Driver(state, BrokenStore(later), clock=lambda: 1.0)
    stream = Stream()
    client = driver.opened(stream, "mqtt://test", "peer")
    driver.received(client, connect_frame(4, flags=0))  # a session to be kept
    await stream.ended.wait()
    assert stream.written == b""
    driver.lost(client)
    await driver.stop(0.0)


LONG_LENGTHS = {"one byte too many": 1, "two": 2, "three": 3}


def _in_long_form(packet: bytes, zeros: int) -> bytes:
    """The packet (of up to 127 bytes) with a remaining length of ``1 + zeros`` bytes."""
    return packet[:1] + bytes([packet[1] | 0x80]) + b"\x80" * (zeros - 1) + b"\0" + packet[2:]


@pytest.mark.parametrize("zeros", LONG_LENGTHS.values(), ids=LONG_LENGTHS)
@pytest.mark.parametrize("version", [3, 4])
def test_3_x_allows_a_remaining_length_of_more_bytes_than_it_needs(w: World, version: int, zeros: int) -> None:
    """That it has the fewest bytes is a rule of 5.0 alone: 3.1.1, 2.2.3 has none, and some devices pad it."""
    receiver = subscriber(w, "t", qos=2)
    c = w.open(version=version)
    c.send(_in_long_form(connect_frame(version), zeros))
    assert [type(p).__name__ for p in c.receive()] == ["Connack"]
    for packet in (
        publish_frame("t", version=version, flags=2, packet_id=1),
        publish_frame("t", version=version, flags=4, packet_id=2),
        b"\x62\x02\0\x02",  # PUBREL
        b"\x82\x06\0\x03\0\x01u\0",  # SUBSCRIBE
        b"\xc0\0",  # PINGREQ
    ):
        c.send(_in_long_form(packet, zeros))
    assert [type(p).__name__ for p in c.receive()] == ["Ack", "Ack", "Ack", "Suback", "Pingresp"]
    assert len(receiver.receive()) == 2


@pytest.mark.parametrize("zeros", LONG_LENGTHS.values(), ids=LONG_LENGTHS)
@pytest.mark.parametrize("version", [3, 4])
def test_a_padded_publish_is_passed_on_as_an_ordinary_one(w: World, version: int, zeros: int) -> None:
    """A frame of 3.x at QoS 0 is passed on as it is, unless its length is padded."""
    receiver = subscriber(w, "t", qos=0, version=4)
    c = w.connect(client_id="a", version=version)
    c.send(_in_long_form(publish_frame("t", version=version), zeros) + publish_frame("t", b"y", version=version))
    assert [(p.topic, p.payload) for p in receiver.receive() if isinstance(p, Publish)] == [(b"t", b"x"), (b"t", b"y")]
    assert not receiver.closed


@clause(v5="1.5.5-1")
@pytest.mark.parametrize("zeros", LONG_LENGTHS.values(), ids=LONG_LENGTHS)
def test_5_0_allows_no_remaining_length_of_more_bytes_than_it_needs(w: World, zeros: int) -> None:
    c = w.open(version=5)
    c.send(_in_long_form(connect_frame(5), zeros))
    assert c.closed
    for packet in (publish_frame("t"), b"\xc0\0"):
        c = w.connect(client_id="a", version=5)
        c.send(_in_long_form(packet, zeros))
        ended(c, Reason.MALFORMED_PACKET)
