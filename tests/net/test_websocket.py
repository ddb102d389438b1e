from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from wsproto.frame_protocol import Opcode

from starlingmq.config.settings import ListenerConfig
from starlingmq.core.connect.turned_away import OF_LISTENER
from starlingmq.core.context.ready import Notice
from starlingmq.net.listeners import websocket_upgrade
from starlingmq.net.listeners.connection_counts import ConnectionCounts
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.net.listeners.listeners import Listener
from starlingmq.net.listeners.urls import ListenerError, parse_listener
from starlingmq.net.listeners.websocket import FRAMES_A_TURN, WebSocketConnection, binary_header

from .conftest import Certificates, FakeDriver, Open, Seen
from .test_listeners import port_of, read_to_end
from .test_tls import client_context
from .websocket_peer import HEADERS, Peer, connected, request

CONNECT = bytes.fromhex("1010 0004 4d515454 05 02 003c 00 0003 616263")
PINGREQ = b"\xc0\x00"
ORIGIN = "https://app.example.org"


@pytest.fixture
async def listener(listen: Open) -> Listener:
    return await listen("ws://127.0.0.1:0/mqtt")


@pytest.fixture
async def raw(listener: Listener) -> AsyncIterator[Peer]:
    """Return a connection without a request."""
    async with connected(port_of(listener.address)) as peer:
        yield peer


@pytest.fixture
async def peer(raw: Peer) -> Peer:
    await raw.upgrade()
    return raw


def masked(opcode: int, payload: bytes, *, fin: bool = True, reserved: int = 0, length: int | None = None) -> bytes:
    """Return a client's frame with a mask of zeros, so that it contains its payload unchanged; up to 125 bytes."""
    size = len(payload) if length is None else length
    return bytes([(0x80 if fin else 0) | reserved | opcode, 0x80 | size]) + bytes(4) + payload


# The request


async def test_the_subprotocol_is_agreed_on(listener: Listener, driver: FakeDriver, peer: Peer) -> None:
    assert listener.address == f"ws://127.0.0.1:{port_of(listener.address)}/mqtt"
    client = await driver.client()
    assert client.listener == listener.address
    assert client.peer == "{}:{}".format(*peer.writer.get_extra_info("sockname"))


async def test_a_request_and_a_frame_may_come_byte_by_byte(driver: FakeDriver, raw: Peer) -> None:
    client = await driver.client()
    assert isinstance(client.transport, WebSocketConnection)
    for byte in request() + masked(Opcode.BINARY, CONNECT):
        client.transport.data_received(bytes([byte]))
    await raw.upgrade(b"")
    assert client.received == CONNECT


async def test_mqtt_may_come_with_the_request(driver: FakeDriver, raw: Peer) -> None:
    await raw.upgrade(request() + raw.frames.send_data(CONNECT))
    await (await driver.client()).until(lambda seen: seen.received == CONNECT)


async def test_other_subprotocols_may_be_offered_as_well(raw: Peer) -> None:
    await raw.upgrade(request(b"/mqtt?token=1", [*HEADERS[:-1], b"Sec-WebSocket-Protocol: mqttv3.1, mqtt"]))


