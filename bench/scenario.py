"""One scenario of the Open MQTT Benchmark Suite: ``python -m bench.scenario`` with a Spec on stdin.

Publishers send at a fixed total rate, in turns, QoS 1, 16 bytes, each to its own topic. Every message carries its
sending time. The generator spins on its own core; ``lag`` is its delay behind its schedule.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from array import array

import msgspec
import numpy as np

from bench.crowd import Crowd
from bench.crowd import Spec as CrowdSpec
from bench.frames import Layout, publish
from bench.peers import raise_file_limit
from bench.process import cpu_seconds, memory
from bench.wire import open_connection, subscribe_all

PAYLOAD = 16
BURST = 8
DRAIN_S = 2.0
SHARES = (50.0, 90.0, 99.0, 100.0)


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """``filters`` of a subscriber: ``own`` (the topic of its number), ``all`` topics, or ``shared`` (all topics, as a
    member of a group). Without publishers the subscribers only connect, ``rate`` per second.
    """

    port: int
    broker: int
    core: int
    publishers: int
    subscribers: int
    rate: float
    filters: str = "own"
    warm_up: float = 1.0
    duration: float = 5.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """``latency_us`` and ``lag_us`` at 50, 90, 99 and 100 per cent; ``rss_bytes`` of the broker, and before the clients
    connected. ``done``: messages delivered, or connections made. CPU is the broker's.
    """

    done: int
    missing: int
    per_s: float
    cpu_us: float  # for each of them
    broker_cpu: float  # cores
    latency_us: list[float]
    lag_us: list[float]
    rss_bytes: int
    empty_bytes: int


def shares(values: array[int] | list[float], unit: float) -> list[float]:
    found: list[float] = np.percentile(np.array(values if len(values) else [0]) / unit, SHARES).tolist()
    return found


class Load:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        version = 5 if spec.filters == "shared" else 4
        self.layout = Layout(1, version, PAYLOAD)
        topics = [self.layout.topic(number) for number in range(spec.publishers)]
        self.latencies = array("q")
        self.lags = array("q")
        self.sent = 0
        self.rests: dict[int, bytes] = {}
        self.subscribers: dict[int, socket.socket] = {}
        self.poll = select.epoll()
        for number in range(spec.subscribers):
            sock = open_connection(spec.port, f"suite-sub-{number}", version)
            subscribe_all(sock, self.filters(topics, number), 1, version)
            sock.setblocking(False)
            self.subscribers[sock.fileno()] = sock
            self.rests[sock.fileno()] = b""
            self.poll.register(sock.fileno(), select.EPOLLIN)
        self.publishers: list[tuple[socket.socket, bytearray]] = []
        self.acks: dict[int, socket.socket] = {}
        for number, topic in enumerate(topics):
            sock = open_connection(spec.port, f"suite-pub-{number}", version)
            sock.setblocking(False)
            self.publishers.append((sock, bytearray(publish(topic, bytes(PAYLOAD), 1, 1, version))))
            self.acks[sock.fileno()] = sock
            self.poll.register(sock.fileno(), select.EPOLLIN)

    def filters(self, topics: list[str], number: int) -> list[str]:
        if self.spec.filters == "own":
            return [topics[number % len(topics)]]
        return ["$share/benchmark/b/#"] if self.spec.filters == "shared" else topics

    @property
    def expected(self) -> int:
        return self.sent * (self.spec.subscribers if self.spec.filters == "all" else 1)

    def run_for(self, seconds: float) -> None:
        """Send on schedule: message k is due k / rate seconds after the start; its publisher is k modulo their
        number.
        """
        period_ns, begun, sent = 1e9 / self.spec.rate, time.monotonic_ns(), self.sent
        end = begun + int(seconds * 1e9)
        while (now := time.monotonic_ns()) < end:
            due = sent + int((now - begun) / period_ns)
            for _ in range(min(due - self.sent, BURST)):
                self.lags.append(self.send() - begun - int((self.sent - sent) * period_ns))
                self.sent += 1
            self.serve()

    def send(self) -> int:
        layout = self.layout
        turn, number = divmod(self.sent, len(self.publishers))
        sock, frame = self.publishers[number]
        frame[layout.packet_id : layout.packet_id + 2] = (turn % 65_535 + 1).to_bytes(2, "big")
        now = time.monotonic_ns()
        frame[layout.payload : layout.payload + 8] = now.to_bytes(8, "big")
        sock.send(frame)
        return now

    def serve(self) -> None:
        for fd, _ in self.poll.poll(0, 64):
            if fd in self.acks:
                self.acks[fd].recv(65_536)
            else:
                self.receive(fd)

    def receive(self, fd: int) -> None:
        """Record the latencies of received messages, and acknowledge them."""
        layout, sock, now = self.layout, self.subscribers[fd], time.monotonic_ns()
        data = self.rests[fd] + sock.recv(65_536)
        whole = len(data) // layout.frame * layout.frame
        for at in range(layout.payload, whole, layout.frame):
            self.latencies.append(now - int.from_bytes(data[at : at + 8], "big"))
        ids = range(layout.packet_id, whole, layout.frame)
        sock.send(b"".join(b"\x40\x02" + data[at : at + 2] for at in ids))
        self.rests[fd] = data[whole:]

    def drain(self) -> None:
        end = time.monotonic() + DRAIN_S
        while time.monotonic() < end and len(self.latencies) < self.expected:
            self.serve()


def messages(spec: Spec) -> Outcome:
    empty = memory(spec.broker).rss
    load = Load(spec)
    load.run_for(spec.warm_up)
    load.drain()
    begun, sent = len(load.latencies), load.sent
    cpu, start = cpu_seconds(spec.broker), time.monotonic()
    load.run_for(spec.duration)
    cpu, seconds = cpu_seconds(spec.broker) - cpu, time.monotonic() - start
    done = len(load.latencies) - begun
    rss = memory(spec.broker).rss
    load.drain()
    return Outcome(
        done=done,
        missing=load.expected - len(load.latencies),
        per_s=done / seconds,
        cpu_us=cpu * 1e6 / max(done, 1),
        broker_cpu=cpu / seconds,
        latency_us=shares(load.latencies[begun:], 1e3),
        lag_us=shares(load.lags[sent:], 1e3),
        rss_bytes=rss,
        empty_bytes=empty,
    )


def connections(spec: Spec) -> Outcome:
    empty, cpu = memory(spec.broker).rss, cpu_seconds(spec.broker)
    place = CrowdSpec(
        port=spec.port, core=spec.core, source="127.0.1.1", first=0, rate=spec.rate, subscribes=False, keep_alive=300
    )
    crowd = Crowd(place)
    seconds = crowd.open(spec.subscribers)
    cpu = cpu_seconds(spec.broker) - cpu
    return Outcome(
        done=len(crowd.socks),
        missing=spec.subscribers - len(crowd.socks),
        per_s=len(crowd.socks) / seconds,
        cpu_us=cpu * 1e6 / len(crowd.socks),
        broker_cpu=cpu / seconds,
        latency_us=shares(crowd.latencies, 1e-6),
        lag_us=[],
        rss_bytes=memory(spec.broker).rss,
        empty_bytes=empty,
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    raise_file_limit()
    outcome = messages(spec) if spec.publishers else connections(spec)
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
