"""The cost of one transport for a broker: ``python -m bench.transport_load`` with a Spec on stdin.

Clients connect one after the other and disconnect, then idle connections with a filter each, then messages at a fixed
rate through pairs of them.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np

from bench.channel import Channel, client_context
from bench.frames import Layout, publish
from bench.peers import raise_file_limit
from bench.process import cpu_seconds, memory

OpenChannel = Callable[..., Channel]

SETTLE_S = 0.5
WARM_UP = 50  # connections


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    scheme: str
    port: int
    broker: int
    core: int
    handshakes: int = 500
    idle: int = 1_000
    pairs: int = 50
    rate: float = 2_000.0
    duration: float = 4.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """CPU is the broker's, in microseconds: for a connection from its first byte to CONNACK and its end, and for a
    message. Latencies in microseconds at 50 and 99 per cent."""

    handshake_us: float
    idle_bytes: float
    message_us: float
    latency_us: list[float]
    missing: int

    @property
    def handshakes_per_cpu_s(self) -> float:
        return 1e6 / self.handshake_us if self.handshake_us else 0.0


def run(spec: Spec) -> Outcome:
    context = client_context()

    def opened(number: int, topic: str = "") -> Channel:
        channel = Channel(spec.scheme, spec.port, context)
        channel.open(f"transport-{number}", topic)
        return channel

    for number in range(WARM_UP):
        opened(number).close()
    cpu = cpu_seconds(spec.broker)
    for number in range(spec.handshakes):
        opened(number).close()
    time.sleep(SETTLE_S)
    handshake_us = (cpu_seconds(spec.broker) - cpu) * 1e6 / spec.handshakes

    kept = [opened(number, f"idle/{number}") for number in range(WARM_UP)]
    time.sleep(SETTLE_S)
    rss = memory(spec.broker).rss
    kept += [opened(WARM_UP + number, f"idle/{WARM_UP + number}") for number in range(spec.idle)]
    time.sleep(SETTLE_S)
    idle_bytes = (memory(spec.broker).rss - rss) / spec.idle

    message_us, latencies, missing = messages(spec, opened)
    return Outcome(
        handshake_us=handshake_us,
        idle_bytes=idle_bytes,
        message_us=message_us,
        latency_us=(np.percentile(np.array(latencies or [0]) / 1e3, (50, 99))).tolist(),
        missing=missing,
    )


def messages(spec: Spec, opened: OpenChannel) -> tuple[float, list[int], int]:
    """Return CPU in us per message, latencies in ns, and the number of missing messages."""
    layout, poll = Layout(0, 4, 64), select.epoll()
    first = 10 * (spec.idle + spec.handshakes)
    subscribers: dict[int, Channel] = {}
    publishers: list[tuple[Channel, bytearray]] = []
    for number in range(spec.pairs):
        topic = layout.topic(number)
        channel = opened(first + 2 * number, topic)
        channel.loose()
        subscribers[channel.sock.fileno()] = channel
        poll.register(channel.sock.fileno(), select.EPOLLIN)
        publishers.append((opened(first + 2 * number + 1), bytearray(publish(topic, bytes(64), 0, 0, 4))))
    latencies: list[int] = []

    def serve() -> None:
        for fd, _ in poll.poll(0, 64):
            channel = subscribers[fd]
            channel.data += channel.receive()
            now, whole = time.monotonic_ns(), len(channel.data) // layout.frame * layout.frame
            for at in range(layout.payload, whole, layout.frame):
                latencies.append(now - int.from_bytes(channel.data[at : at + 8], "big"))
            channel.data = channel.data[whole:]

    sent, cpu, begun = 0, cpu_seconds(spec.broker), time.monotonic_ns()
    end = begun + int(spec.duration * 1e9)
    while (now := time.monotonic_ns()) < end:
        if sent < (now - begun) * spec.rate / 1e9:
            channel, frame = publishers[sent % len(publishers)]
            frame[layout.payload : layout.payload + 8] = now.to_bytes(8, "big")
            channel.send(frame)
            sent += 1
        serve()
    cpu = cpu_seconds(spec.broker) - cpu
    for _ in range(200):
        if len(latencies) == sent:
            break
        time.sleep(0.01)
        serve()
    return cpu * 1e6 / max(sent, 1), latencies, sent - len(latencies)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    raise_file_limit()
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
