"""Clients with TLS on the event loop that serves their sockets itself: each case with real sockets."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct

import pytest
from tests.patience import within

from starlingmq.net.listeners import tls_handshake
from starlingmq.net.listeners.client_certificate import certificate_name
from starlingmq.net.listeners.listeners import Listener
from starlingmq.net.tls_client_socket import RECORD, TlsClientSocket

from .conftest import PATIENCE, Certificates, FakeDriver, Open, Seen
from .test_listeners import port_of

pytestmark = [
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll"),
    pytest.mark.asyncio(loop_factories=["epoll"]),
]

MEGABYTES = 9
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Peer:
    """A client of OpenSSL on a socket that blocks, so each call is one in a thread."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock

    async def send(self, data: bytes) -> None:
        await asyncio.to_thread(self.sock.sendall, data)

    async def receive(self, size: int) -> bytes:
        async with within(PATIENCE):
            return await asyncio.to_thread(self._receive, size)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            assert more, f"closed after {len(data)} of {size} bytes"
            data += more
        return bytes(data)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.sock.detach())


async def connect(
    listener: Listener,
    certificates: Certificates,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    certificate: tuple[str, str] | None = None,
) -> Peer:
    context = ssl.create_default_context(cafile=certificates.ca)
    context.minimum_version = context.maximum_version = version
    if certificate is not None:
        context.load_cert_chain(*certificate)

    def dial() -> Peer:
        sock = socket.create_connection(("127.0.0.1", port_of(listener.address)), PATIENCE)
        return Peer(context.wrap_socket(sock, server_hostname="localhost", suppress_ragged_eofs=False))

    return await asyncio.to_thread(dial)


