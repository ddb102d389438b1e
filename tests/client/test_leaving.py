"""A client that leaves has its last acknowledgements read by the broker, although more messages are on their way."""

from __future__ import annotations

import asyncio
import select
import socket
import struct

from starlingmq.client import Client
from starlingmq.client.client import UNREAD_MAX
from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Packet, Publish, encode
from starlingmq.wire.packets import PUBACK
from tests.patience import within
from tests.peer import Peer

WAITING = b"x" * 10_000
COUNT = 800  # more bytes than the buffers of two sockets take while the client reads nothing


async def test_acknowledgements_are_not_lost_with_unread_messages() -> None:
    """A socket that is closed with unread bytes resets the connection; a broker that is writing then reads no more."""
    read: asyncio.Future[list[Packet | None]] = asyncio.get_running_loop().create_future()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, 5)
        try:
            await peer.expect(Connect)
            peer.send(Connack(False, 0), Publish(b"a", b"first", 1, packet_id=1))
            peer.send(*(Publish(b"a", b"") for _ in range(UNREAD_MAX)))
            peer.send(*(Publish(b"a", WAITING) for _ in range(COUNT)))
            await writer.drain()
            read.set_result([await peer.receive(), await peer.receive(), await peer.receive()])
        except OSError as error:
            read.set_exception(error)
        finally:
            writer.close()

    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, within(30):
        async with Client(f"mqtt://127.0.0.1:{port}", reconnect=False) as client:
            async for message in client.messages():
                assert message.payload == b"first"
                break
        acknowledged, goodbye, end = await read
    assert isinstance(acknowledged, Ack) and acknowledged.type == PUBACK
    assert isinstance(goodbye, Disconnect) and end is None


async def test_a_connection_that_was_reset_ends_at_once() -> None:
    """Also where nothing is left to be written, which would have shown it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = Client(f"mqtt://127.0.0.1:{port}", reconnect=False)
        connecting = asyncio.ensure_future(client.connect())
        there, _ = await asyncio.get_running_loop().run_in_executor(None, server.accept)
        with there:
            there.sendall(encode(Connack(False, 0), 5))
            async with within(30):
                await connecting
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link = client._link
        assert link is not None
        poll = select.poll()
        poll.register(link.socket().fileno(), select.POLLHUP)
        assert poll.poll(20_000)
        link.end(20.0)
        async with within(10):
            await link.closed
