"""Sessions that are away and messages for them: ``python -m bench.fill`` with a Spec on stdin.

Each session subscribes to a topic of its own with QoS 1 and goes; then every topic gets its messages, by turns. What
the generator waits for is only acknowledgements, so an Outcome says that the broker has taken responsibility for all.
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

AT_ONCE = 200  # connections under way
BLOCK = 500  # messages sent at once; two blocks are unacknowledged at most
ANSWERS = 9  # bytes of CONNACK and SUBACK
DISCONNECT = b"\xe0\0"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    broker: int
    core: int
    sessions: int
    each: int  # messages for each session
    payload: int = 64


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How fast sessions and messages were taken, and how many bytes of topic and payload that was."""

    sessions_per_s: float
    messages_per_s: float
    broker_cpu_us_per_message: float
    content: int


def name(number: int) -> str:
    return f"away-{number}"


def topic(number: int) -> str:
    return f"f/{number:08d}"


def leave_sessions(port: int, count: int) -> None:
    """Makes persistent sessions, each with its subscription and no connection."""
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
    """How many messages, and their frames. Identifiers go round within what three blocks need."""
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