REFUSED = [
    ("no subprotocol", request(headers=HEADERS[:-1]), 400, "bad_subprotocol"),
    ("another one", request(headers=[*HEADERS[:-1], b"Sec-WebSocket-Protocol: mqttv5"]), 400, "bad_subprotocol"),
    ("another path", request(b"/other"), 404, "bad_path"),
    ("a longer path", request(b"/mqtt/"), 404, "bad_path"),
    ("no upgrade", request(headers=[b"Host: localhost"]), 400, "bad_request"),
    ("an old version", request(headers=[*HEADERS[:4], b"Sec-WebSocket-Version: 8", HEADERS[5]]), 426, "bad_request"),
    ("no key", request(headers=[*HEADERS[:3], *HEADERS[4:]]), 400, "bad_request"),
    ("no host", request(headers=HEADERS[1:]), 400, "bad_request"),
    ("a host that is none", request(headers=[b"Host: \xff\xfe", *HEADERS[1:]]), 400, "bad_request"),
    ("a header that is none", request(headers=[b"no colon", *HEADERS]), 400, "bad_request"),
    ("bytes in a protocol", request(headers=[*HEADERS[:-1], b"Sec-WebSocket-Protocol: \xff"]), 400, "bad_request"),
    ("another method", b"POST" + request()[3:], 400, "bad_request"),
    ("an old HTTP", request().replace(b"HTTP/1.1", b"HTTP/1.0"), 400, "bad_request"),
    ("a body", request(headers=[*HEADERS, b"Content-Length: 5"]) + b"hello", 400, "bad_request"),
    ("chunks", request(headers=[*HEADERS, b"Transfer-Encoding: chunked"]) + b"0\r\n\r\n", 400, "bad_request"),
    ("no HTTP at all", CONNECT, 400, "bad_request"),
    ("a TLS hello", b"\x16\x03\x01\x02\x00", 400, "bad_request"),
    ("an oversized header", request(headers=[*HEADERS, b"Cookie: " + bytes(17000)]), 431, "request_too_large"),
    ("a header without end", b"GET /mqtt HTTP/1.1\r\nCookie: " + b"x" * 17000, 431, "request_too_large"),
]


