"""Clients with TLS that send what no library sends, or cut it where no library does; real sockets and records."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.patience import within

from starlingmq.core.context.ready import Notice
from starlingmq.net.broker_loop import BrokerLoop, client_sockets
from starlingmq.net.listeners.client_certificate import certificate_name
from starlingmq.net.tls_client_socket import ANSWERS_MAX

from .conftest import PATIENCE, Certificates, FakeDriver, Open, Seen
from .test_listeners import port_of
from .test_tls import until_empty
from .test_tls_client_sockets import VERSIONS, send_back
from .test_tls_client_sockets import connect as connect_blocking
from .tls_records import KEY_UPDATE_REQUESTED, RecordPeer, connect_records

pytestmark = [
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll"),
    pytest.mark.asyncio(loop_factories=["epoll"]),
]

Connect = Callable[[str], Awaitable[RecordPeer]]


@pytest.fixture
async def records(certificates: Certificates, tmp_path: Path) -> AsyncIterator[Connect]:
    peers: list[RecordPeer] = []

    async def connect(address: str) -> RecordPeer:
        peers.append(await connect_records(port_of(address), certificates.ca, tmp_path))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.sock.close()


class CutPeer:
    """A client of OpenSSL whose bytes are sent by the test; it does not block."""

    def __init__(self, certificates: Certificates, port: int, version: ssl.TLSVersion) -> None:
        context = ssl.create_default_context(cafile=certificates.ca)
        context.minimum_version = context.maximum_version = version
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.sock.setblocking(False)
        self.left = b""
        self.complete = False

    def step(self, size: int) -> None:
        """Send at most ``size`` bytes of the handshake, or read what has come for it."""
        if not self.left and not self.complete:
            try:
                self.tls.do_handshake()
                self.complete = True
            except ssl.SSLWantReadError:
                pass
            self.left = self.outgoing.read()
        if self.left:
            self.sock.send(self.left[:size])
            self.left = self.left[size:]
        elif not self.complete:
            with suppress(BlockingIOError):
                self.incoming.write(self.sock.recv(size))

    def seal(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    async def shake_hands(self) -> None:
        async with within(PATIENCE):
            while not self.complete or self.left:
                self.step(100_000)
                await asyncio.sleep(0)

    async def receive(self, size: int) -> bytes:
        data = b""
        async with within(PATIENCE):
            while len(data) < size:
                try:
                    data += self.tls.read(size - len(data))
                except ssl.SSLWantReadError:
                    more = await asyncio.get_running_loop().sock_recv(self.sock, 100_000)
                    assert more, f"closed after {data!r}"
                    self.incoming.write(more)
        return data


async def test_a_flood_of_new_keys_is_read_in_many_rounds(
    driver: FakeDriver, listen: Open, certificates: Certificates, records: Connect
) -> None:
    """OpenSSL returns from a read only when data has come or nothing is left, and these records have no data."""
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    peer = await records(listener.address)
    client = await driver.client()
    sockets = client_sockets(asyncio.get_running_loop())
    assert sockets is not None
    client.transport.pause_reading()
    await peer.send(peer.key_updates(3000) + peer.out.seal(b"end"))
    began = sockets.rounds
    client.transport.resume_reading()
    await client.until(lambda seen: seen.received == b"end")
    assert sockets.rounds - began > 100
    driver.on_received = send_back
    await peer.send(peer.out.seal(bytes(9000)) + peer.key_updates(1) + peer.out.seal(b"on"))
    assert await peer.receive(9002) == bytes(9000) + b"on"


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_flood_of_new_keys_is_the_end_where_the_event_loop_reads(
    driver: FakeDriver, listen: Open, certificates: Certificates, records: Connect
) -> None:
    listener = await listen("wss://127.0.0.1:0", tls=certificates.server())
    peer = await records(listener.address)
    with suppress(ConnectionError):
        await peer.send(peer.key_updates(10_000))
    await until_empty(listener)
    other = await records(listener.address)
    await other.send(other.key_updates(3))
    assert listener.gate.connections == 1


async def test_new_keys_are_answered_although_the_client_does_not_read(
    driver: FakeDriver, listen: Open, certificates: Certificates, records: Connect
) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    peer = await records(listener.address)
    client = await driver.client()
    client.transport.write(bytes(9_000_000))
    assert client.events == ["blocked"]
    for _ in range(3):
        await peer.send(peer.key_updates(1, KEY_UPDATE_REQUESTED))
    await peer.send(peer.out.seal(b"hello"))
    await client.until(lambda seen: seen.received == b"hello")
    client.transport.write(b"after")
    assert await peer.receive(9_000_005) == bytes(9_000_000) + b"after"
    assert "lost" not in client.events


async def test_answers_that_a_client_does_not_read_are_limited(
    driver: FakeDriver, listen: Open, certificates: Certificates, records: Connect
) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    peer = await records(listener.address)
    client = await driver.client()
    client.transport.write(bytes(9_000_000))
    try:
        for _ in range(3 * ANSWERS_MAX // len(KEY_UPDATE_REQUESTED)):
            await peer.send(peer.key_updates(1, KEY_UPDATE_REQUESTED))
    except ConnectionError:
        pass
    await client.until(lambda seen: seen.events[-1] == "lost")


@pytest.mark.parametrize("version", VERSIONS)
async def test_connections_that_are_cut_everywhere_do_not_mix(
    driver: FakeDriver, listen: Open, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """All connections of a listener share the buffers of OpenSSL."""
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    driver.on_received = send_back
    peers = [CutPeer(certificates, port_of(listener.address), version) for _ in range(3)]
    garbage = socket.create_connection(("127.0.0.1", port_of(listener.address)))
    garbage.sendall(b"\x16\x03\x01\x00")
    async with within(PATIENCE):
        number = 0
        while not all(peer.complete and not peer.left for peer in peers):
            for size, peer in zip((1, 7, 100), peers, strict=True):
                peer.step(size)
                await asyncio.sleep(0)
            number += 1
            if number == 100:
                garbage.sendall(b"\xff" * 300)
    data = [bytes([65 + number]) * (3000 + number) for number in range(3)]
    sealed = [peer.seal(each) for peer, each in zip(peers, data, strict=True)]
    for start in range(0, max(map(len, sealed)), 61):
        for peer, each in zip(peers, sealed, strict=True):
            peer.sock.send(each[start : start + 61])
        await asyncio.sleep(0)
    for peer, each in zip(peers, data, strict=True):
        assert await peer.receive(len(each)) == each
        peer.sock.close()
    garbage.close()


@pytest.mark.parametrize("early", [0, 1, 5, 20, 3021, 3022])
async def test_data_with_the_end_of_a_handshake_is_not_lost(
    driver: FakeDriver, listen: Open, certificates: Certificates, early: int
) -> None:
    """In TLS 1.3 a client may send data with the last part of its handshake: ``early`` bytes of this record."""
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    driver.on_received = send_back
    peer = CutPeer(certificates, port_of(listener.address), ssl.TLSVersion.TLSv1_3)
    loop = asyncio.get_running_loop()
    while not peer.complete:
        try:
            peer.tls.do_handshake()
            peer.complete = True
        except ssl.SSLWantReadError:
            await loop.sock_sendall(peer.sock, peer.outgoing.read())
            peer.incoming.write(await loop.sock_recv(peer.sock, 100_000))
    last = peer.outgoing.read()
    record = peer.seal(b"early bird" * 300)
    assert len(record) == 3022
    await loop.sock_sendall(peer.sock, last + record[:early])
    client = await driver.client()
    assert client.received == (b"early bird" * 300 if early == len(record) else b"")
    await loop.sock_sendall(peer.sock, record[early:])
    assert await peer.receive(3000) == b"early bird" * 300
    peer.sock.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_our_half_is_closed_after_what_was_written(
    driver: FakeDriver, listen: Open, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """Without it, unread input makes the kernel reset the connection, and the last frames are lost."""
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    peer = await connect_blocking(listener, certificates, version)
    client = await driver.client()
    client.transport.pause_reading()
    await peer.send(bytes(100_000))
    client.transport.write(bytes(9_000_000))
    assert client.transport.can_write_eof()
    client.transport.resume_reading()
    client.transport.write_eof()
    client.transport.write(b"too late")
    assert await peer.receive(9_000_000) == bytes(9_000_000)
    assert await asyncio.to_thread(peer.sock.recv, 1) == b""  # an end without the notice raises SSLEOFError
    await peer.send(b"still heard")
    await client.until(lambda seen: seen.received.endswith(b"still heard"))
    peer.sock.close()
    await client.until(lambda seen: seen.events[-1] == "lost")


async def test_the_notice_of_the_end_waits_for_the_kernel_too(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    for number, size in enumerate(range(12_000, 15_000, 500)):
        peer = await connect_blocking(listener, certificates)
        client = await driver.client(number)
        sock: socket.socket = client.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_000)
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000)
        client.transport.write(bytes(size))
        client.transport.close()
        assert await peer.receive(size) == bytes(size)
        assert await asyncio.to_thread(peer.sock.recv, 1) == b""  # an end without the notice raises SSLEOFError
        peer.sock.close()


async def test_data_before_the_end_is_answered_although_both_come_together(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    peer = CutPeer(certificates, port_of(listener.address), VERSIONS[1])
    await peer.shake_hands()
    client = await driver.client()
    sealed = peer.seal(b"last request")
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.unwrap()

    def answer_in_the_turn(client: Seen, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(client.transport.write, data)

    driver.on_received = answer_in_the_turn
    peer.sock.send(sealed + peer.outgoing.read())
    await client.until(lambda seen: "lost" in seen.events)
    assert client.received == b"last request"
    assert await peer.receive(12) == b"last request"
    peer.sock.close()


async def test_a_probe_that_connects_and_leaves_is_not_logged(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("mqtts://127.0.0.1:0", tls=certificates.server())
    told: list[Notice] = []
    listener.gate.admission.report = told.append
    for beginning in (b"", b"\x16\x03\x01"):
        probe = socket.create_connection(("127.0.0.1", port_of(listener.address)))
        probe.sendall(beginning)
        probe.close()
        await until_refused(listener.gate.refused, 1 if not beginning else 2)
    await until_empty(listener)
    assert told == []


async def until_refused(refused: dict[str, int], count: int) -> None:
    async with within(PATIENCE):
        while refused.get("tls_handshake", 0) < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
@pytest.mark.parametrize("at", ["opened", "identified", "watching"])
async def test_a_connection_whose_opening_fails_leaves_nothing(
    driver: FakeDriver,
    listen: Open,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    scheme: str,
    at: str,
) -> None:
    tls = certificates.server(ca=certificates.ca, use_identity_as_username=True)
    listener = await listen(f"{scheme}://127.0.0.1:0", **({"tls": tls} if scheme == "mqtts" else {}))
    listener.gate.identity = True
    loop = asyncio.get_running_loop()
    assert isinstance(loop, BrokerLoop)
    opened = driver.opened

    def open_once(transport: object, *more: object) -> Seen:
        client = opened(transport, *more)  # type: ignore[arg-type]
        if at == "watching":
            loop.sockets.epoll.register(transport.get_extra_info("socket"), select.EPOLLIN)  # type: ignore[attr-defined]
        if at == "opened":
            raise LookupError
        return client

    def refuse(client: Seen) -> None:
        if at == "identified":
            raise LookupError

    monkeypatch.setattr(driver, "opened", open_once)
    monkeypatch.setattr(driver, "identified", refuse)
    if scheme == "mqtt":
        sock = socket.create_connection(("127.0.0.1", port_of(listener.address)))
    else:
        sock = (await connect_blocking(listener, certificates)).sock
    client = await driver.client()
    await until_empty(listener)
    assert listener.gate.admission.connections == 0 and listener.gate.admission.addresses == {}
    assert client.events == ([] if at == "opened" else ["lost"])
    assert client.transport.is_closing()  # type: ignore[attr-defined]
    other = socket.socket()  # it may have the number of the descriptor that was closed
    client.transport.write(b"to nobody")
    client.transport.close()
    client.transport.abort()
    assert client.transport.get_extra_info("peercert") is None
    other.close()
    sock.close()
    client.events.append("lost")
    assert ("opening a connection failed" in caplog.text) == (at != "watching"), "an OSError is the client's"


async def test_a_certificate_with_a_name_that_is_no_text_names_nobody(
    driver: FakeDriver, listen: Open, certificates: Certificates, tmp_path: Path
) -> None:
    """OpenSSL verifies it, but Python cannot decode it."""
    issued = certificates.authority.issue_cert("device.example", common_name="device")
    key = ec.generate_private_key(ec.SECP256R1())
    model = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    authority = certificates.authority.private_key_pem.bytes()
    name = b"\x30\x05\x82\x03a\xff\xfe"
    made = (
        x509.CertificateBuilder(model.issuer, model.subject, key.public_key(), 77)
        .not_valid_before(model.not_valid_before_utc)
        .not_valid_after(model.not_valid_after_utc)
        .add_extension(x509.UnrecognizedExtension(x509.OID_SUBJECT_ALTERNATIVE_NAME, name), critical=False)
        .sign(serialization.load_pem_private_key(authority, None), hashes.SHA256())  # type: ignore[arg-type]
    )
    (tmp_path / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    tls = certificates.server(ca=certificates.ca, require_client_cert=True, use_identity_as_username=True)
    listener = await listen("mqtts://127.0.0.1:0", tls=tls)
    paths = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    peer = await connect_blocking(listener, certificates, certificate=paths)
    client = await driver.client()
    assert certificate_name(client.transport) == ""
    peer.sock.close()
