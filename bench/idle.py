"""Idle connections: ``python -m bench.idle`` with a Spec on stdin.

Each connects, subscribes to its own topic, and stays connected. In the end each sends a PINGREQ.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time

import msgspec

from bench.frames import CONNACK, SUBACK, connect, frame_size, subscribe
from bench.process import Memory, cpu_seconds, memory
from bench.wire import SetupError

FIRST = 100  # connections for warm-up before memory is read
AT_ONCE = 200  # maximum unfinished connections
LIMIT_S = 120.0
PINGS_PER_S = 5_000  # of all connections together: nearly each is alone in its read
PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    broker: int
    core: int
    connections: int = 10_000
    settle_s: float = 1.0
    version: int = 4


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per connection beyond the first 100, and how many were connected and subscribed per second."""

    connections: int
    settle_s: float = 1.0
    before: Memory
    after: Memory
    rss_per_connection: float
    pss_per_connection: float
    accepted_per_s: float
    broker_cpu_us_per_connection: float
    broker_cpu_us_per_ping: float


class Client:
    """One connection in its states: connecting, waiting for CONNACK, waiting for SUBACK, subscribed."""

    def __init__(self, spec: Spec, number: int, poll: select.epoll) -> None:
        self.number = number
        self.version = spec.version
        self.poll = poll
        self.data = b""
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self.sock.connect_ex(("127.0.0.1", spec.port))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        poll.register(self.sock.fileno(), select.EPOLLOUT)

    def ready(self, mask: int) -> bool:
        """Return True when the subscription was granted."""
        if mask & select.EPOLLOUT:
            self.sock.send(connect(f"idle-{self.number}", self.version))
            self.poll.modify(self.sock.fileno(), select.EPOLLIN)
            return False
        received = self.sock.recv(4096)
        if not received:
            raise ConnectionError("the broker closed a connection")
        self.data += received
        if (size := frame_size(self.data)) == 0 or len(self.data) < size:
            return False
        frame, self.data = self.data[:size], self.data[size:]
        return self.answered(frame)

    def answered(self, frame: bytes) -> bool:
        if frame[0] == CONNACK and frame[3] == 0:
            self.sock.send(subscribe(1, [f"idle/{self.number}/status"], 0, self.version))
            return False
        if frame[0] == SUBACK and frame[-1] == 0:
            return True
        raise SetupError(f"the broker answered {frame[:16].hex()}")


def bring_up(spec: Spec, poll: select.epoll, clients: dict[int, Client], first: int, count: int) -> float:
    """Opens ``count`` more connections, up to 200 at a time; returns the seconds until the last was subscribed."""
    begun = done = 0
    start = time.perf_counter()
    while done < count:
        while begun < count and begun - done < AT_ONCE:
            client = Client(spec, first + begun, poll)
            clients[client.sock.fileno()] = client
            begun += 1
        for fd, mask in poll.poll(1.0, 256):
            done += clients[fd].ready(mask)
        if time.perf_counter() - start > LIMIT_S:
            raise SetupError(f"{done} of {count} connections were subscribed within {LIMIT_S} s")
    return time.perf_counter() - start


def ping(clients: list[Client]) -> None:
    """Each sends a PINGREQ, evenly over time, and gets its answer."""
    start = time.perf_counter()
    for number, client in enumerate(clients):
        if (early := number / PINGS_PER_S - (time.perf_counter() - start)) > 0.0:
            time.sleep(early)
        client.sock.send(PINGREQ)
    for client in clients:
        client.sock.settimeout(LIMIT_S)
        if client.sock.recv(4096) != PINGRESP:
            raise SetupError("the broker did not answer a PINGREQ")


def run(spec: Spec) -> Outcome:
    poll = select.epoll()
    clients: dict[int, Client] = {}
    bring_up(spec, poll, clients, 0, FIRST)
    time.sleep(spec.settle_s)
    before, cpu = memory(spec.broker), cpu_seconds(spec.broker)
    seconds = bring_up(spec, poll, clients, FIRST, spec.connections)
    cpu = cpu_seconds(spec.broker) - cpu
    time.sleep(spec.settle_s)
    after = memory(spec.broker)
    pinging = cpu_seconds(spec.broker)
    ping(list(clients.values()))
    pinging = cpu_seconds(spec.broker) - pinging
    return Outcome(
        connections=spec.connections,
        before=before,
        after=after,
        rss_per_connection=(after.rss - before.rss) / spec.connections,
        pss_per_connection=(after.pss - before.pss) / spec.connections,
        accepted_per_s=spec.connections / seconds,
        broker_cpu_us_per_connection=cpu * 1e6 / spec.connections,
        broker_cpu_us_per_ping=pinging * 1e6 / len(clients),
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