@pytest.mark.parametrize(("sent", "status", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_a_request_without_mqtt_is_answered_and_closed(
    listener: Listener, driver: FakeDriver, raw: Peer, sent: bytes, status: int, reason: str
) -> None:
    raw.send(sent)
    line, headers = await raw.response()
    assert line.startswith(f"HTTP/1.1 {status} ".encode())
    assert headers[b"connection"] == b"close"
    assert (headers.get(b"sec-websocket-version") == b"13") == (status == 426)
    assert len(await read_to_end(raw.reader)) == int(headers[b"content-length"])
    assert listener.gate.refused == {reason: 1}
    raw.writer.close()
    client = await driver.client()
    await client.until(lambda seen: seen.events == ["lost"])
    assert client.received == b""


async def test_a_refused_request_is_logged_with_what_it_asked_for(listen: Open) -> None:
    """Each with listener, request and setting: a page that moved here gets a 404, and its author looks into the log."""
    admission = ConnectionCounts()
    noticed: list[Notice] = []
    admission.report = noticed.append
    url = "ws://127.0.0.1:0/mqtt"
    listener = await listen(url, origins=(ORIGIN,), options={"admission": admission})
    asked = [
        (request(b"/other"), "path '/other': the WebSocket path is /mqtt (listeners[].paths)"),
        (request(headers=HEADERS[:-1]), "subprotocol none: the WebSocket subprotocol must be mqtt (listeners[].sub"),
        (
            request(headers=[*HEADERS, b"Origin: null"]),
            "origin 'null': this origin is not allowed (listeners[].origins)",
        ),
        (b"POST / HTTP/1.1\r\n\r\n", "this port speaks WebSocket; the request must be a GET"),
    ]
    for sent, text in asked:
        async with connected(port_of(listener.address)) as peer:
            peer.send(sent)
            await peer.response()
        assert noticed[-1].detail.startswith(f"{listener.address}: {text}")
        assert noticed[-1].peer.startswith("127.0.0.1:")
    assert len(noticed) == len(asked)


@pytest.mark.parametrize(
    ("url", "paths", "served", "refused"),
    [
        ("ws://127.0.0.1:0/*", (), (b"/", b"/mqtt", b"/a/b?c"), ()),
        ("ws://127.0.0.1:0/mqtt", ("/",), (b"/", b"/mqtt"), (b"/other", b"/mqtt/")),
        ("ws://127.0.0.1:0/mqtt", ("/site/*",), (b"/mqtt", b"/site/", b"/site/7"), (b"/site",)),
        (
            "ws://127.0.0.1:0",
            (),
            (b"http://localhost/mqtt", b"WS://broker.test:80/mqtt?x"),
            (b"http://localhost", b"ftp://a/mqtt"),
        ),
    ],
)
async def test_a_listener_serves_its_paths(
    listen: Open, url: str, paths: tuple[str, ...], served: tuple[bytes, ...], refused: tuple[bytes, ...]
) -> None:
    listener = await listen(url, paths=paths)
    for path, status in [*((path, 101) for path in served), *((path, 404) for path in refused)]:
        async with connected(port_of(listener.address)) as peer:
            peer.send(request(path))
            line, _ = await peer.response()
        assert line.startswith(b"HTTP/1.1 %d " % status), path


@pytest.mark.parametrize(
    ("subprotocol", "offered", "answered"),
    [
        ("required", b"mqttv3.1", b"mqttv3.1"),
        ("required", b"mqttv3.1, mqtt", b"mqtt"),
        ("optional", b"mqtt", b"mqtt"),
        ("optional", b"other", None),
        ("optional", None, None),
    ],
)
async def test_older_pages_offer_another_subprotocol_or_none(
    listen: Open, subprotocol: str, offered: bytes | None, answered: bytes | None
) -> None:
    listener = await listen("ws://127.0.0.1:0/mqtt", subprotocol=subprotocol)
    headers = HEADERS[:-1] if offered is None else [*HEADERS[:-1], b"Sec-WebSocket-Protocol: " + offered]
    async with connected(port_of(listener.address)) as peer:
        peer.send(request(headers=headers))
        line, found = await peer.response()
    assert line.startswith(b"HTTP/1.1 101 ")
    assert found.get(b"sec-websocket-protocol") == answered


@pytest.mark.parametrize(
    ("anonymous", "host", "origin", "status"),
    [
        (True, b"localhost:9001", None, 101),  # a program
        (True, b"localhost:9001", b"http://localhost:8080", 101),
        (True, b"127.0.0.1:9001", b"https://[::1]", 101),
        (True, b"broker.test", b"http://BROKER.test:8080", 101),
        (True, b"localhost", b"https://elsewhere.example", 403),
        (True, b"localhost", b"null", 403),
        (True, b"localhost", b"http://localhost.elsewhere.example", 403),
        (True, b"localhost", b"http://localhost@elsewhere.example", 403),
        (True, b"elsewhere.example", b"http://elsewhere.example", 403),  # a name that resolves to this machine
        (True, b"elsewhere.example", b"http://localhost", 403),
        (False, b"localhost", b"https://elsewhere.example", 101),  # it has to log in
    ],
)
@pytest.mark.parametrize("scheme", ["ws", "nats+ws"])
async def test_without_a_login_only_pages_of_this_machine_open_a_websocket_on_loopback(
    listen: Open, scheme: str, anonymous: bool, host: bytes, origin: bytes | None, status: int
) -> None:
    admission = ConnectionCounts()
    admission.use_pages(anonymous, ["Broker.test"])
    listener = await listen(f"{scheme}://127.0.0.1:0/mqtt", options={"admission": admission})
    headers = [b"Host: " + host, *HEADERS[1:], *([] if origin is None else [b"Origin: " + origin])]
    async with connected(port_of(listener.address)) as peer:
        peer.send(request(headers=headers))
        line, _ = await peer.response()
    assert line.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("origins", "origin", "status"),
    [
        ([], b"https://elsewhere.example", 101),
        ([ORIGIN], b"https://app.example.org", 101),
        (["https://App.example.org:443"], b"https://app.example.org", 101),
        (["http://localhost:8080", ORIGIN], b"http://localhost:8080", 101),
        ([ORIGIN], None, 101),
        ([ORIGIN], b"https://elsewhere.example", 403),
        ([ORIGIN], b"http://app.example.org", 403),
        ([ORIGIN], b"https://app.example.org.elsewhere.example", 403),
        ([ORIGIN], b"null", 403),
        ([ORIGIN], b"\xff", 403),
    ],
)
async def test_pages_of_other_origins_stay_outside(
    listen: Open, origins: list[str], origin: bytes | None, status: int
) -> None:
    listener = await listen("ws://127.0.0.1:0/mqtt", origins=tuple(origins))
    headers = HEADERS if origin is None else [*HEADERS, b"Origin: " + origin]
    async with connected(port_of(listener.address)) as peer:
        peer.send(request(headers=headers))
        line, _ = await peer.response()
    assert line.startswith(b"HTTP/1.1 %d " % status)
    assert listener.gate.refused == ({"bad_origin": 1} if status == 403 else {})


@pytest.mark.parametrize("path", ["mqtt", "", "/a b", "/a?b", "/#"])
def test_an_invalid_path_is_reported(path: str) -> None:
    with pytest.raises(ListenerError, match="is not a path"):
        parse_listener(ListenerConfig(url="ws://:0", paths=(path,)))
    with pytest.raises(ListenerError, match="paths are supported by WebSocket listeners only"):
        parse_listener(ListenerConfig(url="mqtt://:0", paths=("/",)))


@pytest.mark.parametrize("origin", ["app.example.org", "https://app.example.org/", "https://", "*", "ftp://a"])
def test_an_invalid_origin_is_reported(origin: str) -> None:
    with pytest.raises(ListenerError, match="is not an origin"):
        parse_listener(ListenerConfig(url="ws://:0", origins=(origin,)))
    with pytest.raises(ListenerError, match="origins are supported by WebSocket listeners only"):
        parse_listener(ListenerConfig(url="mqtt://:0", origins=(ORIGIN,)))


async def test_a_request_that_stays_half_is_the_drivers_to_end(driver: FakeDriver, raw: Peer) -> None:
    raw.send(request()[:-2])
    client = await driver.client()
    client.transport.write(b"not heard: there is no WebSocket yet")
    client.transport.close()
    assert await read_to_end(raw.reader) == b""
    await client.until(lambda seen: seen.events == ["lost"])


@pytest.mark.parametrize("sent", [b"", request()[:-2], request(), request() + masked(Opcode.BINARY, b"", length=5)])
async def test_a_peer_that_vanishes_is_lost_once(driver: FakeDriver, raw: Peer, sent: bytes) -> None:
    raw.send(sent)
    client = await driver.client()
    raw.writer.close()
    await client.until(lambda seen: seen.events == ["lost"])


# Frames and packets


async def test_several_packets_in_one_frame(driver: FakeDriver, peer: Peer) -> None:
    peer.send(peer.frames.send_data(CONNECT + PINGREQ + PINGREQ))
    await (await driver.client()).until(lambda seen: seen.received == CONNECT + PINGREQ + PINGREQ)


async def test_one_packet_over_many_frames(driver: FakeDriver, peer: Peer) -> None:
    for byte in CONNECT:
        peer.send(masked(Opcode.BINARY, bytes([byte])))
    await (await driver.client()).until(lambda seen: seen.received == CONNECT)


async def test_one_packet_over_the_fragments_of_one_message(driver: FakeDriver, peer: Peer) -> None:
    first, *middle, last = (CONNECT[at : at + 3] for at in range(0, len(CONNECT), 3))
    peer.send(masked(Opcode.BINARY, first, fin=False))
    for part in middle:
        peer.send(masked(Opcode.CONTINUATION, part, fin=False), masked(Opcode.PING, b"between"))
    peer.send(masked(Opcode.CONTINUATION, last))
    await (await driver.client()).until(lambda seen: seen.received == CONNECT)
    frame = await peer.frame()
    assert frame is not None and (frame.opcode, frame.payload) == (Opcode.PONG, b"between")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
async def test_every_length_of_a_frame_both_ways(driver: FakeDriver, peer: Peer, size: int) -> None:
    payload = bytes(at % 251 for at in range(size))
    peer.send(peer.frames.send_data(payload), peer.frames.send_data(b"end"))
    client = await driver.client()
    await client.until(lambda seen: seen.received == payload + b"end")
    client.transport.write(client.received)
    assert await peer.binary(size + 3) == payload + b"end"


@pytest.mark.parametrize("length", [0, 125, 126, 65535, 65536, 2**32])
def test_the_header_of_a_frame_is_the_shortest(length: int) -> None:
    header = binary_header(length)
    assert header[0] == 0x82
    if length < 126:
        assert header[1:] == bytes([length])
    elif length < 65536:
        assert header[1:] == b"\x7e" + struct.pack(">H", length)
    else:
        assert header[1:] == b"\x7f" + struct.pack(">Q", length)


async def test_a_frame_that_is_not_all_there_is_passed_on_all_the_same(driver: FakeDriver, peer: Peer) -> None:
    peer.send(masked(Opcode.BINARY, CONNECT[:4], length=125))
    await (await driver.client()).until(lambda seen: seen.received == CONNECT[:4])


async def test_many_frames_of_one_read_are_one_call(driver: FakeDriver, peer: Peer) -> None:
    peer.send(*[masked(Opcode.BINARY, PINGREQ)] * 100)
    client = await driver.client()
    await client.until(lambda seen: len(seen.received) == 200)
    assert len(client.reads) < 10


@pytest.mark.security
@pytest.mark.parametrize("flood", [masked(Opcode.PING, b""), masked(Opcode.BINARY, b"")], ids=["pings", "empty frames"])
async def test_a_read_of_very_many_frames_is_worked_on_in_many_turns(
    driver: FakeDriver, peer: Peer, flood: bytes
) -> None:
    client = await driver.client()
    assert isinstance(client.transport, WebSocketConnection)
    client.transport.data_received(flood * 10_000 + masked(Opcode.BINARY, PINGREQ))
    turns = 0
    while not client.received:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10_000 // FRAMES_A_TURN
    peer.send(masked(Opcode.BINARY, CONNECT))
    await client.until(lambda seen: seen.received == PINGREQ + CONNECT)


@pytest.mark.security
async def test_frames_that_wait_for_their_turn_wait_for_the_driver_too(driver: FakeDriver, peer: Peer) -> None:
    client = await driver.client()
    assert isinstance(client.transport, WebSocketConnection)
    client.transport.data_received(masked(Opcode.BINARY, PINGREQ) * 1_000)
    client.transport.pause_reading()
    taken = len(client.received)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(client.received) == taken
    client.transport.resume_reading()
    await client.until(lambda seen: seen.received == PINGREQ * 1_000)


@pytest.mark.security
@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.PING])
async def test_very_many_frames_before_the_peers_goodbye_end_in_it(
    driver: FakeDriver, peer: Peer, opcode: Opcode
) -> None:
    client = await driver.client()
    client.transport.close()
    peer.send(masked(opcode, b"x") * 2_000, peer.frames.close(1000))
    await client.until(lambda seen: seen.events == ["lost"])


