"""Clients that only receive and acknowledge: the event loop does not wait for them while their PUBACKs are expected."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from tests.patience import slowness

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.net.client_owner import ClientOwner, OtherOwner
from starlingmq.net.client_socket import READ, RECEIVER, ClientSocket
from starlingmq.net.client_sockets import (
    BYTES_WITHOUT_RECEIVERS,
    EVENTS,
    EVENTS_MANY,
    RECEIVERS_WAIT,
    ROUNDS_WITHOUT_RECEIVERS,
)
from starlingmq.net.driver import Driver
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.storage.store import NoStore
from starlingmq.wire.mqtt import Connect, Publish, Subscribe, SubscribeRequest, ack_frame, encode

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")

ACK = ack_frame(0x40, 1)
PING = b"\xc0\x00"
MESSAGE = b"\x30\x03\0\x01t"


class Owner:
    """Records what is read, by the number of the client. ``patient``: its answer to ``may_wait``."""

    def __init__(self, loop: BrokerLoop) -> None:
        self.loop = loop
        self.reads: list[tuple[int, bytes]] = []
        self.read_at = 0.0
        self.patient = True
        self.opened_clients = 0

    def opened(self, transport: ClientSocket, listener: str, peer: str, full: int) -> int:
        self.opened_clients += 1
        return self.opened_clients - 1

    def received(self, client: int, data: bytes) -> None:
        self.reads.append((client, data))
        self.read_at = monotonic()
        self.loop.sockets.asked = True  # ends the select

    def may_wait(self, client: int) -> bool:
        return self.patient

    def lost(self, client: int) -> None:
        self.reads.append((client, b"lost"))

    def blocked(self, client: int) -> None:
        pass

    def drained(self, client: int) -> None:
        pass


class Connections:
    """Connections of an event loop that does not run: a test calls its rounds."""

    def __init__(self, loop: BrokerLoop, owner: ClientOwner) -> None:
        self.loop = loop
        self.sockets = loop.sockets
        self.owner = owner
        self.ours: list[ClientSocket] = []
        self.theirs: list[socket.socket] = []

    def open(self, driver: Any) -> int:
        """The number of a new connection."""
        ours, theirs = socket.socketpair()
        theirs.settimeout(10.0 * slowness())
        gate = ListenerGate("mqtt://test")
        assert gate.enter("peer")
        connection = ClientSocket(self.sockets, self.owner, gate, ours, "peer")
        connection.open(driver, 0)
        ours.detach()
        self.ours.append(connection)
        self.theirs.append(theirs)
        return len(self.ours) - 1

    def close(self) -> None:
        for connection in self.ours:
            connection.abort()
        for end in self.theirs:
            end.close()

    def round(self) -> None:
        self.sockets.select(0.0)

    def acknowledge(self, number: int, times: int = RECEIVER) -> None:
        """One read each."""
        for _ in range(times):
            self.theirs[number].send(ACK)
            self.round()


@pytest.fixture
def loop() -> Iterator[BrokerLoop]:
    made = BrokerLoop()
    asyncio.events._set_running_loop(made)
    try:
        yield made
    finally:
        asyncio.events._set_running_loop(None)
        made.run_until_complete(asyncio.sleep(0))  # closes the descriptors
        made.close()


@pytest.fixture
def owner(loop: BrokerLoop) -> Owner:
    return Owner(loop)


@pytest.fixture
def connections(loop: BrokerLoop, owner: Owner) -> Iterator[Connections]:
    made = Connections(loop, OtherOwner(owner))
    yield made
    made.close()


@pytest.fixture
def pair(connections: Connections, owner: Owner) -> tuple[int, int]:
    """A sender and a receiver, which is known as one."""
    sender, receiver = sender_and_client(connections, owner)
    connections.acknowledge(receiver)
    assert connections.sockets.receivers == 1
    owner.reads.clear()
    return sender, receiver


def sender_and_client(connections: Connections, owner: Owner) -> tuple[int, int]:
    sender, client = connections.open(owner), connections.open(owner)
    connections.theirs[sender].send(MESSAGE)
    connections.round()
    return sender, client


def order_of_reads(connections: Connections, owner: Owner, *sent: tuple[int, bytes]) -> list[int]:
    """The order of reads by number of the client if this was sent, in this order."""
    connections.round()  # epoll keeps a place in its list for a socket until it finds it empty
    owner.reads.clear()
    for number, data in sent:
        connections.theirs[number].send(data)
    while len(owner.reads) < len(sent):
        connections.round()
    return [number for number, _ in owner.reads]


def test_acknowledgements_are_read_after_messages(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    sender, receiver = pair
    assert order_of_reads(connections, owner, (receiver, ACK), (sender, MESSAGE)) == [sender, receiver]
    assert order_of_reads(connections, owner, (sender, MESSAGE), (receiver, ACK)) == [sender, receiver]


def test_what_a_receiver_sent_is_read_before_its_next_connection(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    _, receiver = pair
    new = connections.open(owner)
    assert order_of_reads(connections, owner, (new, b"CONNECT"), (receiver, b"DISCONNECT")) == [receiver, new]


def test_acknowledgements_wait_for_some_small_rounds(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    sender, receiver = pair
    connections.round()  # receivers are read in a round without others
    connections.theirs[receiver].send(ACK)
    for _ in range(ROUNDS_WITHOUT_RECEIVERS):
        connections.theirs[sender].send(MESSAGE)
        connections.round()
    assert owner.reads == [(sender, MESSAGE)] * ROUNDS_WITHOUT_RECEIVERS
    connections.theirs[sender].send(MESSAGE)
    connections.round()
    assert owner.reads[-2:] == [(sender, MESSAGE), (receiver, ACK)]


def test_acknowledgements_do_not_wait_after_a_round_that_read_much(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    sender, receiver = pair
    connections.theirs[sender].send(bytes(READ))
    connections.round()  # the next read is a large one
    owner.reads.clear()
    connections.theirs[receiver].send(ACK)
    connections.theirs[sender].send(bytes(BYTES_WITHOUT_RECEIVERS + 1))
    connections.round()
    assert [number for number, _ in owner.reads] == [sender, receiver]


def test_an_expected_acknowledgement_does_not_end_the_wait(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    _, receiver = pair
    connections.ours[receiver].write(MESSAGE)
    connections.theirs[receiver].send(ACK)
    began = monotonic()
    connections.sockets.select(60.0)
    assert owner.reads == [(receiver, ACK)]
    assert owner.read_at - began > RECEIVERS_WAIT * 0.9


def test_a_receiver_that_owes_nothing_ends_the_wait(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    _, receiver = pair
    connections.ours[receiver].write(MESSAGE)
    connections.sockets.select(RECEIVERS_WAIT * 2)  # it is slow
    assert not connections.sockets.awaits_acknowledgements  # else an idle broker would wake up 200 times a second
    connections.theirs[receiver].send(PING)
    connections.sockets.select(None)
    assert owner.reads == [(receiver, PING)]
    assert connections.sockets.receivers == 1


def test_the_end_of_a_receiver_is_seen(connections: Connections, owner: Owner, pair: tuple[int, int]) -> None:
    _, receiver = pair
    connections.theirs[receiver].close()
    connections.sockets.select(None)
    assert connections.ours[receiver].is_closing()
    assert connections.sockets.receivers == 0


@pytest.mark.parametrize("patient", [True, False])
def test_a_client_is_a_receiver_only_if_nothing_waits_for_its_acknowledgements(
    connections: Connections, owner: Owner, patient: bool
) -> None:
    sender, receiver = sender_and_client(connections, owner)
    owner.patient = patient
    connections.acknowledge(receiver, RECEIVER - 1)
    assert connections.sockets.receivers == 0
    connections.acknowledge(receiver)
    assert connections.sockets.receivers == int(patient)
    expected = [sender, receiver] if patient else [receiver, sender]
    assert order_of_reads(connections, owner, (receiver, ACK), (sender, MESSAGE)) == expected


def test_a_receiver_that_sends_something_else_never_becomes_one_again(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    sender, receiver = pair
    connections.theirs[receiver].send(MESSAGE)
    connections.round()
    connections.acknowledge(receiver, 2 * RECEIVER)
    assert connections.sockets.receivers == 0
    assert order_of_reads(connections, owner, (receiver, ACK), (sender, MESSAGE)) == [receiver, sender]


def test_a_receiver_for_whose_acknowledgement_something_waits_is_none(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    _, receiver = pair
    owner.patient = False
    connections.acknowledge(receiver, 1)
    assert connections.sockets.receivers == 0


def test_a_receiver_that_does_not_read_gets_everything_later(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    _, receiver = pair
    size = 4_000_000
    connections.ours[receiver].write(bytes(size))
    assert connections.sockets.receivers == 0
    found = 0
    while found < size:
        found += len(connections.theirs[receiver].recv(size))
        connections.round()
    assert found == size


def test_a_paused_receiver_is_read_when_it_is_resumed(
    connections: Connections, owner: Owner, pair: tuple[int, int]
) -> None:
    _, receiver = pair
    connections.ours[receiver].pause_reading()
    connections.theirs[receiver].send(ACK)
    connections.round()
    connections.round()
    assert owner.reads == []
    connections.ours[receiver].resume_reading()
    connections.round()
    assert owner.reads == [(receiver, ACK)]


def test_a_crowd_of_receivers_is_read_before_a_new_connection(connections: Connections, owner: Owner) -> None:
    new = connections.open(owner)
    crowd = [connections.open(owner) for _ in range(EVENTS_MANY + 50)]
    for receiver in crowd:
        connections.acknowledge(receiver)
    assert connections.sockets.receivers == len(crowd)
    owner.reads.clear()
    connections.theirs[new].send(MESSAGE)
    for receiver in crowd:
        connections.theirs[receiver].send(ACK)
    while (new, MESSAGE) not in owner.reads:
        connections.round()
    assert owner.reads.index((new, MESSAGE)) == len(crowd)
    assert connections.sockets.receivers < len(crowd)  # those of a round without others are none for a while


def test_many_acknowledgements_are_read_without_waiting_for_others(connections: Connections, owner: Owner) -> None:
    crowd = [connections.open(owner) for _ in range(3 * EVENTS)]
    for receiver in crowd:
        connections.acknowledge(receiver)
        connections.ours[receiver].write(MESSAGE)
    owner.reads.clear()
    for receiver in crowd:
        connections.theirs[receiver].send(ACK)
    before = connections.sockets.rounds
    connections.round()
    while len(owner.reads) < len(crowd):
        assert not connections.sockets.awaits_acknowledgements
        connections.sockets.select(None)
    assert connections.sockets.rounds - before < 10


# With a broker


def broker(loop: BrokerLoop, **mqtt: Any) -> Connections:
    state = BrokerState(MqttConfig(sys_interval=0.0, **mqtt), LimitsConfig(), 0.0, b"s" * 32)
    return Connections(loop, Driver(state, NoStore()))


def send(connections: Connections, number: int, *packets: Any) -> bytes:
    """Send these packets in one read; the answer."""
    connections.theirs[number].send(b"".join(encode(packet, 4) for packet in packets))
    connections.round()
    return connections.theirs[number].recv(1000)


def subscriber_and_publisher(connections: Connections) -> tuple[int, int]:
    subscriber, publisher = connections.open(connections.owner), connections.open(connections.owner)
    send(connections, subscriber, Connect(4, "subscriber"), Subscribe(1, [SubscribeRequest(b"t", 1)]))
    send(connections, publisher, Connect(4, "publisher"))
    return subscriber, publisher


def deliver(connections: Connections, subscriber: int, publisher: int, id: int) -> None:
    """One message, and its acknowledgements."""
    assert send(connections, publisher, Publish(b"t", b"x", 1, False, False, id)) == ack_frame(0x40, id)
    connections.theirs[subscriber].send(ack_frame(0x40, int.from_bytes(connections.theirs[subscriber].recv(100)[5:7])))


def test_a_subscriber_becomes_a_receiver_and_is_acknowledged_to_in_the_turn_of_the_next_message(
    loop: BrokerLoop,
) -> None:
    connections = broker(loop)
    subscriber, publisher = subscriber_and_publisher(connections)
    for id in range(1, RECEIVER + 10):
        deliver(connections, subscriber, publisher, id)
    assert connections.sockets.receivers == 1
    rounds = connections.sockets.rounds
    for id in range(100, 110):
        deliver(connections, subscriber, publisher, id)
    assert connections.sockets.rounds == rounds + 10
    connections.close()


def test_acknowledgements_of_receivers_cost_no_turn(loop: BrokerLoop) -> None:
    connections = broker(loop)
    subscriber, publisher = subscriber_and_publisher(connections)
    for id in range(1, RECEIVER + 10):
        deliver(connections, subscriber, publisher, id)
    before = turns(connections)
    for id in range(100, 120):
        deliver(connections, subscriber, publisher, id)
    connections.round()
    assert turns(connections) == before + 20
    connections.theirs[subscriber].send(PING)
    connections.round()
    assert connections.theirs[subscriber].recv(100) == b"\xd0\0"  # which needs one
    assert turns(connections) == before + 21
    connections.close()


def turns(connections: Connections) -> int:
    driver = connections.owner
    assert isinstance(driver, Driver)
    return sum(driver.state.ctx.counters.turns.counts)


def test_a_full_window_is_emptied_in_the_round_of_the_message_that_waits(loop: BrokerLoop) -> None:
    connections = broker(loop, max_inflight=1)
    subscriber, publisher = subscriber_and_publisher(connections)
    for id in range(1, RECEIVER + 30):
        deliver(connections, subscriber, publisher, id)  # reads it after one round
    assert connections.sockets.receivers == 1
    connections.close()


def test_a_subscriber_with_a_queue_is_no_receiver(loop: BrokerLoop) -> None:
    connections = broker(loop, max_inflight=1)
    subscriber, publisher = subscriber_and_publisher(connections)
    for id in range(1, RECEIVER + 10):
        deliver(connections, subscriber, publisher, id)
    assert connections.sockets.receivers == 1
    send(connections, publisher, *[Publish(b"t", b"x", 1, False, False, id) for id in (100, 101, 102)])
    connections.round()
    first = connections.theirs[subscriber].recv(100)
    connections.theirs[subscriber].send(ack_frame(0x40, int.from_bytes(first[5:7])))
    connections.round()
    assert connections.sockets.receivers == 0
    connections.close()
