from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.patience import within

from starlingmq.core.connect.turned_away import OF_LISTENER
from starlingmq.net.listeners.connection_counts import ADDRESS_TURNED_AWAY
from starlingmq.net.listeners.listeners import ListenerError
from starlingmq.net.listeners.sockets import hold_shared, listen_tcp

from .conftest import PATIENCE, FakeDriver, Open


def port_of(address: str) -> int:
    port = urlsplit(address).port
    assert port
    return port


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the other side closes or resets the connection."""
    data = b""
    async with within(PATIENCE):
        try:
            while more := await reader.read(65536):
                data += more
        except (ConnectionError, ssl.SSLError):
            pass
    return data


async def test_bytes_go_both_ways_under_the_address_that_was_bound(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    driver.on_received = lambda client, data: client.transport.write(data.upper())
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"HELLO"
    client = await driver.client()
    host, port = writer.get_extra_info("sockname")
    assert client.listener == listener.address == f"mqtt://127.0.0.1:{port_of(listener.address)}"
    assert client.peer == f"{host}:{port}"
    writer.close()
    await client.until(lambda seen: seen.events == ["lost"])
    assert listener.gate.connections == 0


async def test_small_writes_are_not_held_back(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    sock = (await driver.client()).transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    writer.close()


async def test_localhost_has_one_free_port_on_all_its_addresses(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://localhost:0")
    port = port_of(listener.address)
    assert listener.address == f"mqtt://localhost:{port}"
    found = await asyncio.get_running_loop().getaddrinfo("localhost", port, type=socket.SOCK_STREAM)
    for index, (_, _, _, _, address) in enumerate(found):
        _, writer = await asyncio.open_connection(str(address[0]), port)
        await driver.client(index)
        writer.close()


async def test_no_host_means_every_address(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://:0")
    assert listener.address == f"mqtt://0.0.0.0:{port_of(listener.address)}"
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    await driver.client()
    writer.close()


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
async def test_ipv6_addresses_stand_in_brackets(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://[::1]:0")
    assert listener.address.startswith("mqtt://[::1]:")
    _, writer = await asyncio.open_connection("::1", port_of(listener.address))
    assert (await driver.client()).peer == f"[::1]:{writer.get_extra_info('sockname')[1]}"
    writer.close()


async def test_a_port_that_is_taken_is_said_in_one_line(listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    with pytest.raises(ListenerError) as caught:
        await listen(listener.address)
    assert str(caught.value) == f"{listener.address}: cannot listen: Address already in use"


def test_a_port_is_held_after_a_crash_and_for_nobody_else() -> None:
    """Connections that the former broker closed remain in TIME_WAIT on the port, and must not block the next one."""
    former = socket.create_server(("127.0.0.1", 0))
    where = former.getsockname()
    with former, socket.create_connection(where) as client:
        former.accept()[0].close()
        assert client.recv(1) == b""
    addresses = [(socket.AF_INET, where)]
    held = hold_shared(addresses, where[1])
    with pytest.raises(OSError, match="in use"):
        listen_tcp(addresses, where[1])
    shared = listen_tcp(addresses, where[1], shared=True)
    for each in (*held, *shared):
        each.close()


async def test_a_host_that_is_not_there_is_said_in_one_line(listen: Open) -> None:
    with pytest.raises(ListenerError, match=r"^mqtt://no-such-host\.invalid:1883: cannot listen: [^\n]+$"):
        await listen("mqtt://no-such-host.invalid:1883")
    with pytest.raises(ListenerError, match=r"^mqtt://192\.0\.2\.1:1883: cannot listen: Cannot assign"):
        await listen("mqtt://192.0.2.1:1883")


def test_an_address_the_machine_does_not_have_is_passed_over_if_there_is_another() -> None:
    here, elsewhere = (int(socket.AF_INET), ("127.0.0.1", 0)), (int(socket.AF_INET), ("192.0.2.1", 0))
    sockets = listen_tcp([elsewhere, here], 0)
    assert [sock.getsockname()[0] for sock in sockets] == ["127.0.0.1"]
    sockets[0].close()


def test_a_free_port_is_free_on_every_address() -> None:
    addresses = [(int(socket.AF_INET), (f"127.0.0.{last}", 0)) for last in (1, 2, 3)]
    sockets = listen_tcp(addresses, 0)
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in sockets:
        sock.close()


async def test_a_full_listener_refuses_connections(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0", max_connections=1)
    port = port_of(listener.address)
    _, first = await asyncio.open_connection("127.0.0.1", port)
    client = await driver.client()
    waiting = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(ADDRESS_TURNED_AWAY)]
    await driver.client(ADDRESS_TURNED_AWAY)
    assert {one.full for one in driver.clients[1:]} == {OF_LISTENER}
    reader, second = await asyncio.open_connection("127.0.0.1", port)
    assert await read_to_end(reader) == b""
    assert listener.gate.refused == {"listener_max_connections": 1}
    for writer in (first, second, *waiting):
        writer.close()
    await client.until(lambda seen: "lost" in seen.events)
    _, third = await asyncio.open_connection("127.0.0.1", port)
    await driver.client(1)
    third.close()


async def test_a_closed_listener_accepts_no_more_and_leaves_its_connections_be(
    driver: FakeDriver, listen: Open
) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    port = port_of(listener.address)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = await driver.client()
    listener.close()
    listener.close()
    client.transport.write(b"still here")
    assert await reader.readexactly(10) == b"still here"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def test_a_peer_that_does_not_read_is_told_of_and_so_is_its_return(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0", options={"write_buffer": 4096})
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address), limit=1024)
    client = await driver.client()
    sent = 0
    while "blocked" not in client.events:
        client.transport.write(bytes(65536))
        sent += 65536
    await reader.readexactly(sent)
    await client.until(lambda seen: seen.events == ["blocked", "drained"])
    writer.close()


async def test_reading_can_be_held_and_let_go(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    client = await driver.client()
    driver.on_received = lambda client, data: client.transport.pause_reading()
    writer.write(b"one")
    await client.until(lambda seen: seen.received == b"one")
    writer.write(b"two")
    # An echo on another connection proves that the loop has had a turn while "two" was in the socket.
    _, other = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    other.write(b"three")
    await (await driver.client(1)).until(lambda seen: seen.received == b"three")
    assert client.received == b"one"
    client.transport.resume_reading()
    await client.until(lambda seen: seen.received == b"onetwo")
    writer.close()
    other.close()


async def test_a_unix_socket_carries_mqtt_and_its_file_goes_with_it(
    driver: FakeDriver, listen: Open, tmp_path: Path
) -> None:
    path = tmp_path / "broker.sock"
    listener = await listen(f"unix://{path}")
    assert listener.address == f"unix://{path}"
    assert stat.S_ISSOCK(path.stat().st_mode)
    driver.on_received = lambda client, data: client.transport.write(data)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    assert (await driver.client()).peer == "unix"
    listener.close()
    assert not path.exists()
    writer.close()


async def test_the_socket_file_of_a_dead_process_is_replaced(driver: FakeDriver, listen: Open, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    await listen(f"unix://{path}")
    _, writer = await asyncio.open_unix_connection(path)
    await driver.client()
    writer.close()


async def test_the_socket_file_of_a_living_process_is_not_replaced(listen: Open, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen(0)
        with pytest.raises(ListenerError, match="Address already in use"):
            await listen(f"unix://{path}")
    assert path.exists()


async def test_a_file_that_is_no_socket_is_not_touched(listen: Open, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    path.write_text("precious")
    with pytest.raises(ListenerError, match="a file exists there that is not a socket"):
        await listen(f"unix://{path}")
    assert path.read_text() == "precious"


async def test_a_socket_file_that_became_another_ones_is_left_alone(listen: Open, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    listener = await listen(f"unix://{path}")
    os.rename(path, tmp_path / "moved.sock")
    path.write_text("another's")
    listener.close()
    assert path.read_text() == "another's"