@pytest.mark.security
async def test_a_client_that_is_lost_with_frames_unread_is_lost_once(driver: FakeDriver, peer: Peer) -> None:
    client = await driver.client()
    assert isinstance(client.transport, WebSocketConnection)
    client.transport.data_received(masked(Opcode.BINARY, PINGREQ) * 1_000)
    client.transport.abort()
    await client.until(lambda seen: seen.events == ["lost"])
    assert len(client.received) <= FRAMES_A_TURN * len(PINGREQ)


async def test_a_ping_is_answered(peer: Peer) -> None:
    peer.send(masked(Opcode.PING, b"are you there"))
    frame = await peer.frame()
    assert frame is not None and (frame.opcode, frame.payload) == (Opcode.PONG, b"are you there")


async def test_a_pong_nobody_asked_for_is_nothing(driver: FakeDriver, peer: Peer) -> None:
    peer.send(masked(Opcode.PONG, b"x"), masked(Opcode.BINARY, PINGREQ))
    await (await driver.client()).until(lambda seen: seen.received == PINGREQ)


# Ends


async def test_the_peer_closes(driver: FakeDriver, peer: Peer) -> None:
    peer.send(masked(Opcode.BINARY, PINGREQ), masked(Opcode.CLOSE, struct.pack(">H", 1001)))
    assert await peer.closed() == 1001
    assert await read_to_end(peer.reader) == b""
    client = await driver.client()
    await client.until(lambda seen: seen.events == ["lost"])
    assert client.received == PINGREQ


