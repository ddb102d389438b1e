"""A connection counts from the moment it is accepted, before its TLS handshake or its WebSocket request."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.patience import within

from starlingmq.config.settings import LimitsConfig
from starlingmq.core.broker import TURNED_AWAY
from starlingmq.core.connect.turned_away import OF_ADDRESS, OF_LISTENER
from starlingmq.core.context.ready import Notice
from starlingmq.net.listeners import accepting, descriptors
from starlingmq.net.listeners.connection_counts import ADDRESS_TURNED_AWAY, ConnectionCounts
from starlingmq.net.listeners.descriptors import Descriptors
from starlingmq.net.listeners.listeners import Listener

from .conftest import PATIENCE, Certificates, FakeDriver, Open
from .test_listeners import port_of, read_to_end
from .test_tls import client_context, connect, until_empty

SCHEMES = ["mqtt", "mqtts", "ws", "wss", "nats", "tls", "nats+ws", "nats+wss"]
ENCRYPTED = ["mqtts", "wss", "nats+wss"]  # tls:// begins in plain text


async def knock(listener: Listener, host: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a TCP connection that sends nothing."""
    return await asyncio.open_connection("127.0.0.1", port_of(listener.address), local_addr=(host, 0))


async def until(listener: Listener, connections: int) -> None:
    async with within(PATIENCE):
        while listener.gate.connections != connections:
            await asyncio.sleep(0.01)


def settings(scheme: str, certificates: Certificates) -> dict[str, object]:
    return {"tls": certificates.server()} if scheme in (*ENCRYPTED, "tls") else {}


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_silent_connections_count_for_their_listener(
    driver: FakeDriver, listen: Open, certificates: Certificates, scheme: str
) -> None:
    listener = await listen(f"{scheme}://127.0.0.1:0", max_connections=2, **settings(scheme, certificates))
    silent = [await knock(listener) for _ in range(2 + ADDRESS_TURNED_AWAY)]
    await until(listener, 2 + ADDRESS_TURNED_AWAY)
    reader, writer = await knock(listener)
    assert await read_to_end(reader) == b""
    assert listener.gate.refused == {"listener_max_connections": 1}
    for _, each in (*silent, (reader, writer)):
        each.close()
    await until_empty(listener)


async def test_connections_of_a_unix_socket_count(driver: FakeDriver, listen: Open, tmp_path: Path) -> None:
    admission = ConnectionCounts(LimitsConfig(connections_per_address=1))
    listener = await listen(f"unix://{tmp_path}/mqtt.sock", max_connections=9, options={"admission": admission})
    opened = [await asyncio.open_unix_connection(f"{tmp_path}/mqtt.sock") for _ in range(9 + ADDRESS_TURNED_AWAY + 1)]
    await until(listener, 9 + ADDRESS_TURNED_AWAY)
    assert await read_to_end(opened[-1][0]) == b""
    assert {client.full for client in driver.clients[:9]} == {0}, "it has no address that could have too many"
    assert {client.full for client in driver.clients[9:]} == {OF_LISTENER}
    assert admission.addresses == {}
    for _, writer in opened:
        writer.close()
    await until_empty(listener)
    assert admission.connections == 0


@pytest.mark.parametrize("scheme", ENCRYPTED)
async def test_silent_connections_to_a_tls_port_are_bounded_by_address_and_keep_out_nobody_else(
    driver: FakeDriver, listen: Open, certificates: Certificates, scheme: str
) -> None:
    admission = ConnectionCounts(LimitsConfig(connections_per_address=5))
    told: list[Notice] = []
    admission.report = told.append
    listener = await listen(f"{scheme}://127.0.0.1:0", tls=certificates.server(), options={"admission": admission})
    silent = [await knock(listener) for _ in range(100)]
    async with within(PATIENCE):
        while listener.gate.refused.get("connections_per_address") != 95 - ADDRESS_TURNED_AWAY:
            await asyncio.sleep(0.01)
    assert listener.gate.connections == admission.connections == 5 + ADDRESS_TURNED_AWAY
    assert {notice.reason for notice in told} == {"connections_per_address"}
    assert driver.clients == [], "none of them has completed its handshake"
    async with within(PATIENCE):
        _, writer = await asyncio.open_connection(
            "127.0.0.1",
            port_of(listener.address),
            local_addr=("127.0.0.2", 0),
            ssl=client_context(certificates),
            server_hostname="localhost",
        )
    client = await driver.client()
    assert (client.peer.partition(":")[0], client.full) == ("127.0.0.2", 0)
    for _, each in (*silent, (None, writer)):
        each.close()
    await until_empty(listener)
    assert admission.addresses == {}


