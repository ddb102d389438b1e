"""MQTT over WebSocket (MQTT 6), and over a plain stream (4.2), at the edge where bytes come in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    RejectConnection,
    Request,
    TextMessage,
)

from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.net.listeners.socket_connection import SocketConnection
from starlingmq.net.listeners.websocket import WebSocketConnection
from tests.conformance.clauses import clause
from tests.conformance.kit import connect_frame
from tests.conformance.streams import Ear, Stream


class Browser:
    """The other side of a WebSocket."""

    def __init__(self, subprotocols: list[str]) -> None:
        self.ear = Ear()
        self.stream = Stream()
        self.server = WebSocketConnection(
            self.ear, ListenerGate(name="ws", paths=("/mqtt",), write_buffer=65536), "peer:1"
        )
        self.server.connection_made(self.stream)
        self.peer = WSConnection(ConnectionType.CLIENT)
        self.server.data_received(self.peer.send(Request(host="h", target="/mqtt", subprotocols=subprotocols)))

    def events(self) -> list[Event]:
        self.peer.receive_data(self.stream.take())
        return list(self.peer.events())


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """The WebSocket sets a deadline for its closing handshake, for which it wants an event loop."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        asyncio._set_running_loop(loop)
        yield
        asyncio._set_running_loop(None)


@clause(v3="6.0.0-4", v5="6.0.0-4")
@pytest.mark.parametrize("offered", [["mqtt"], ["other", "mqtt"]])
def test_the_subprotocol_is_mqtt(offered: list[str]) -> None:
    (accepted,) = Browser(offered).events()
    assert isinstance(accepted, AcceptConnection)
    assert accepted.subprotocol == "mqtt"


@clause(v3="6.0.0-3", v5="6.0.0-3")
@pytest.mark.parametrize("offered", [[], ["mqttv5"], ["MQTT"]])
def test_without_that_offer_there_is_no_websocket(offered: list[str]) -> None:
    browser = Browser(offered)
    assert isinstance(browser.events()[0], RejectConnection)
    browser.server.data_received(connect_frame())
    assert (browser.ear.heard, browser.stream.ended.is_set()) == (b"", True)


@clause(v3="6.0.0-2", v5="6.0.0-2")
@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_packets_and_frames_need_not_begin_or_end_together(cut: int) -> None:
    browser = Browser(["mqtt"])
    browser.events()
    packets = connect_frame() + b"\xc0\x00" * 3
    for at in range(0, len(packets), cut):
        browser.server.data_received(browser.peer.send(BytesMessage(data=packets[at : at + cut])))
    assert browser.ear.heard == packets


@clause(v3="6.0.0-1", v5="6.0.0-1")
def test_the_broker_sends_binary_frames() -> None:
    browser = Browser(["mqtt"])
    browser.events()
    for data in (b"\x20\x02\0\0", b"\xd0\0" * 100, b"x" * 70_000):
        browser.ear.transport.write(data)
        found = browser.events()
        assert all(isinstance(event, BytesMessage) for event in found)
        assert b"".join(bytes(event.data) for event in found if isinstance(event, BytesMessage)) == data


@clause(v3="6.0.0-1", v5="6.0.0-1")
def test_a_text_frame_closes_the_connection() -> None:
    browser = Browser(["mqtt"])
    browser.events()
    browser.server.data_received(
        browser.peer.send(TextMessage(data="mqtt")) + browser.peer.send(BytesMessage(data=connect_frame()))
    )
    assert browser.ear.heard == b""
    assert [type(event) for event in browser.events()] == [CloseConnection]


@clause(v3="7.1.1-1", v5="4.2.0-1")
@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_a_plain_stream_carries_the_bytes_both_ways_in_order(cut: int) -> None:
    ear, stream = Ear(), Stream()
    connection = SocketConnection(ear, ListenerGate(name="tcp", write_buffer=65536), "peer:1")
    connection.connection_made(stream)
    packets = connect_frame() + b"\xc0\x00" * 3
    for at in range(0, len(packets), cut):
        connection.data_received(packets[at : at + cut])
    for part in (b"\x20\x03", b"\0\0\0", b"\xd0\0"):
        ear.transport.write(part)
    assert ear.heard == packets
    assert stream.written == b"\x20\x03\0\0\0\xd0\0"