async def test_the_driver_closes_and_the_peer_agrees(driver: FakeDriver, peer: Peer) -> None:
    client = await driver.client()
    client.transport.write(b"last")
    client.transport.close()
    client.transport.close()
    client.transport.write(b"not heard")
    assert await peer.binary(4) == b"last"
    assert await peer.closed() == 1000
    peer.send(masked(Opcode.BINARY, b"too late"), masked(Opcode.TEXT, b"x"), peer.frames.close(1000))
    assert await read_to_end(peer.reader) == b""
    await client.until(lambda seen: seen.events == ["lost"])
    assert client.received == b""


async def test_the_driver_closes_while_it_holds_the_peer_back(driver: FakeDriver, peer: Peer) -> None:
    client = await driver.client()
    client.transport.pause_reading()
    client.transport.close()
    client.transport.pause_reading()
    assert await peer.closed() == 1000
    peer.send(peer.frames.close(1000))
    await client.until(lambda seen: seen.events == ["lost"])


async def test_a_peer_that_does_not_agree_to_close_is_cut(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, peer: Peer
) -> None:
    monkeypatch.setattr("starlingmq.net.listeners.websocket.CLOSE_TIMEOUT", 0.01)
    client = await driver.client()
    client.transport.close()
    await client.until(lambda seen: seen.events == ["lost"])


