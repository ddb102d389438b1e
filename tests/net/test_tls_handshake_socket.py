"""TLS handshakes that the event loop makes itself, in the rounds in which it serves clients' sockets."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from contextlib import suppress

import pytest
from tests.patience import slowness, within

from starlingmq.net.broker_loop import BrokerLoop, client_sockets
from starlingmq.net.listeners.handshake_queue import HandshakeQueue
from starlingmq.net.listeners.tls import server_context
from starlingmq.net.listeners.tls_handshake import Secured, TlsBuffers
from starlingmq.net.tls_handshake_socket import HandshakeSocket

from .conftest import PATIENCE, Certificates

pytestmark = [
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll"),
    pytest.mark.asyncio(loop_factories=["epoll"]),
]


class Client:
    """A client whose bytes a test passes on."""

    def __init__(self, certificates: Certificates, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=certificates.ca)
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def step(self) -> bool:
        """Continue with what has come; whether it is complete."""
        with suppress(BlockingIOError):
            self.incoming.write(self.sock.recv(100_000))
        try:
            self.tls.do_handshake()
            return True
        except ssl.SSLWantReadError:
            return False
        finally:
            self.sock.sendall(self.outgoing.read())


class UnderWay:
    """A handshake with its client."""

    def __init__(self, certificates: Certificates, timeout: float = PATIENCE) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.client = Client(certificates, theirs)
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[Secured] = self.loop.create_future()
        sockets = client_sockets(self.loop)
        assert sockets is not None
        context = server_context(certificates.server(), ["mqtt"])
        self.queue = HandshakeQueue()
        self.server = HandshakeSocket(sockets, self.ours, context, TlsBuffers(), self.queue, self.ended)
        self.server.begin(timeout)

    def ended(self, secured: Secured | None, error: Exception | None) -> None:
        if secured is not None:
            self.result.set_result(secured)
        else:
            assert error is not None
            self.result.set_exception(error)

    async def finish(self) -> Secured:
        async with within(PATIENCE):
            while not self.client.step():
                await asyncio.sleep(0)
            return await self.result

    def close(self) -> None:
        self.ours.close()
        self.client.sock.close()


async def test_a_handshake_has_no_task(certificates: Certificates) -> None:
    tasks = asyncio.all_tasks()
    under_way = UnderWay(certificates)
    assert asyncio.all_tasks() == tasks
    secured = await under_way.finish()
    assert secured.tls.version() == "TLSv1.3" and secured.unsent == b""
    under_way.close()


async def test_an_answer_for_which_the_kernel_has_no_room_is_sent_later(certificates: Certificates) -> None:
    under_way = UnderWay(certificates)
    blocked = 0
    under_way.client.step()  # sends its first message
    under_way.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    while True:  # fill it
        try:
            blocked += under_way.ours.send(bytes(100))
        except BlockingIOError:
            break
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert under_way.server.is_sending()
    async with within(PATIENCE):
        while blocked > 0:
            try:
                blocked -= len(under_way.client.sock.recv(blocked))
            except BlockingIOError:
                await asyncio.sleep(0)
    await under_way.finish()
    under_way.close()


async def test_a_client_that_leaves_ends_its_handshake(certificates: Certificates) -> None:
    under_way = UnderWay(certificates)
    under_way.client.sock.close()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(under_way.result, PATIENCE * slowness())
    under_way.close()


async def test_a_silent_client_has_until_the_time_limit(certificates: Certificates) -> None:
    under_way = UnderWay(certificates, timeout=0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(under_way.result, PATIENCE * slowness())
    under_way.close()


async def test_a_handshake_that_waits_for_others_is_not_polled(certificates: Certificates) -> None:
    under_way = UnderWay(certificates)
    loop = under_way.loop
    assert isinstance(loop, BrokerLoop)
    under_way.queue.seconds_per_turn = 0.0  # there is no time left in any turn
    under_way.client.step()
    loop.sockets.select(0.0)
    assert under_way.queue.waiting == 1
    loop.sockets.select(0.0)
    assert under_way.queue.waiting == 1
    under_way.queue.seconds_per_turn = PATIENCE
    await under_way.finish()
    under_way.close()


async def test_a_client_comes_back_with_its_ticket(certificates: Certificates) -> None:
    context = server_context(certificates.server(), ["mqtt"])
    assert context.num_tickets == 1  # a second one costs as much, and no client of MQTT needs it
    ours, theirs = socket.socketpair()
    trusting = ssl.create_default_context(cafile=certificates.ca)

    def serve(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as served:
            served.sendall(b"x")
            served.recv(1)

    def dial(sock: socket.socket, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        with trusting.wrap_socket(sock, server_hostname="localhost", session=session) as connected:
            assert connected.recv(1) == b"x"
            connected.sendall(b"y")
            return connected.session, connected.session_reused

    _, (session, reused) = await asyncio.gather(asyncio.to_thread(serve, ours), asyncio.to_thread(dial, theirs, None))
    assert session is not None and not reused
    ours, theirs = socket.socketpair()
    _, (_, reused) = await asyncio.gather(asyncio.to_thread(serve, ours), asyncio.to_thread(dial, theirs, session))
    assert reused
