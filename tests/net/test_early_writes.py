"""When few clients are ready, what one of them causes is written before the next one is read."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Iterator

import pytest

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.net.client_output import TURNS_TOGETHER
from starlingmq.net.client_socket import ClientSocket
from starlingmq.net.client_sockets import FEW
from starlingmq.net.driver import Driver
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.storage.store import NoStore
from starlingmq.wire.mqtt import Connect, Publish, Subscribe, SubscribeRequest, encode

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")

MESSAGE = encode(Publish(b"t", b"x", 0, False, False, 0), 4)


class Clients:
    """A broker with one subscriber and some publishers. Their connections keep writes apart: one ``recv`` gets one."""

    def __init__(self, loop: BrokerLoop, publishers: int) -> None:
        self.loop = loop
        self.driver = Driver(BrokerState(MqttConfig(sys_interval=0.0), LimitsConfig(), 0.0, b"s" * 32), NoStore())
        self.ours: list[ClientSocket] = []
        self.subscriber = self.connected("subscriber", encode(Subscribe(1, [SubscribeRequest(b"t", 0)]), 4))
        self.publishers = [self.connected(f"publisher-{number}") for number in range(publishers)]

    def connected(self, client_id: str, more: bytes = b"") -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gate = ListenerGate("mqtt://test")
        assert gate.enter("peer")
        connection = ClientSocket(self.loop.sockets, self.driver, gate, ours, "peer")
        connection.open(self.driver, 0)
        ours.detach()
        self.ours.append(connection)
        theirs.setblocking(False)
        theirs.send(encode(Connect(4, client_id), 4) + more)
        self.loop.sockets.select(0.0)
        assert theirs.recv(100)
        return theirs

    def publish(self, publishers: int) -> list[int]:
        """So many of them publish one message each in the same round. The messages in each write."""
        for publisher in self.publishers[:publishers]:
            publisher.send(MESSAGE)
        self.loop.sockets.select(0.0)
        writes: list[int] = []
        while True:
            try:
                writes.append(len(self.subscriber.recv(10_000)) // len(MESSAGE))
            except BlockingIOError:
                return writes

    def close(self) -> None:
        for connection in self.ours:
            connection.abort()
        for end in (self.subscriber, *self.publishers):
            end.close()


@pytest.fixture
def clients() -> Iterator[Clients]:
    loop = BrokerLoop()
    asyncio.events._set_running_loop(loop)
    try:
        made = Clients(loop, FEW + 1)
        made.loop.sockets.select(0.0)
        yield made
        made.close()
    finally:
        asyncio.events._set_running_loop(None)
        loop.run_until_complete(asyncio.sleep(0))  # closes the descriptors
        loop.close()


def test_the_first_message_is_written_before_the_others_are_read(clients: Clients) -> None:
    assert clients.publish(3) == [1, 2]


def test_a_client_to_which_several_send_gets_one_write_per_turn_for_a_while(clients: Clients) -> None:
    clients.publish(2)
    for _ in range(TURNS_TOGETHER):
        assert clients.publish(2) == [2]
    assert clients.publish(2) == [1, 1]


def test_nothing_is_written_early_if_many_are_ready(clients: Clients) -> None:
    assert clients.publish(FEW + 1) == [FEW + 1]
    assert clients.publish(FEW) == [1, FEW - 1]


def test_messages_keep_their_order(clients: Clients) -> None:
    frames = [encode(Publish(b"t", b"%d" % number, 0, False, False, 0), 4) for number in range(3)]
    for publisher, frame in zip(clients.publishers, frames, strict=False):
        publisher.send(frame)
    clients.loop.sockets.select(0.0)
    assert clients.subscriber.recv(1000) + clients.subscriber.recv(1000) == b"".join(frames)