async def test_the_driver_aborts(driver: FakeDriver, peer: Peer) -> None:
    client = await driver.client()
    client.transport.abort()
    client.transport.write(b"not heard")
    client.transport.close()
    assert await read_to_end(peer.reader) == b""
    await client.until(lambda seen: seen.events == ["lost"])


async def test_the_driver_closes_over_what_it_has_just_read(driver: FakeDriver, peer: Peer) -> None:
    def close(client: Seen, data: bytes) -> None:
        client.transport.close()

    driver.on_received = close
    peer.send(masked(Opcode.BINARY, PINGREQ), masked(Opcode.TEXT, b"x"), peer.frames.close(1000))
    assert await peer.closed() == 1000
    assert await read_to_end(peer.reader) == b""


async def test_a_text_frame_ends_the_connection(listener: Listener, driver: FakeDriver, peer: Peer) -> None:
    peer.send(masked(Opcode.BINARY, PINGREQ), masked(Opcode.TEXT, b"hello"), masked(Opcode.BINARY, b"after"))
    assert await peer.closed() == 1003
    peer.send(peer.frames.close(1003))
    assert await read_to_end(peer.reader) == b""
    client = await driver.client()
    await client.until(lambda seen: seen.events == ["lost"])
    assert client.received == PINGREQ
    assert listener.gate.refused == {"text_frame": 1}


BROKEN = [
    ("not masked", b"\x82\x01x", 1002),
    ("a reserved bit", masked(Opcode.BINARY, b"x", reserved=0x40), 1002),
    ("an unknown opcode", masked(3, b"x"), 1002),
    ("a continuation of nothing", masked(Opcode.CONTINUATION, b"x"), 1002),
    ("a fragmented ping", masked(Opcode.PING, b"x", fin=False), 1002),
    ("a close of one byte", masked(Opcode.CLOSE, b"x"), 1002),
    ("a length not the shortest", b"\x82\xfe\x00\x01" + bytes(4), 1002),
    ("a length of 2**63", b"\x82\xff\x80" + bytes(11), 1002),
    ("text that is no UTF-8", masked(Opcode.TEXT, b"\xff"), 1007),
    ("a message within a message", masked(Opcode.BINARY, b"", fin=False) + masked(Opcode.BINARY, b"x"), 1002),
]


