"""A real broker process under messages that are as expensive as a client can make them: another client's pings are
answered all the while."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Final

import pytest

from starlingmq.wire.mqtt import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    encode,
)
from starlingmq.wire.properties import SUBSCRIPTION_IDENTIFIER, USER_PROPERTY, encode_property_bytes
from tests.core.test_overlaps import every_pattern
from tests.fuzz.server import PATIENCE, Sane, Server
from tests.patience import slowness

LONGEST: Final = 8.0  # seconds for one ping, interpreted and on a busy machine; without bounds it was 14 s and more
USUAL: Final = 1.0  # seconds for half of the pings
SECONDS: Final = 1.5  # of each attack: a ping that is sent in them may take longer
LEVELS: Final = 12


class Own(Sane):
    """A client with an id of its own."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        self.version = 5
        self.data = b""
        self.send(Connect(5))
        assert isinstance(self.receive(), Connack)


class Attacker(Own):
    """It sends without waiting, and throws away what it gets."""

    def start(self, data: bytes) -> None:
        self.threads = [threading.Thread(target=self._send, args=(data,)), threading.Thread(target=self._read)]
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.socket.close()

    def _send(self, data: bytes) -> None:
        with suppress(OSError):
            self.socket.sendall(data)

    def _read(self) -> None:
        with suppress(OSError):
            while self.socket.recv(1 << 20):
                pass


def search(server: Server) -> list[tuple[Attacker, bytes]]:
    """Eight clients with 512 overlapping filters each, and one that publishes to new topics."""
    attackers = [Attacker(server) for _ in range(9)]
    data = []
    for number in range(8):
        filters = [SubscribeRequest(filter) for filter in every_pattern(LEVELS)[number * 512 : (number + 1) * 512]]
        data.append(encode(Subscribe(2, filters, {SUBSCRIPTION_IDENTIFIER: [268_435_455]}), 5))
    data.append(b"".join(encode(Publish(b"a/" * LEVELS + b"%d" % number), 5) for number in range(400)))
    return list(zip(attackers, data, strict=True))


def search_of_forty(server: Server) -> list[tuple[Attacker, bytes]]:
    """Forty clients whose 512 filters each match every topic of one that publishes: some 20,000 matches a message."""
    attackers = [Attacker(server) for _ in range(40)]
    for number, attacker in enumerate(attackers):
        part = number % 8 * 512
        attacker.send(Subscribe(2, [SubscribeRequest(filter) for filter in every_pattern(LEVELS)[part : part + 512]]))
        assert isinstance(attacker.receive(), Suback)
    messages = b"".join(encode(Publish(b"a/" * LEVELS + b"%d" % number), 5) for number in range(400))
    return [*((attacker, b"") for attacker in attackers), (Attacker(server), messages)]


def many_publishers(server: Server) -> list[tuple[Attacker, bytes]]:
    """Twenty clients whose messages have as many properties as they may have."""
    properties = encode_property_bytes({USER_PROPERTY: [("", "")]}) * 2000
    return [(Attacker(server), encode(Publish(b"t", properties=properties), 5) * 40) for _ in range(20)]


def groups(server: Server) -> list[tuple[Attacker, bytes]]:
    subscriber, publisher = Attacker(server), Attacker(server)
    filters = [SubscribeRequest(b"$share/g%d/t" % number) for number in range(5000)]
    return [(subscriber, encode(Subscribe(2, filters), 5)), (publisher, encode(Publish(b"t", b"x"), 5) * 300)]


def long_topics(server: Server) -> list[tuple[Attacker, bytes]]:
    """Retained messages of long topics with many levels, and filters that match none of them."""
    base = b"/".join([b"x" * 200] * 250)
    kept = b"".join(encode(Publish(base + b"/%d" % number, b"1", retain=True), 5) for number in range(90))
    wanted = encode(Subscribe(2, [SubscribeRequest(b"+/" * 250 + b"z%d" % number) for number in range(60)]), 5)
    return [(Attacker(server), kept), *((Attacker(server), wanted * 3) for _ in range(5))]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(settings=("mqtt.connect_timeout=30s",))
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("attack", [search, search_of_forty, many_publishers, groups, long_topics])
def test_pings_are_answered_meanwhile(server: Server, attack: Callable[[Server], list[tuple[Attacker, bytes]]]) -> None:
    other = Own(server)
    other.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    attacks = attack(server)
    took = []
    try:
        for attacker, data in attacks:
            attacker.start(data)
        began = perf_counter()
        while perf_counter() - began < SECONDS:
            sent = perf_counter()
            other.send(Pingreq())
            assert isinstance(other.receive(), Pingresp)
            took.append(perf_counter() - sent)
    finally:
        for attacker, _ in attacks:
            attacker.stop()
        other.socket.close()
    took.sort()
    assert took[-1] < LONGEST * slowness()
    assert took[len(took) // 2] < USUAL * slowness()
