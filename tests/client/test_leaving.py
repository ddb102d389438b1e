"""A client that leaves has its last acknowledgements read by the broker, although more messages are on their way."""

from __future__ import annotations

import asyncio

from starlingmq.client import Client
from starlingmq.client.client import UNREAD_MAX
from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Packet, Publish
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