@pytest.mark.parametrize(("sent", "code"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
async def test_a_broken_frame_ends_the_connection(
    listener: Listener, driver: FakeDriver, peer: Peer, sent: bytes, code: int
) -> None:
    peer.send(masked(Opcode.BINARY, PINGREQ), sent)
    assert await peer.closed() == code
    assert await read_to_end(peer.reader) == b""
    peer.writer.close()
    client = await driver.client()
    await client.until(lambda seen: seen.events == ["lost"])
    assert client.received == PINGREQ
    assert listener.gate.refused == {"bad_frame": 1}


# Backpressure


async def test_a_peer_that_does_not_read_is_told_of_and_its_pings_cost_nothing(
    driver: FakeDriver, listen: Open
) -> None:
    listener = await listen("ws://127.0.0.1:0", options={"write_buffer": 4096})
    async with connected(port_of(listener.address), limit=1024) as peer:
        await peer.upgrade()
        client = await driver.client()
        sent = 0
        while "blocked" not in client.events:
            client.transport.write(bytes(65536))
            sent += 65536
        peer.send(masked(Opcode.PING, b"first"), masked(Opcode.PING, b"second"), masked(Opcode.BINARY, PINGREQ))
        await client.until(lambda seen: seen.received == PINGREQ)
        assert await peer.binary(sent) == bytes(sent)
        frame = await peer.frame()
        assert frame is not None and (frame.opcode, frame.payload) == (Opcode.PONG, b"second")
        await client.until(lambda seen: seen.events == ["blocked", "drained"])


async def test_reading_can_be_held_and_let_go(driver: FakeDriver, peer: Peer) -> None:
    client = await driver.client()
    driver.on_received = lambda client, data: client.transport.pause_reading()
    peer.send(masked(Opcode.BINARY, b"one"))
    await client.until(lambda seen: seen.received == b"one")
    peer.send(masked(Opcode.BINARY, b"two"))
    client.transport.resume_reading()
    await client.until(lambda seen: seen.received == b"onetwo")


async def test_a_full_listener_opens_the_websocket_to_refuse_its_connect(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("ws://127.0.0.1:0", max_connections=1)
    async with connected(port_of(listener.address)) as first:
        await first.upgrade()
        async with connected(port_of(listener.address)) as second:
            await second.upgrade()
            assert [client.full for client in driver.clients] == [0, OF_LISTENER]


async def test_wss_speaks_tls(driver: FakeDriver, listen: Open, certificates: Certificates) -> None:
    listener = await listen("wss://127.0.0.1:0/mqtt", tls=certificates.server())
    context = client_context(certificates)
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with connected(port_of(listener.address), ssl=context, server_hostname="localhost") as peer:
        assert peer.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        await peer.upgrade()
        peer.send(peer.frames.send_data(CONNECT))
        client = await driver.client()
        await client.until(lambda seen: seen.received == CONNECT)
        client.transport.write(b"answer")
        assert await peer.binary(6) == b"answer"
        peer.send(masked(Opcode.CONTINUATION, b"broken"))
        assert await peer.closed() == 1002
        await client.until(lambda seen: seen.events == ["lost"])


def test_a_request_is_measured_to_its_empty_line() -> None:
    assert websocket_upgrade.request_size(b"GET / HTTP/1.1\r\n\r\nrest") == 18
    assert websocket_upgrade.request_size(b"GET") == 4


class Sink(asyncio.Transport):
    """A transport that discards writes."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: object) -> None: ...


def test_an_idle_connection_holds_little(driver: FakeDriver) -> None:
    # Python's own objects, those of this driver included; the event loop has about 1.2 KiB more for the socket.
    gate = ListenerGate("ws", paths=("/mqtt",))

    def connect() -> WebSocketConnection:
        connection = WebSocketConnection(driver, gate, "peer:1")
        connection.connection_made(Sink())
        driver.clients.clear()
        connection.data_received(request() + masked(Opcode.BINARY, PINGREQ))
        return connection

    def bytes_each() -> float:
        tracemalloc.start()
        try:
            kept = [connect() for _ in range(200)]
            return tracemalloc.get_traced_memory()[0] / len(kept)
        finally:
            tracemalloc.stop()

    connect()
    assert min(bytes_each() for _ in range(3)) < 2048, "what other threads of this process take comes on top, once"
