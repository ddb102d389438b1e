"""A bystander that sends PINGREQ every two milliseconds and notes how long the answers take.

It runs as a process of its own (``python -m bench.ping PORT CORE VERSION``), so that it does not wait for the
generator's work, only for its turn on the generator's core: what it sees is an upper bound of the broker's stalls.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from types import TracebackType

from bench.wire import open_connection

PERIOD_S = 0.002
PINGREQ = b"\xc0\0"


class Pings:
    """Runs the bystander while the block lasts; afterwards ``max_ms`` and ``p99_ms`` are known."""

    max_ms = 0.0
    p99_ms = 0.0

    def __init__(self, port: int, core: int, version: int) -> None:
        arguments = [sys.executable, "-m", "bench.ping", str(port), str(core), str(version)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Pings:
        assert self.process.stdout is not None
        self.process.stdout.readline()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        output, _ = self.process.communicate(timeout=60)
        if kind is None:
            self.p99_ms, self.max_ms = (float(value) for value in output.split())


def watch(port: int, core: int, version: int) -> tuple[float, float]:
    """Until stdin is closed; returns the 99th percentile and the maximum in milliseconds."""
    os.sched_setaffinity(0, {core})
    sock = open_connection(port, "bench-ping", version)
    print("ready", flush=True)
    times = []
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        start = time.perf_counter()
        sock.sendall(PINGREQ)
        if not sock.recv(2):
            raise ConnectionError("the broker closed the connection")
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    return times[len(times) * 99 // 100], times[-1]


if __name__ == "__main__":
    print(*watch(*(int(value) for value in sys.argv[1:4])))
