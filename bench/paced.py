"""Paced load: ``python -m bench.paced`` with a Spec on stdin. Many pairs, a fixed total rate, latencies.

The generator spins on its own core, so that timers and wake-ups do not distort the figures; each message carries the
CLOCK_MONOTONIC time of its sending. ``lag`` is the generator's own delay behind its schedule.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from array import array
from collections.abc import Callable

import msgspec
import numpy as np

from bench.frames import ACK_SIZE, Layout, publish
from bench.process import cpu_seconds
from bench.wire import open_connection, subscribe_all

BURST = 8  # messages between two polls of the sockets, when behind schedule
DRAIN_S = 1.0
SHARES = (50.0, 99.0, 99.9)


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    broker: int
    core: int
    qos: int
    pairs: int = 200
    rate: float = 30_000.0  # messages per second, all pairs together
    version: int = 4
    payload: int = 64
    warm_up: float = 1.0
    duration: float = 5.0
    subscriber_port: int = 0  # of the subscribers' node; 0: the same as ``port``
    group: str = ""  # the subscribers are members of shared groups of this name, alone in each


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in microseconds of the broker's processes per delivered message; latencies and lag in microseconds at 50,
    99 and 99.9 per cent."""

    delivered: int
    published: int
    cpu_us_per_message: float
    broker_cpu: float
    latency_us: list[float]
    latency_max_us: float
    missing: int  # of all messages sent, a second after the last at most
    lag_us: list[float]


class Pair:
    """One publisher and one subscriber with their own topic."""

    def __init__(self, run: Run, number: int) -> None:
        spec, layout = run.spec, run.layout
        topic = layout.topic(number)
        self.run = run
        self.subscriber = open_connection(spec.subscriber_port or spec.port, f"bench-sub-{number}", spec.version)
        filter = f"$share/{spec.group}/{topic}" if spec.group else topic
        subscribe_all(self.subscriber, [filter], spec.qos, spec.version)
        self.publisher = open_connection(spec.port, f"bench-pub-{number}", spec.version)
        self.frame = bytearray(publish(topic, bytes(spec.payload), spec.qos, 1, spec.version))
        self.packet_id = 0
        self.rest = b""

    def send(self) -> int:
        """Send one time-stamped message; return the time, in nanoseconds."""
        layout, frame = self.run.layout, self.frame
        if layout.qos:
            self.packet_id = self.packet_id % 65_535 + 1
            frame[layout.packet_id : layout.packet_id + 2] = self.packet_id.to_bytes(2, "big")
        now = time.monotonic_ns()
        frame[layout.payload : layout.payload + 8] = now.to_bytes(8, "big")
        self.publisher.send(frame)
        return now

    def receive(self) -> None:
        """Record the latency of each received message, and acknowledge it."""
        now = time.monotonic_ns()
        layout = self.run.layout
        data = self.rest + self.subscriber.recv(65_536)
        whole = len(data) // layout.frame * layout.frame
        for at in range(layout.payload, whole, layout.frame):
            self.run.latencies.append(now - int.from_bytes(data[at : at + 8], "big"))
        if layout.qos:
            ids = range(layout.packet_id, whole, layout.frame)
            self.subscriber.send(b"".join(b"\x40\x02" + data[at : at + 2] for at in ids))
        self.rest = data[whole:]

    def receive_acks(self) -> None:
        self.run.acknowledged += len(self.publisher.recv(65_536)) / ACK_SIZE


class Run:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.layout = Layout(spec.qos, spec.version, spec.payload)
        self.latencies = array("q")
        self.lags = array("q")
        self.acknowledged = 0.0
        self.sent = 0
        self.pairs = [Pair(self, number) for number in range(spec.pairs)]
        self.poll = select.epoll()
        self.handlers: dict[int, Callable[[], None]] = {}
        for pair in self.pairs:
            self.add(pair.subscriber, pair, True)
            self.add(pair.publisher, pair, False)
        self.began = time.monotonic_ns()

    def add(self, sock: socket.socket, pair: Pair, subscriber: bool) -> None:
        sock.setblocking(False)
        self.poll.register(sock.fileno(), select.EPOLLIN)
        self.handlers[sock.fileno()] = pair.receive if subscriber else pair.receive_acks

    def serve(self) -> None:
        for fd, _ in self.poll.poll(0, 64):
            self.handlers[fd]()

    def run_for(self, seconds: float) -> None:
        """Send on schedule: message k is due k / rate seconds after the start, its pair is k modulo pairs."""
        period_ns = 1e9 / self.spec.rate
        end = time.monotonic_ns() + int(seconds * 1e9)
        while (now := time.monotonic_ns()) < end:
            due = int((now - self.began) / period_ns) + 1  # the first message is due at the start
            for _ in range(min(due - self.sent, BURST)):
                sent = self.pairs[self.sent % len(self.pairs)].send()
                self.lags.append(sent - self.began - int(self.sent * period_ns))
                self.sent += 1
            self.serve()

    def drain(self) -> None:
        end = time.monotonic() + DRAIN_S
        while time.monotonic() < end and len(self.latencies) < self.sent:
            self.serve()


def run(spec: Spec) -> Outcome:
    run = Run(spec)
    run.run_for(spec.warm_up)
    skipped, sent_before = len(run.latencies), run.sent
    cpu, start = cpu_seconds(spec.broker), time.monotonic()
    run.run_for(spec.duration)
    cpu, seconds = cpu_seconds(spec.broker) - cpu, time.monotonic() - start
    delivered = len(run.latencies) - skipped
    run.drain()
    missing = run.sent - len(run.latencies)
    latencies = np.array(run.latencies[skipped:] or [0]) / 1e3
    return Outcome(
        delivered=delivered,
        published=run.sent - sent_before,
        cpu_us_per_message=cpu * 1e6 / max(delivered, 1),
        broker_cpu=cpu / seconds,
        latency_us=np.percentile(latencies, SHARES).tolist(),
        latency_max_us=float(latencies.max()),
        missing=missing,
        lag_us=np.percentile(np.array(run.lags[sent_before:]) / 1e3, SHARES).tolist(),
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
