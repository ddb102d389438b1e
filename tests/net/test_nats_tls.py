"""TLS as in NATS: INFO in plain text, then the handshake, on both event loops."""

from __future__ import annotations

import asyncio

from tests.patience import within

from starlingmq.core.connect.turned_away import OF_LISTENER
from starlingmq.net.listeners.client_certificate import certificate_name
from starlingmq.net.listeners.listeners import Listener

from .conftest import PATIENCE, Certificates, FakeDriver, Open, Seen
from .test_listeners import port_of, read_to_end
from .test_tls import client_context

INFO = b"INFO {}\r\n"


async def begin(listener: Listener, driver: FakeDriver) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Seen]:
    """Return a connection that has received INFO."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    client = await driver.client()
    client.transport.write(INFO)
    async with within(PATIENCE):
        assert await reader.readline() == INFO
    return reader, writer, client


async def test_tls_begins_after_info(driver: FakeDriver, listen: Open, certificates: Certificates) -> None:
    listener = await listen("tls://127.0.0.1:0", tls=certificates.server())
    driver.on_received = lambda client, data: client.transport.write(data)
    reader, writer, client = await begin(listener, driver)
    client.transport.write(b"+OK\r\n")  # kept until the handshake is complete
    async with within(PATIENCE):
        await writer.start_tls(client_context(certificates), server_hostname="localhost")
        assert await reader.readline() == b"+OK\r\n"
        writer.write(b"x" * 500_000)
        assert await reader.readexactly(500_000) == b"x" * 500_000
    assert client.events == ["secured"]
    client.transport.close()
    assert await read_to_end(reader) == b""
    await client.until(lambda seen: seen.events == ["secured", "lost"])
    assert listener.gate.connections == 0
    writer.close()


async def test_the_name_in_a_certificate(driver: FakeDriver, listen: Open, certificates: Certificates) -> None:
    tls = certificates.server(ca=certificates.ca, require_client_cert=True, use_identity_as_username=True)
    listener = await listen("tls://127.0.0.1:0", tls=tls)
    _, writer, client = await begin(listener, driver)
    context = client_context(certificates, certificates.issue("ann.example", "ann"))
    async with within(PATIENCE):
        await writer.start_tls(context, server_hostname="localhost")
        await client.until(lambda seen: seen.events == ["secured", "identified"])
    assert certificate_name(client.transport) == "ann"
    writer.close()


async def test_a_client_that_continues_without_tls_is_disconnected(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("tls://127.0.0.1:0", tls=certificates.server())
    reader, writer, client = await begin(listener, driver)
    writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
    assert b"PONG" not in await read_to_end(reader)
    await client.until(lambda seen: "lost" in seen.events)
    assert client.received == b""
    assert client.events == ["lost"]
    assert listener.gate.connections == 0
    assert listener.gate.refused == {"tls_handshake": 1}
    writer.close()


async def test_a_client_may_disconnect_before_the_handshake(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("tls://127.0.0.1:0", tls=certificates.server())
    _, writer, client = await begin(listener, driver)
    writer.close()
    await client.until(lambda seen: "lost" in seen.events)
    assert listener.gate.connections == 0


async def test_a_silent_client_has_the_handshake_time_only(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("tls://127.0.0.1:0", tls=certificates.server(), options={"handshake_timeout": 0.2})
    reader, writer, client = await begin(listener, driver)
    assert await read_to_end(reader) == b""
    await client.until(lambda seen: "lost" in seen.events)
    assert listener.gate.connections == 0
    writer.close()


async def test_a_handshake_is_cut_with_its_connection(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    listener = await listen("tls://127.0.0.1:0", tls=certificates.server())
    for end in ("close", "abort"):
        driver.clients.clear()
        reader, writer, client = await begin(listener, driver)
        getattr(client.transport, end)()
        client.transport.pause_reading()
        client.transport.resume_reading()
        if end == "close":  # after the handshake, so that no written data is lost
            async with within(PATIENCE):
                await writer.start_tls(client_context(certificates), server_hostname="localhost")
        assert await read_to_end(reader) == b""
        await client.until(lambda seen: "lost" in seen.events)
        assert listener.gate.connections == 0
        writer.close()


async def test_one_connection_too_many(driver: FakeDriver, listen: Open, certificates: Certificates) -> None:
    listener = await listen("tls://127.0.0.1:0", tls=certificates.server(), max_connections=1)
    _, first, _ = await begin(listener, driver)
    _, second = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    await driver.client(1)
    assert [client.full for client in driver.clients] == [0, OF_LISTENER]
    first.close()
    second.close()
