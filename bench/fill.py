"""Disconnected sessions and messages for them: ``python -m bench.fill`` with a Spec on stdin.

Each session subscribes to its own topic with QoS 1 and disconnects; then each topic gets its messages, round-robin. The
generator waits for acknowledgements only, so an Outcome means that the broker has acknowledged all.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator

import msgspec

from bench.frames import ACK_SIZE, CONNACK, SUBACK, connect, publish, subscribe
from bench.process import cpu_seconds
from bench.wire import ANSWER_TIMEOUT_S, SetupError, open_connection, read_exactly

AT_ONCE = 200  # unfinished connections
BLOCK = 500  # messages per write; at most two blocks are unacknowledged
ANSWERS = 9  # total bytes of CONNACK and SUBACK
DISCONNECT = b"\xe0\0"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    broker: int
    core: int
    sessions: int
    each: int  # messages for each session
    payload: int = 64


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of sessions and messages, and the bytes of topics and payloads."""

    sessions_per_s: float
    messages_per_s: float
    broker_cpu_us_per_message: float
    content: int


def name(number: int) -> str:
    return f"away-{number}"


def topic(number: int) -> str:
    return f"f/{number:08d}"


def leave_sessions(port: int, count: int) -> None:
    """Create persistent sessions, each with its subscription, and disconnect."""
    for first in range(0, count, AT_ONCE):
        socks = []
        for number in range(first, min(first + AT_ONCE, count)):
            sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
            sock.sendall(connect(name(number), 4, True) + subscribe(1, [topic(number)], 1, 4))
            socks.append(sock)
        for sock in socks:
            answer = read_exactly(sock, ANSWERS)
            if answer[0] != CONNACK or answer[3] != 0 or answer[4] != SUBACK or answer[8] != 1:
                raise SetupError(f"CONNECT and SUBSCRIBE were answered with {answer.hex()}")
            sock.sendall(DISCONNECT)
        for sock in socks:
            sock.close()


def blocks(spec: Spec) -> Iterator[tuple[int, bytes]]:
    """Yield the number of messages and their frames. Packet ids rotate within three blocks."""
    payload, total = b"." * spec.payload, spec.sessions * spec.each
    for first in range(0, total, BLOCK):
        numbers = range(first, min(first + BLOCK, total))
        frames = (publish(topic(n % spec.sessions), payload, 1, n % (3 * BLOCK) + 1, 4) for n in numbers)
        yield len(numbers), b"".join(frames)


def publish_all(spec: Spec) -> None:
    sock = open_connection(spec.port, "fill", 4)
    owed = 0
    for count, data in blocks(spec):
        sock.sendall(data)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # see Connection.receive
        read_exactly(sock, owed * ACK_SIZE)
        owed = count
    read_exactly(sock, owed * ACK_SIZE)
    sock.sendall(DISCONNECT)
    sock.close()


def run(spec: Spec) -> Outcome:
    start = time.perf_counter()
    leave_sessions(spec.port, spec.sessions)
    between, cpu = time.perf_counter(), cpu_seconds(spec.broker)
    publish_all(spec)
    end, cpu = time.perf_counter(), cpu_seconds(spec.broker) - cpu
    messages = spec.sessions * spec.each
    return Outcome(
        sessions_per_s=spec.sessions / (between - start),
        messages_per_s=messages / (end - between),
        broker_cpu_us_per_message=cpu * 1e6 / messages,
        content=messages * (spec.payload + len(topic(0))),
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
