"""A bystander that sends PINGREQ every two milliseconds and records the time until the answers.

With the port of another node of a cluster it sends messages to a subscriber there instead, and records their latency.
It runs as a process of its own (``python -m bench.ping PORT CORE VERSION SUBSCRIBER_PORT [NAME PASSWORD]``), so that it
does not wait for the generator's work, only for its turn on the generator's core: its figures are an upper bound of the
broker's stalls.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from types import TracebackType

from bench.frames import publish
from bench.wire import SetupError, open_connection, read_exactly, subscribe_all

PERIOD_S = 0.002
LOST_S = 5.0
PINGREQ = b"\xc0\0"
TOPIC = "bench/ping"


class Pings:
    """Runs the bystander during the block; afterwards ``max_ms`` and ``p99_ms`` are set."""

    max_ms = 0.0
    p99_ms = 0.0

    def __init__(
        self, port: int, core: int, version: int, subscriber_port: int = 0, login: tuple[str, str] | None = None
    ) -> None:
        numbers = (port, core, version, subscriber_port)
        arguments = [sys.executable, "-m", "bench.ping", *map(str, numbers), *(login or ())]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Pings:
        assert self.process.stdout is not None
        self.process.stdout.readline()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        output, _ = self.process.communicate(timeout=60)
        if kind is None:
            self.p99_ms, self.max_ms = (float(value) for value in output.split())


def watch(
    port: int, core: int, version: int, subscriber_port: int, login: tuple[str, str] | None
) -> tuple[float, float]:
    """Run until stdin is closed; return the 99th percentile and the maximum in milliseconds. ``core`` -1: any."""
    if core >= 0:
        os.sched_setaffinity(0, {core})
    sock = answers = open_connection(port, "bench-ping", version, login=login)
    question, size = PINGREQ, len(PINGREQ)
    if subscriber_port:
        answers = open_connection(subscriber_port, "bench-ping-sub", version, login=login)
        subscribe_all(answers, [TOPIC], 0, version)
        question = publish(TOPIC, b"", 0, 0, version)
        size = len(question)
    print("ready", flush=True)
    times = []
    answers.settimeout(LOST_S)
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        start = time.perf_counter()
        sock.sendall(question)
        try:
            read_exactly(answers, size)
        except SetupError:  # a lost QoS 0 message counts with its time-out
            if not subscriber_port:
                raise
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    return times[len(times) * 99 // 100], times[-1]


if __name__ == "__main__":
    port, core, version, subscriber_port = (int(value) for value in sys.argv[1:5])
    print(*watch(port, core, version, subscriber_port, (sys.argv[5], sys.argv[6]) if sys.argv[5:] else None))