async def test_silent_connections_to_all_listeners_count_for_the_process(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    admission = ConnectionCounts(LimitsConfig(max_connections=1))
    options = {"admission": admission}
    listeners = [
        await listen("mqtts://127.0.0.1:0", tls=certificates.server(), options=options),
        await listen("mqtt://127.0.0.1:0", options=options),
    ]
    bound = 1 + TURNED_AWAY
    silent = [await knock(listeners[number % 2]) for number in range(bound + 20)]
    async with within(PATIENCE):
        while sum(one.gate.refused.get("max_connections", 0) for one in listeners) != 20:
            await asyncio.sleep(0.01)
    assert admission.connections == bound == sum(one.gate.connections for one in listeners)
    for _, writer in silent:
        writer.close()
    for listener in listeners:
        await until_empty(listener)
    assert admission.connections == 0


async def test_those_beyond_the_limit_of_an_address_are_told_so_in_the_order_they_came(
    driver: FakeDriver, listen: Open
) -> None:
    admission = ConnectionCounts(LimitsConfig(connections_per_address=3))
    listener = await listen("mqtt://127.0.0.1:0", options={"admission": admission})
    opened = await asyncio.gather(*(knock(listener) for _ in range(5)))
    await driver.client(4)
    assert [client.full for client in driver.clients] == [0, 0, 0, OF_ADDRESS, OF_ADDRESS]
    for _, writer in opened:
        writer.close()
    await until_empty(listener)


async def test_a_banned_address_has_few_connections_at_once(
    driver: FakeDriver, listen: Open, certificates: Certificates
) -> None:
    admission = ConnectionCounts()
    admission.is_banned = lambda address: address == "127.0.0.1"
    options = {"admission": admission}
    plain = await listen("mqtt://127.0.0.1:0", options=options)
    with_certificates = await listen(
        "mqtts://127.0.0.1:0", tls=certificates.server(ca=certificates.ca), options=options
    )
    silent = [await knock(plain) for _ in range(ADDRESS_TURNED_AWAY + 5)]
    async with within(PATIENCE):
        while plain.gate.refused.get("banned") != 5:
            await asyncio.sleep(0.01)
    elsewhere = await knock(plain, "127.0.0.2")
    await until(plain, ADDRESS_TURNED_AWAY + 1)
    mine = certificates.issue("device.example", common_name="device")
    _, writer = await connect(with_certificates.address, client_context(certificates, mine))
    assert with_certificates.gate.connections == 1, "a right certificate outweighs the ban of its address"
    for _, each in (*silent, elsewhere, (None, writer)):
        each.close()
    await until_empty(plain)


@pytest.mark.parametrize("scheme", [*ENCRYPTED, "tls"])
async def test_a_listener_that_closes_ends_handshakes_and_no_connection(
    driver: FakeDriver, listen: Open, certificates: Certificates, scheme: str
) -> None:
    listener = await listen(f"{scheme}://127.0.0.1:0", tls=certificates.server())
    made = None
    if scheme == "mqtts":
        made = await connect(listener.address, client_context(certificates))
        await driver.client()
    reader, writer = await knock(listener)
    await until(listener, 1 if made is None else 2)
    listener.close()
    if scheme == "tls":  # it is already a client of the driver, which closes it
        (await driver.client()).transport.abort()
    await read_to_end(reader)
    await until(listener, 0 if made is None else 1)
    if made is not None:
        driver.clients[0].transport.write(b"still here")
        assert await made[0].readexactly(10) == b"still here"
        made[1].close()
    writer.close()


async def test_a_connection_that_is_gone_before_it_is_accepted_leaves_its_place(
    driver: FakeDriver, listen: Open
) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    for _ in range(20):
        sock = socket.create_connection(("127.0.0.1", port_of(listener.address)))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
        sock.close()
    _, writer = await knock(listener)
    await until(listener, 1)
    writer.close()
    await until_empty(listener)
    assert listener.gate.admission.addresses == {}


# Descriptors


def test_the_reserve_is_a_quarter_of_a_small_limit() -> None:
    assert [Descriptors(limit).for_clients for limit in (64, 256, 1024, 20_000)] == [48, 192, 768, 19_744]


async def test_accepting_waits_while_descriptors_are_short_and_then_goes_on(
    driver: FakeDriver, listen: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "LOOK_AGAIN", 0.02)
    monkeypatch.setattr(descriptors, "OVER_AFTER", 0.1)
    caplog.set_level("WARNING", "starlingmq")
    few = Descriptors(1 << 20)
    listener = await listen("mqtt://127.0.0.1:0", options={"admission": ConnectionCounts(descriptors=few)})
    accepted = _count_accepts(monkeypatch)
    monkeypatch.setattr(few, "allow", lambda descriptor: listener.gate.connections < 3)  # called for the next one too
    opened = [await knock(listener) for _ in range(3)]
    await until(listener, 3)
    waiting = [await knock(listener) for _ in range(3)]
    async with within(PATIENCE):
        while not few.short:
            await asyncio.sleep(0.01)
    looks = len(accepted)
    await asyncio.sleep(0.2)
    assert len(accepted) - looks <= 1, "accepting waits, and does not spin"
    assert (listener.gate.connections, listener.gate.refused) == (3, {}), "those that wait are not closed"
    for _, writer in (*opened, *waiting):
        writer.close()
    _, late = await knock(listener)
    await until(listener, 1)
    async with within(PATIENCE):
        while few.short:
            await asyncio.sleep(0.01)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "file descriptors are running out",
        "file descriptors are available again; new connections are accepted",
    ]
    late.close()
    await until_empty(listener)
    few.close()


def _count_accepts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the events of connections to accept."""
    calls: list[int] = []
    real = accepting.Acceptor._accept

    def accept(self: accepting.Acceptor, listening: socket.socket) -> None:
        calls.append(1)
        real(self, listening)

    monkeypatch.setattr(accepting.Acceptor, "_accept", accept)
    return calls
