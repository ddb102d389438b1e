"""PROXY protocol: one table of headers, each whole, byte by byte, and with what follows it; then real listeners."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.patience import within
from tests.peer import Peer

from starlingmq import Broker
from starlingmq.config.auth_section import AclConfig
from starlingmq.config.settings import AuthConfig, Config, ConfigError, LimitsConfig, ListenerConfig, NodeConfig
from starlingmq.config.settings import load_config as load
from starlingmq.core.connect.turned_away import OF_ADDRESS
from starlingmq.net.listeners.connection_counts import ADDRESS_TURNED_AWAY, ConnectionCounts
from starlingmq.net.listeners.listeners import Listener
from starlingmq.net.listeners.proxy_protocol import V2, V2_MAX, ProxyError, ProxyHeader, parse
from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.reasons import Reason

from .conftest import PATIENCE, Certificates, FakeDriver, Open
from .test_listeners import port_of, read_to_end
from .test_tls import client_context, until_empty


def v2(command: int, kind: int, body: bytes = b"", length: int | None = None) -> bytes:
    return V2 + bytes((command, kind)) + struct.pack("!H", len(body) if length is None else length) + body


def tcp4(source: str, port: int, tlvs: bytes = b"") -> bytes:
    addresses = socket.inet_aton(source) + socket.inet_aton("10.0.0.1") + struct.pack("!HH", port, 1883)
    return v2(0x21, 0x11, addresses + tlvs)


def tcp6(source: str, port: int) -> bytes:
    pair = b"".join(socket.inet_pton(socket.AF_INET6, host) for host in (source, "2001:db8::1"))
    return v2(0x21, 0x21, pair + struct.pack("!HH", port, 1883))


GOOD = [
    (b"PROXY TCP4 192.0.2.7 10.0.0.1 50123 1883\r\n", "192.0.2.7:50123"),
    (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", "255.255.255.255:65535"),
    (b"PROXY TCP4 1.1.1.1 1.1.1.1 0 0\r\n", "1.1.1.1:0"),
    (b"PROXY TCP6 2001:db8::7 2001:DB8::1 50123 8883\r\n", "[2001:db8::7]:50123"),
    (b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:10.0.0.1 50123 8883\r\n", "192.0.2.7:50123"),
    (b"PROXY TCP6 " + b" ".join([b"ffff:" * 7 + b"ffff"] * 2) + b" 65535 65535\r\n", f"[{'ffff:' * 7}ffff]:65535"),
    (b"PROXY UNKNOWN\r\n", ""),
    (b"PROXY UNKNOWN " + b" ".join([b"ffff:" * 7 + b"ffff"] * 2) + b" 65535 65535\r\n", ""),
    (tcp4("192.0.2.7", 50123), "192.0.2.7:50123"),
    (tcp4("192.0.2.7", 50123, tlvs=b"\x03\x00\x04\x01\x02\x03\x04\xea\x00\x01\x00"), "192.0.2.7:50123"),
    (tcp6("2001:db8::7", 50123), "[2001:db8::7]:50123"),
    (tcp6("::ffff:192.0.2.7", 50123), "192.0.2.7:50123"),
    (v2(0x20, 0x00), ""),
    (v2(0x20, 0x11, bytes(12)), ""),
    (v2(0x20, 0xFF, b"anything at all"), ""),
    (v2(0x21, 0x00), ""),
    (v2(0x21, 0x00, b"\x04\x00\x01\x00"), ""),
    (v2(0x21, 0x12, bytes(12)), ""),
    (v2(0x21, 0x31, bytes(216)), ""),
    (v2(0x21, 0x11, socket.inet_aton("192.0.2.7") + bytes(8) + bytes(V2_MAX - 28)), "192.0.2.7:0"),
]
BAD = [
    b"\x10\x0c\x00\x04MQTT",
    b"\x16\x03\x01",
    b"GET /mqtt HTTP/1.1\r\n",
    b"proxy TCP4 1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n",
    b"PROXY UNKNOWN\n",
    b"PROXY UNKNOWNS\r\n",
    b"PROXY  TCP4 1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 \r\n",
    b"PROXY TCP4 1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 01.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 ::1 1 1\r\n",
    b"PROXY TCP4 ::1 ::1 1 1\r\n",
    b"PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 99999\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 01 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 -1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n",
    b"PROXY " + b"x" * 200,
    b"PROXY UNKNOWN " + b"x" * 200 + b"\r\n",
    V2[:-1] + b"\x0b\x21\x11\x00\x0c" + bytes(12),
    v2(0x11, 0x11, bytes(12)),
    v2(0x22, 0x11, bytes(12)),
    v2(0x21, 0x41, bytes(300)),
    v2(0x21, 0x13, bytes(12)),
    v2(0x21, 0x11, bytes(11)),
    v2(0x21, 0x21, bytes(35)),
    v2(0x21, 0x31, bytes(215)),
    v2(0x21, 0x11, length=0xFFFF),
    v2(0x20, 0x00, length=V2_MAX - 15),
]


@pytest.mark.parametrize(("header", "peer"), GOOD)
def test_a_good_header(header: bytes, peer: str) -> None:
    assert parse(header) == ProxyHeader(len(header), peer)
    for following in (b"\x10", b"\r\n", header, bytes(5000)):
        assert parse(header + following) == ProxyHeader(len(header), peer)


@pytest.mark.parametrize("header", [header for header, _ in GOOD])
def test_reading_what_is_missing_ends_with_the_header_and_never_goes_beyond_it(header: bytes) -> None:
    for step in (1, 7, 5000):  # maximum bytes per read
        data = b""
        for _ in range(len(header) + 1):
            found = parse(data)
            if isinstance(found, ProxyHeader):
                break
            assert found > 0
            data = header[: len(data) + min(found, step)]
        assert data == header and found == ProxyHeader(
            len(header), found.peer if isinstance(found, ProxyHeader) else ""
        )


@pytest.mark.parametrize("header", BAD)
def test_a_bad_header(header: bytes) -> None:
    with pytest.raises(ProxyError):
        parse(header)
    data = b""
    with pytest.raises(ProxyError):
        for _ in range(5000):
            missing = parse(data)
            assert isinstance(missing, int) and missing > 0
            assert len(data) < min(len(header), V2_MAX), "it waits for bytes that never come"
            data = header[: len(data) + missing]


@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(lambda rest: V2 + rest, st.binary(max_size=300)),
        st.builds(lambda good, rest: good[0] + rest, st.sampled_from(GOOD), st.binary(max_size=300)),
    )
)
@example(GOOD[0][0] + b"more")
def test_any_bytes_are_a_header_or_none_or_the_beginning_of_one(data: bytes) -> None:
    try:
        found = parse(data)
    except ProxyError:
        return
    if isinstance(found, ProxyHeader):
        assert 0 < found.size <= len(data)
    else:
        assert 0 < found <= V2_MAX


# Listeners

HEADER = b"PROXY TCP4 192.0.2.7 10.0.0.1 50123 1883\r\n"


async def behind(listener: Listener, header: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    writer.write(header)
    return reader, writer


@pytest.mark.parametrize("header", [HEADER, tcp4("192.0.2.7", 50123, tlvs=bytes(200))])
async def test_the_client_of_a_proxy_has_its_own_address(driver: FakeDriver, listen: Open, header: bytes) -> None:
    listener = await listen("mqtt://127.0.0.1:0", proxy_protocol=("127.0.0.0/8",))
    _, writer = await behind(listener, header + b"hello")
    client = await driver.client()
    await client.until(lambda seen: seen.received == b"hello")
    assert client.peer == "192.0.2.7:50123"
    assert listener.gate.admission.addresses == {"192.0.2.7": 1}
    writer.close()
    await until_empty(listener)
    assert listener.gate.admission.addresses == {}


async def test_a_header_may_come_byte_by_byte(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0", proxy_protocol=("127.0.0.1/32",))
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    for byte in HEADER + b"hello":
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(0)
    client = await driver.client()
    await client.until(lambda seen: seen.received == b"hello")
    assert client.peer == "192.0.2.7:50123"
    writer.close()


@pytest.mark.parametrize("scheme", ["mqtts", "wss", "nats+wss", "tls"])
async def test_the_header_comes_before_tls(
    driver: FakeDriver, listen: Open, certificates: Certificates, scheme: str
) -> None:
    listener = await listen(f"{scheme}://127.0.0.1:0", tls=certificates.server(), proxy_protocol=("127.0.0.1",))
    reader, writer = await behind(listener, HEADER)
    if scheme == "tls":
        (await driver.client()).transport.write(b"INFO {}\r\n")
        assert await reader.readline() == b"INFO {}\r\n"
    async with within(PATIENCE):
        await writer.start_tls(client_context(certificates), server_hostname="localhost")
    assert (await driver.client()).peer == "192.0.2.7:50123"
    writer.close()
    await until_empty(listener)


async def test_a_health_check_of_the_balancer_keeps_its_address(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0", proxy_protocol=("127.0.0.1",))
    _, writer = await behind(listener, v2(0x20, 0x00))
    assert (await driver.client()).peer.startswith("127.0.0.1:")
    writer.close()
    await until_empty(listener)
    assert listener.gate.admission.addresses == {}


async def test_a_peer_that_is_no_proxy_is_refused(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0", proxy_protocol=("10.0.0.0/8",))
    reader, writer = await behind(listener, HEADER)
    assert await read_to_end(reader) == b""
    assert listener.gate.refused == {"not_a_proxy": 1}
    assert driver.clients == []
    writer.close()


@pytest.mark.parametrize("said", [b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", b"PROXY TCP4 1\r\n", b"PRO", b""])
async def test_a_proxy_without_a_header_is_refused_in_time(driver: FakeDriver, listen: Open, said: bytes) -> None:
    options = {"handshake_timeout": 0.2}
    listener = await listen("mqtt://127.0.0.1:0", proxy_protocol=("127.0.0.1",), options=options)
    reader, writer = await behind(listener, said)
    assert await read_to_end(reader) == b""
    await until_empty(listener)
    assert listener.gate.refused == {"proxy_header": 1}
    assert driver.clients == []
    writer.close()


async def test_connections_through_a_proxy_count_for_their_clients(driver: FakeDriver, listen: Open) -> None:
    admission = ConnectionCounts(LimitsConfig(connections_per_address=1))
    options: dict[str, Any] = {"admission": admission}
    listener = await listen("mqtt://127.0.0.1:0", proxy_protocol=("127.0.0.1",), options=options)
    opened = [await behind(listener, tcp6("2001:db8::7", 1)), await behind(listener, tcp6("2001:db8::8", 2))]
    await driver.client(1)
    opened += [await behind(listener, tcp4(f"192.0.2.{number}", 1)) for number in range(100)]
    await driver.client(101)
    by_peer = {client.peer: client.full for client in driver.clients}
    assert by_peer.pop("[2001:db8::8]:2") == OF_ADDRESS, "the same /64"
    assert set(by_peer.values()) == {0}
    more = [await behind(listener, tcp4("192.0.2.1", 2)) for _ in range(ADDRESS_TURNED_AWAY + 3)]
    async with within(PATIENCE):
        while listener.gate.refused.get("connections_per_address") != 3:
            await asyncio.sleep(0.01)
    for _, writer in (*opened, *more):
        writer.close()
    await until_empty(listener)
    assert (admission.connections, admission.addresses) == (0, {})


def test_settings_of_the_proxy_protocol() -> None:
    with pytest.raises(ConfigError, match=r"listeners\[0\].proxy_protocol\[0\]: 'here' is not a network"):
        load(None, ["listeners=[{url: 'mqtt://127.0.0.1:0', proxy_protocol: [here]}]"])
    for url in ("unix:///tmp/mqtt.sock", "http://127.0.0.1:0"):
        with pytest.raises(ConfigError, match=r"listeners\[0\].proxy_protocol: not supported by .* listeners"):
            load(None, [f"listeners=[{{url: '{url}', proxy_protocol: [10.0.0.0/8]}}]"])


async def test_a_ban_is_for_the_client_behind_the_balancer_and_for_nobody_else_there() -> None:
    listener = ListenerConfig(url="mqtt://127.0.0.1:0", proxy_protocol=("127.0.0.0/8",))
    async with Broker(Config(node=NodeConfig(name="one"), listeners=(listener,))) as broker:
        broker.ban("address", "192.0.2.7", 60.0, "test")
        said = {}
        for host in ("192.0.2.7", "192.0.2.8"):
            peer = await Peer.open(broker.address())
            peer.send(tcp4(host, 1), Connect(5, f"from {host}", True))
            said[host] = (await peer.expect(Connack)).reason
            await peer.close()
        assert said == {"192.0.2.7": Reason.BANNED, "192.0.2.8": 0}


async def test_rules_by_address_see_the_client_behind_the_balancer(tmp_path: Path) -> None:
    rules = tmp_path / "acl.yaml"
    rules.write_text("default: allow\nrules:\n- deny: connect\n  addresses: [192.0.2.0/24]\n")
    listener = ListenerConfig(url="mqtt://127.0.0.1:0", proxy_protocol=("127.0.0.0/8",))
    auth = AuthConfig(acl=AclConfig(file=str(rules)))
    async with Broker(Config(node=NodeConfig(name="one"), listeners=(listener,), auth=auth)) as broker:
        said = {}
        for host in ("192.0.2.7", "198.51.100.7"):
            peer = await Peer.open(broker.address())
            peer.send(f"PROXY TCP4 {host} 10.0.0.1 1 1883\r\n".encode(), Connect(5, f"from {host}", True))
            said[host] = (await peer.expect(Connack)).reason
            await peer.close()
        assert said == {"192.0.2.7": Reason.NOT_AUTHORIZED, "198.51.100.7": 0}
