"""The far connection of a bridge: acknowledgements are read together, anything else at once, in a broker's rounds."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.bridges.real import Near, Serve, bridge, reading, serving
from tests.patience import within

from starlingmq.bridges.bridge import MqttBridge
from starlingmq.bridges.far_line import ACK, GATHER_FROM, GATHER_MOST, FarLine, Gathering, in_rounds
from starlingmq.client import Client
from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Tls, parse_url
from starlingmq.client.link import Link
from starlingmq.net.broker_loop import BrokerLoop

PATIENCE = 20.0
PUBACK = b"\x40\x02\x00\x01"
COUNT = 300
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A bridge's end of a TCP connection, and the far broker's."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        far, _ = server.accept()
        with far:
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield ours, far


def reported(sock: socket.socket) -> bool:
    """Whether the system would wake the bridge."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


async def test_three_quarters_of_the_acknowledgements_wake_the_bridge_once(ends: Ends) -> None:
    ours, far = ends
    gathering = Gathering(ours)
    gathering.came(len(PUBACK), 20)
    for _ in range(14):
        far.sendall(PUBACK)
        assert not reported(ours)
    far.sendall(PUBACK)
    assert reported(ours)
    gathering.stop()


async def test_a_message_that_comes_alone_meanwhile_is_reported_after_a_moment(ends: Ends) -> None:
    ours, far = ends
    gathering = Gathering(ours)
    gathering.came(len(PUBACK), 1000)
    assert gathering.low == GATHER_MOST
    came = asyncio.Event()
    asyncio.get_running_loop().add_reader(ours, came.set)
    far.sendall(b"\x30\x00")
    assert not reported(ours)
    async with within(PATIENCE):
        await came.wait()
    asyncio.get_running_loop().remove_reader(ours)
    assert gathering.low == 1
    gathering.stop()


async def test_few_messages_in_flight_are_not_gathered(ends: Ends) -> None:
    ours, _ = ends
    gathering = Gathering(ours)
    gathering.came(len(PUBACK), GATHER_FROM - 1)
    assert gathering.low == 1
    gathering.came(GATHER_FROM * ACK, GATHER_FROM)
    assert gathering.low == 1, "they come together anyway"
    gathering.came(len(PUBACK), 40)
    assert gathering.low == 120
    gathering.came(120, 30)
    assert gathering.low == 90, "120 bytes may not come"
    gathering.came(90, GATHER_FROM - 1)
    assert gathering.low == 1
    gathering.stop()


def bridge_of(near: Near) -> MqttBridge:
    assert near.broker._bridges is not None
    found = near.broker._bridges._bridges["b"]
    assert isinstance(found, MqttBridge)
    return found


def test_a_bridge_carries_in_the_rounds_and_connects_again() -> None:
    async def test() -> None:
        async with within(PATIENCE), serving() as serve:
            far = await serve()
            near = await serve(bridge(far.url, {"filter": "out/#"}), node={"name": "near"})
            await near.connected()
            line = bridge_of(near)._link
            assert type(line) is FarLine
            async with reading(far.url, "out/#") as reader, Client(near.url) as client:
                for part in ("before", "after"):
                    async with asyncio.TaskGroup() as sending:
                        for number in range(COUNT):
                            sending.create_task(client.publish("out/a", f"{part} {number}", qos=1))
                    found = [each.payload for each in await reader.take(COUNT)]
                    assert sorted(found) == sorted(f"{part} {number}".encode() for number in range(COUNT))
                    if part == "before":
                        bridge_of(near)._link.abort()  # type: ignore[union-attr]
                        await near.until(lambda _: bridge_of(near)._link not in (None, line))
                        await near.connected()

    with asyncio.Runner(loop_factory=BrokerLoop) as runner:
        runner.run(test())


def test_nothing_stays_open_where_no_descriptor_is_left() -> None:
    class Owner:
        def link_received(self, data: bytes) -> None:
            raise AssertionError("nothing was sent")

        def link_lost(self, link: object, error: Exception | None) -> None:
            pass

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            endpoint = parse_url(f"mqtt://127.0.0.1:{server.getsockname()[1]}")
            link = await open_link(endpoint, Tls(), Owner())
            far, _ = server.accept()
            far.setblocking(False)
            with far:
                free = os.dup(far.fileno())
                os.close(free)
                bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, bounds[1]))
                try:
                    with pytest.raises(OSError, match="Too many open files"):
                        in_rounds(link, endpoint, Owner())
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
                async with within(PATIENCE):
                    with suppress(ConnectionResetError):
                        assert await asyncio.get_running_loop().sock_recv(far, 1) == b""

    with asyncio.Runner(loop_factory=BrokerLoop) as runner:
        runner.run(test())


async def test_the_end_of_an_earlier_connection_does_not_hold_the_next_one_back(serve: Serve) -> None:
    far = await serve()
    near = await serve(bridge(far.url, {"filter": "out/#"}), node={"name": "near"})
    await near.connected()
    found = bridge_of(near)
    earlier = Link(found)
    earlier.on_writable = lambda: found._watch_room(earlier)
    earlier.connection_lost(None)
    assert found._near is not None and not found._near.blocked


def test_a_far_broker_that_does_not_read_is_noticed(ends: Ends) -> None:
    class Owner:
        def link_received(self, data: bytes) -> None:
            raise AssertionError("nothing was sent")

        def link_lost(self, link: object, error: Exception | None) -> None:
            lost.append(link)

    lost: list[object] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, BrokerLoop)
        ours, far = ends
        line = FarLine(Owner(), loop.sockets, ours.dup())
        room = asyncio.Event()
        line.on_writable = room.set
        while line.writable:
            line.write(bytes(1 << 20))
        far.setblocking(False)
        async with within(PATIENCE):
            while not room.is_set():
                await loop.sock_recv(far, 1 << 20)
        assert line.writable
        line.abort()
        while not lost:
            await asyncio.sleep(0)
        assert lost == [line]

    with asyncio.Runner(loop_factory=BrokerLoop) as runner:
        runner.run(test())