def send_back(client: Seen, data: bytes) -> None:
    client.transport.write(data)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_loop_serves_clients_with_tls_itself(
    driver: FakeDriver, listen: Open, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    peer = await connect(await listen("mqtts://127.0.0.1:0", tls=certificates.server()), certificates, version)
    client = await driver.client()
    assert isinstance(client.transport, TlsClientSocket)
    assert client.transport.get_extra_info("peername") == peer.sock.getsockname()
    assert client.transport.get_extra_info("ssl_object").version() == peer.sock.version()
    driver.on_received = send_back
    for size in (1, 400, RECORD - 1, RECORD, RECORD + 1, 300_000):
        data = bytes([size % 251]) * size
        await peer.send(data)  # not at the same time: two threads must not use one object of OpenSSL
        assert await peer.receive(size) == data
    peer.sock.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_output_that_the_kernel_refuses_at_first_arrives_later_and_whole(
    driver: FakeDriver, listen: Open, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    peer = await connect(await listen("mqtts://127.0.0.1:0", tls=certificates.server()), certificates, version)
    client = await driver.client()
    parts = [bytes([number]) * (1 + number * 7919) for number in range(50)]
    for part in parts:
        client.transport.write(part)
    whole = b"".join(parts)
    assert client.events == ["blocked"]
    assert await peer.receive(len(whole)) == whole
    await client.until(lambda seen: seen.events == ["blocked", "drained"])
    peer.sock.close()


async def test_small_writes_behind_one_that_the_kernel_refused_keep_their_order(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    """OpenSSL wants a refused write again, with the same bytes first."""
    peer = await connect(await listen("mqtts://127.0.0.1:0", tls=certificates.server()), certificates)
    client = await driver.client()
    written = b""
    number = 0
    while client.transport.get_write_buffer_size() == 0:  # type: ignore[attr-defined]
        written += (part := b"%06d" % number * 100)
        client.transport.write(part)
        number += 1
    for _ in range(3):
        written += (part := b"%06d" % number)
        client.transport.write(part)
        number += 1
    assert await peer.receive(len(written)) == written
    client.transport.write(b"after")
    assert await peer.receive(5) == b"after"
    peer.sock.close()


async def test_a_connection_is_closed_with_a_notice_after_what_was_written(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    peer = await connect(await listen("mqtts://127.0.0.1:0", tls=certificates.server()), certificates)
    client = await driver.client()
    client.transport.write(bytes(MEGABYTES * 1_000_000))
    client.transport.close()
    assert client.transport.get_extra_info("peercert") is None
    await peer.receive(MEGABYTES * 1_000_000)
    assert await asyncio.to_thread(peer.sock.recv, 1) == b""  # an end without the notice raises SSLEOFError
    await client.until(lambda seen: seen.events[-1:] == ["lost"])
    assert client.transport.get_extra_info("peercert") is None
    peer.sock.close()


async def test_all_records_of_a_flood_are_read_although_reading_pauses(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    peer = await connect(await listen("mqtts://127.0.0.1:0", tls=certificates.server()), certificates)
    client = await driver.client()

    def pause(client: Seen, data: bytes) -> None:
        client.transport.pause_reading()
        asyncio.get_running_loop().call_later(0.0001, client.transport.resume_reading)

    driver.on_received = pause
    whole = b"".join(b"%08d" % number for number in range(100_000))
    await peer.send(whole)
    await client.until(lambda seen: len(seen.received) >= len(whole))
    assert client.received == whole
    peer.sock.close()


async def test_a_reset_is_the_end(driver: FakeDriver, listen: Open, certificates: Certificates) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    peer = await connect(listener, certificates)
    client = await driver.client()
    peer.reset()
    await client.until(lambda seen: seen.events == ["lost"])
    client.transport.write(b"nobody is there")
    client.transport.close()
    client.transport.abort()
    client.transport.resume_reading()
    assert client.events == ["lost"] and listener.gate.connections == 0


async def test_a_client_that_says_goodbye_gets_what_was_written_before(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    peer = await connect(await listen("mqtts://127.0.0.1:0", tls=certificates.server()), certificates)
    client = await driver.client()
    driver.on_received = send_back
    await peer.send(b"last words")
    assert await peer.receive(10) == b"last words"
    plain = await asyncio.to_thread(peer.sock.unwrap)
    await client.until(lambda seen: seen.events == ["lost"])
    plain.close()


async def test_bytes_that_are_not_tls_end_a_connection(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    peer = await connect(await listen("mqtts://127.0.0.1:0", tls=certificates.server()), certificates)
    client = await driver.client()
    plain = socket.socket(fileno=peer.sock.detach())
    await asyncio.to_thread(plain.sendall, b"\x10\x10\x00\x04MQTT not a record")
    await client.until(lambda seen: seen.events == ["lost"])
    assert client.received == b""
    plain.close()


async def test_the_name_in_a_certificate_is_told_before_any_byte(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    tls = certificates.server(ca=certificates.ca, require_client_cert=True, use_identity_as_username=True)
    mine = certificates.issue("client.example", common_name="sensor-7")
    peer = await connect(await listen("mqtts://127.0.0.1:0", tls=tls), certificates, certificate=mine)
    client = await driver.client()
    assert client.events == ["identified"] and client.received == b""
    assert certificate_name(client.transport) == "sensor-7"
    peer.sock.close()


async def test_a_handshake_may_come_byte_by_byte(driver: FakeDriver, listen: Open, certificates: Certificates) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=certificates.ca)
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    done = False
    async with within(PATIENCE):
        while not done:
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await writer.drain()
            if not done:
                incoming.write(await reader.read(1))
    client = await driver.client()
    tls.write(b"hello")
    writer.write(outgoing.read())
    await client.until(lambda seen: seen.received == b"hello")
    writer.close()


async def test_a_handshake_without_an_end_is_bounded_in_time(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server(), options={"handshake_timeout": 0.2})
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    writer.write(b"\x16\x03\x01")
    async with within(PATIENCE):
        assert await reader.read(1) == b""
        while listener.gate.connections:
            await asyncio.sleep(0)
    assert listener.gate.refused == {"handshake_timeout": 1} and driver.clients == []
    writer.close()


async def test_a_refused_client_that_stays_is_closed(
    driver: FakeDriver, listen: Open, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshake, "LINGER", 0.2)
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    async with within(PATIENCE):
        while not listener.gate.refused or listener.gate.connections:
            await asyncio.sleep(0)
    assert listener.gate.refused == {"tls_handshake": 1} and driver.clients == []
    writer.close()
